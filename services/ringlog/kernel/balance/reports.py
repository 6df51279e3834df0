"""Load reports: the newest report of each node, and what of it the balancer uses.

A node reports its capacity and, for each table, what each of its tablets holds. The fold keeps the newest report of
each node; the balancer looks only at those within ``WINDOW_US`` before now. Time here is the broker's append time, so a
node's own clock moves nothing: it is looked at only to say that it is wrong.

**Rules that depend on the report alone** are applied when it arrives. A report that breaks one is ignored as a whole:
half a report would be half of a load. **Rules that depend on the state** are applied each time that the reports are
used. A report may arrive before the reader has applied the entry that it follows, and a table may be split after it.

::

    negative            an amount or capacity below 0
    no_capacity         a capacity of 0: loads are divided by it
    too_large           above 2^48 for a tablet, 2^60 for a node: sums must stay exact
    not_a_number        NaN, infinite, or no integer
    unknown_tablet      a number that the table has not, by the number of tablets that the report gives
    clock_ahead         the node's clock is ahead of the broker's by more than a minute
    older               the node has reported something newer
    unknown_node        no such node was ever registered
    unknown_table       no table of that id is or was

A table is known by its id, since its name may be used again, and its tablets by how many there are. Amounts from
before a split or merge are no sizes of tablets: the host is incomplete until its next report. The bytes of the whole
table are known all the same, so they are converted for the sizing.

An ignored report is kept with its code until the node sends a good one, or for ``WINDOW_US``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from ringlog.kernel.balance.model import BYTES, LOADS, MeasuredLoads
from ringlog.kernel.balance.sizing import COUNT_MAX
from ringlog.kernel.values import Micros, NodeId

WINDOW_US: Final = 180_000_000
"""Three times the period of reports: who is silent longer counts as not measured."""

CLOCK_AHEAD_US: Final = 60_000_000
AMOUNT_MAX: Final = 1 << 48
CAPACITY_MAX: Final = 1 << 60

REPORT_CODES: Final = (
    "negative", "no_capacity", "too_large", "not_a_number", "unknown_tablet", "clock_ahead", "older", "unknown_node",
    "unknown_table",
)  # fmt: skip

UNREGISTERED: Final[NodeId] = ""
"""Key of the ignored records without a node, and of those of too many nodes that are not known."""
STRANGERS_MAX: Final = 100
"""The most entries for nodes that are not registered."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What ``node`` said at ``at`` by its own clock. ``loads``: kind of load, table's id, tablet: amount; ``counts``:
    table's id: how many tablets it had.

    Amounts are whatever the record held: ``fold_report`` is where they are judged.
    """

    node: NodeId
    at: Micros
    capacity: object
    loads: Mapping[str, Mapping[str, Mapping[int, object]]]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReportBasis:
    """The part of the state that reports are held against.

    ``nodes``: those that have not left; ``left``: those that have. ``tables``: id to name and number of tablets;
    ``dropped``: ids of all other tables that are or were.
    """

    nodes: Collection[NodeId]
    tables: Mapping[str, tuple[str, int]]
    dropped: Collection[str] = ()
    left: Collection[NodeId] = ()


@dataclass(frozen=True, slots=True)
class AcceptedReport:
    """A node's newest report, when the broker appended it."""

    report: LoadReport
    appended: Micros


@dataclass(frozen=True, slots=True)
class IgnoredReport:
    """Why the last report of a node is ignored, and when the broker appended it."""

    code: str
    appended: Micros


@dataclass(frozen=True, slots=True)
class Reports:
    """The newest report of each node; the last ignored one of each node that has sent no good one since."""

    newest: Map[NodeId, AcceptedReport] = field(default_factory=Map)
    ignored: Map[NodeId, IgnoredReport] = field(default_factory=Map)

    @property
    def now(self) -> Micros:
        """When the broker appended the newest one."""
        times = [one.appended for kept in (self.newest, self.ignored) for one in kept.values()]
        return max(times, default=0)


def fold_report(reports: Reports, report: LoadReport, appended: Micros, basis: ReportBasis) -> Reports:
    """The reports with one more; it never raises, whatever the record held."""
    if report.node not in basis.nodes:
        is_one_more = report.node not in reports.ignored and len(reports.ignored) >= len(basis.nodes) + STRANGERS_MAX
        node = UNREGISTERED if is_one_more else report.node
        return reports if report.node in basis.left else ignore(reports, node, "unknown_node", appended)
    if code := _fault(reports, report, appended):
        assert code in REPORT_CODES, code
        return ignore(reports, report.node, code, appended)
    newest = reports.newest.set(report.node, AcceptedReport(report, appended))
    return Reports(newest, reports.ignored.delete(report.node) if report.node in reports.ignored else reports.ignored)


