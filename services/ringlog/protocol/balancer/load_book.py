"""The newest load report of each node, and the age of the reports.

Both come from the topic ``load``, in the order of its records. The topic is compacted by node, so a restarted reader
gets the same reports again. The broker stamps each report, so ages do not depend on the nodes' clocks. A node reports
every ``SELDOM_US``, even if it has no tablets and nothing to acknowledge. ``ringlog.kernel.balance.reports`` decides
which reports count.

The ages are for display and alerts only: a slow node and a dead node look the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ringlog.kernel.balance.advice import report_basis
from ringlog.kernel.balance.model import BYTES, CPU, READS, WRITES, MeasuredLoads
from ringlog.kernel.balance.reports import (
    UNREGISTERED,
    LoadReport,
    Reports,
    fold_report,
    ignore,
    ignored_within_window,
    within_window,
)
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, NodeId, Value
from ringlog.protocol.balancer.load_reports import SELDOM_US
from ringlog.wire.records import NodeLoad, TableLoad

UNREADABLE: Final = "unreadable"
"""The code of a record that is not a load report."""
REJECTED: Final = "load_not_believed"
"""The code of a report without a valid MAC of its node, if the reader checks them."""


class ReceivedLoad(Value):
    """A load report, and when the broker appended it. ``load`` None: the record was rejected with ``code``."""

    load: NodeLoad | None
    appended: Micros
    code: str = UNREADABLE


def take(reports: Reports, records: Iterable[ReceivedLoad], state: ClusterState) -> Reports:
    """Return the reports after these records, checked against the state."""
    registered = report_basis(state)
    for one in records:
        if one.load is None:
            reports = ignore(reports, UNREGISTERED, one.code, one.appended)
        else:
            reports = fold_report(reports, report_of(one.load), one.appended, registered)
    return reports


def measured(reports: Reports, state: ClusterState) -> dict[NodeId, MeasuredLoads]:
    """Return the loads that count, by node: from reports that are at most ``WINDOW_US`` older than the newest one."""
    return within_window(reports, reports.now, report_basis(state))


def ignored(reports: Reports, state: ClusterState) -> tuple[tuple[NodeId, str], ...]:
    """Return node and code of each report that is ignored now. The node is empty if it is not known."""
    return tuple(ignored_within_window(reports, reports.now, report_basis(state)))


def report_of(load: NodeLoad) -> LoadReport:
    """Return the report of a record. The kernel ignores a report whose amounts do not fit its tablets."""
    loads: dict[str, dict[str, Mapping[int, object]]] = {BYTES: {}, READS: {}, WRITES: {}, CPU: {}}
    for table in load.tables:
        for kind, amounts in _columns(table):
            fits = len(amounts) == len(table.tablets)
            found = zip(table.tablets, amounts if fits else [None] * len(table.tablets), strict=True)
            loads[kind][table.id] = {**loads[kind].get(table.id, {}), **dict(found)}
    return LoadReport(load.node, load.at, load.capacity, loads, {table.id: table.count for table in load.tables})


def _columns(table: TableLoad) -> Iterable[tuple[str, tuple[int, ...]]]:
    rates = ((READS, table.reads), (WRITES, table.writes), (CPU, table.cpu))
    return ((BYTES, table.bytes), *((kind, amounts) for kind, amounts in rates if amounts))


SILENT_US: Final[Micros] = SELDOM_US + SELDOM_US // 2
"""A node without a report for this long is shown as silent: one report is overdue by half an interval."""


def report_times(
    records: Iterable[ReceivedLoad], earlier: Mapping[NodeId, Micros] | None = None
) -> dict[NodeId, Micros]:
    """Return the broker's time of each node's last report. ``earlier``: the result for earlier records."""
    found = dict(earlier or {})
    for one in records:
        if one.load is not None:
            found[one.load.node] = max(one.appended, found.get(one.load.node, 0))
    return found


@dataclass(frozen=True, slots=True)
class LastReports:
    """The broker's time of each node's last report, and the reader's clock ``now``. All times in microseconds."""

    at: Mapping[NodeId, Micros] = field(default_factory=dict)
    now: Micros = 0
    _reached: Micros = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_reached", max(self.now, *self.at.values()) if self.at else self.now)

    def age(self, node: NodeId) -> Micros | None:
        """Return the time since the last report; None if the node never sent one.

        A reader whose clock is behind the broker's counts from the newest report of any node.
        """
        at = self.at.get(node)
        return None if at is None else self._reached - at

    def is_silent(self, node: NodeId) -> bool:
        """Return True if the last report of the node is overdue."""
        age = self.age(node)
        return age is not None and age >= SILENT_US

    def silent(self, state: ClusterState, nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
        """Return those of ``nodes`` that are silent and have not left, by name."""
        found = {node for node in nodes if node in state.nodes and state.nodes[node].state != "left"}
        return tuple(sorted(filter(self.is_silent, found), key=lambda node: state.nodes[node].name))
