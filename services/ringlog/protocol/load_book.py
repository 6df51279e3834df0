"""The newest load of each node: the fold of the topic ``load``, in the order of its records.

The topic is compacted by node, so a reader that starts reads it from its beginning and knows what the one before knew.
Time is the broker's; what does not count, ``ringlog.kernel.balance.reports`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.balance.advice import known_in
from ringlog.kernel.balance.model import BYTES, CPU, READS, WRITES, MeasuredLoads
from ringlog.kernel.balance.reports import LoadReport, Reports, fold_report, within_window
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros, NodeId
from ringlog.wire.records import NodeLoad, TableLoad

UNREADABLE: Final = "unreadable"
"""The code of a record that is no report."""
NOT_BELIEVED: Final = "load_not_believed"
"""The code of a report that has no code by the key of its node, where these are checked."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A node's word, and when the broker appended it. ``load`` None: the record was none, for the reason ``code``."""

    load: NodeLoad | None
    appended: Micros
    code: str = UNREADABLE


def take(reports: Reports, heard: Iterable[Heard], state: ClusterState) -> Reports:
    """The reports with these, held against the state."""
    known = known_in(state)
    for one in heard:
        if one.load is None:
            ignored = reports.ignored.set(one.code, reports.ignored.get(one.code, 0) + 1)
            reports = Reports(reports.newest, ignored)
        else:
            reports = fold_report(reports, report_of(one.load), one.appended, known)
    return reports


def measured(reports: Reports) -> dict[NodeId, MeasuredLoads]:
    """What counts, by node: the reports that are not much older than the newest one."""
    return within_window(reports, max((one.appended for one in reports.newest.values()), default=0))


def report_of(load: NodeLoad) -> LoadReport:
    """The report that a record holds. Amounts that do not fit the tablets make it one that is ignored."""
    loads: dict[str, dict[str, Mapping[int, object]]] = {BYTES: {}, READS: {}, WRITES: {}, CPU: {}}
    for table in load.tables:
        for kind, amounts in _columns(table):
            fits = len(amounts) == len(table.tablets)
            found = zip(table.tablets, amounts if fits else [None] * len(table.tablets), strict=True)
            loads[kind][table.table] = dict(found)
    return LoadReport(load.node, load.at, load.capacity, loads)


def _columns(table: TableLoad) -> Iterable[tuple[str, tuple[int, ...]]]:
    rates = ((READS, table.reads), (WRITES, table.writes), (CPU, table.cpu))
    return ((BYTES, table.bytes), *((kind, amounts) for kind, amounts in rates if amounts))
