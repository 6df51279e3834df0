"""Load reports: who is believed, and the newest report of each node within a window.

A node reports its capacity and, for each table, what each of its tablets holds. The fold keeps the newest report of
each node; the balancer looks only at those within ``WINDOW_US`` before now. Time here is the broker's append time, so a
node's own clock moves nothing: it is looked at only to say that it is wrong.

A report that breaks a rule is ignored as a whole, with a code, and counted: half a report would be half of a load. The
state of the cluster is asked for nodes and tables; a table that was dropped a moment ago is left out of the report, one
that never was makes it foreign.

::

    negative            an amount or capacity below 0
    too_large           above 2^48 for a tablet, 2^60 for a node: sums must stay exact
    not_a_number        NaN, infinite, or no integer
    unknown_node        not in the directory, or it has left
    unknown_table       no table of that name is or was
    unknown_tablet      a number that the table has not
    clock_ahead         the node's clock is ahead of the broker's by more than a minute
    older               the node has reported something newer
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from ringlog.kernel.balance.model import LOADS, MeasuredLoads
from ringlog.kernel.values import Micros, NodeId

WINDOW_US: Final = 180_000_000
"""Three times the period of reports: who is silent longer counts as not measured."""

CLOCK_AHEAD_US: Final = 60_000_000
AMOUNT_MAX: Final = 1 << 48
CAPACITY_MAX: Final = 1 << 60

REPORT_CODES: Final = (
    "negative", "too_large", "not_a_number", "unknown_node", "unknown_table", "unknown_tablet", "clock_ahead", "older",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What ``node`` said at ``at`` by its own clock. ``loads``: kind of load, table, tablet: amount.

    Amounts are whatever the record held: ``fold_report`` is where they are judged.
    """

    node: NodeId
    at: Micros
    capacity: object
    loads: Mapping[str, Mapping[str, Mapping[int, object]]]


@dataclass(frozen=True, slots=True)
class ReportBasis:
    """Of the state, what reports are held against: nodes that have not left, tablets of each table, dropped tables."""

    nodes: Collection[NodeId]
    counts: Mapping[str, int]
    dropped: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Believed:
    """A node's newest report, when the broker appended it, and its clock then."""

    measured: MeasuredLoads
    appended: Micros
    at: Micros


@dataclass(frozen=True, slots=True)
class Reports:
    """The newest report of each node; how many were ignored, by code."""

    newest: Map[NodeId, Believed] = field(default_factory=Map)
    ignored: Map[str, int] = field(default_factory=Map)


def fold_report(reports: Reports, report: LoadReport, appended: Micros, known: ReportBasis) -> Reports:
    """The reports with one more; it never raises, whatever the record held."""
    code = _fault(reports, report, appended, known)
    if code:
        assert code in REPORT_CODES, code
        return Reports(reports.newest, reports.ignored.set(code, reports.ignored.get(code, 0) + 1))
    loads = {
        kind: {table: dict(found) for table, found in tables.items() if table in known.counts}
        for kind, tables in report.loads.items()
    }
    assert isinstance(report.capacity, int)
    measured = MeasuredLoads(report.capacity, loads)  # type: ignore[arg-type]  # _fault has looked at each amount
    return Reports(reports.newest.set(report.node, Believed(measured, appended, report.at)), reports.ignored)


def within_window(reports: Reports, now: Micros) -> dict[NodeId, MeasuredLoads]:
    """What nodes reported in the last ``WINDOW_US``, by node."""
    return {node: found.measured for node, found in sorted(reports.newest.items()) if found.appended >= now - WINDOW_US}


def _fault(reports: Reports, report: LoadReport, appended: Micros, known: ReportBasis) -> str:
    """The first rule that the report breaks; empty if it keeps them."""
    if report.node not in known.nodes:
        return "unknown_node"
    if report.at > appended + CLOCK_AHEAD_US:
        return "clock_ahead"
    last = reports.newest.get(report.node)
    if last is not None and (appended, report.at) < (last.appended, last.at):
        return "older"
    if code := _number_fault(report.capacity, CAPACITY_MAX):
        return code
    for kind in LOADS:
        for table, found in report.loads.get(kind, {}).items():
            if code := _table_fault(table, found, known):
                return code
    return ""


def _table_fault(table: str, found: Mapping[int, object], known: ReportBasis) -> str:
    count = known.counts.get(table)
    if count is None and table not in known.dropped:
        return "unknown_table"
    for number, amount in found.items():
        if count is not None and not 0 <= number < count:
            return "unknown_tablet"
        if code := _number_fault(amount, AMOUNT_MAX):
            return code
    return ""


def _number_fault(amount: object, most: int) -> str:
    if not isinstance(amount, int) or isinstance(amount, bool):
        return "not_a_number"
    return "negative" if amount < 0 else "too_large" if amount > most else ""