def ignore(reports: Reports, node: NodeId, code: str, appended: Micros) -> Reports:
    """The reports after one that is ignored."""
    return Reports(reports.newest, reports.ignored.set(node, IgnoredReport(code, appended)))


def within_window(reports: Reports, now: Micros, basis: ReportBasis) -> dict[NodeId, MeasuredLoads]:
    """Loads that nodes reported in the last ``WINDOW_US``, of the tables and tablets that there are now."""
    return {
        node: measured_of(found.report, basis)
        for node, found in sorted(reports.newest.items())
        if node in basis.nodes and found.appended >= now - WINDOW_US and not _is_foreign(found.report, basis)
    }


def ignored_within_window(reports: Reports, now: Micros, basis: ReportBasis) -> Iterator[tuple[NodeId, str]]:
    """Node and code of each report that is ignored; the node is ``UNREGISTERED`` if it is not known."""
    strangers = set()
    for node, one in sorted(reports.ignored.items()):
        if one.appended < now - WINDOW_US or node in basis.left:
            continue
        if node in basis.nodes:
            yield node, one.code
        else:
            strangers.add(one.code)
    yield from ((UNREGISTERED, code) for code in sorted(strangers))
    for node, found in sorted(reports.newest.items()):
        if node in basis.nodes and found.appended >= now - WINDOW_US and _is_foreign(found.report, basis):
            yield node, "unknown_table"


def measured_of(report: LoadReport, basis: ReportBasis) -> MeasuredLoads:
    """The loads of the present tablets; tables are known by name from here on."""
    loads: dict[str, dict[str, Mapping[int, int]]] = {}
    earlier: dict[str, Mapping[int, int]] = {}
    for kind, tables in report.loads.items():
        loads[kind] = {}
        for table, found in tables.items():
            name, count = basis.tables.get(table, ("", 0))
            amounts: Mapping[int, int] = found  # type: ignore[assignment]  # _fault has looked at each amount
            if count == report.counts[table]:
                loads[kind][name] = amounts
            elif count and kind == BYTES:
                earlier[name] = recut(amounts, report.counts[table], count)
    assert report.capacity is None or isinstance(report.capacity, int)
    return MeasuredLoads(report.capacity, loads, earlier)


def recut(amounts: Mapping[int, int], before: int, now: int) -> Mapping[int, int]:
    """Amounts of ``before`` tablets as those of ``now`` tablets, which came from them by splits or merges.

    A split divides an amount equally. A merge adds the amounts of siblings, if all are known. Otherwise none is known.
    """
    if before == now:
        return amounts
    if now > before:
        parts = now // before
        if before * parts != now or parts & (parts - 1):
            return {}
        return {
            number * parts + part: amount // parts + (part < amount % parts)
            for number, amount in amounts.items()
            for part in range(parts)
        }
    bits, left = 0, before
    while left > now:
        bits, left = bits + 1, -(-left // 2)
    if left != now:
        return {}
    found: dict[int, int] = {}
    parts_of: dict[int, int] = {}
    for number, amount in amounts.items():
        found[number >> bits] = found.get(number >> bits, 0) + amount
        parts_of[number >> bits] = parts_of.get(number >> bits, 0) + 1
    return {
        number: amount
        for number, amount in found.items()
        if parts_of[number] == min(before, (number + 1) << bits) - (number << bits)
    }


def _is_foreign(report: LoadReport, basis: ReportBasis) -> bool:
    """Whether it names a table that never was, as far as is known now."""
    return any(table not in basis.tables and table not in basis.dropped for table in report.counts)


def _fault(reports: Reports, report: LoadReport, appended: Micros) -> str:
    """The first rule that the report itself breaks; empty if it keeps them."""
    if report.at > appended + CLOCK_AHEAD_US:
        return "clock_ahead"
    last = reports.newest.get(report.node)
    if last is not None and (appended, report.at) < (last.appended, last.report.at):
        return "older"
    if report.capacity is not None and (code := _number_fault(report.capacity, CAPACITY_MAX)):
        return code
    if report.capacity == 0:
        return "no_capacity"
    for kind in LOADS:
        for table, found in report.loads.get(kind, {}).items():
            if code := _table_fault(found, report.counts.get(table, 0)):
                return code
    return ""


def _table_fault(found: Mapping[int, object], count: int) -> str:
    if not 1 <= count <= COUNT_MAX:
        return "unknown_tablet"
    for number, amount in found.items():
        if not 0 <= number < count:
            return "unknown_tablet"
        if code := _number_fault(amount, AMOUNT_MAX):
            return code
    return ""


def _number_fault(amount: object, most: int) -> str:
    if not isinstance(amount, int) or isinstance(amount, bool):
        return "not_a_number"
    return "negative" if amount < 0 else "too_large" if amount > most else ""
