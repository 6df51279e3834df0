"""Load reports: the newest report of each node, and the parts that the balancer uses.

A node reports its capacity and, for each table, the loads of its tablets. The fold keeps the newest report of each
node. The balancer uses only reports within ``WINDOW_US`` before now. Time is the broker's append time. A node's own
clock only serves to report that it is wrong, and to order reports appended at the same time.

**Rules that depend on the report alone** apply when it arrives. A report that breaks one is ignored as a whole, because
half a report would be half of a load. **Rules that depend on the state** apply each time the reports are used. A report
may arrive before the reader has applied the entry that it follows, and a table may be split after it.

``REPORT_CODES`` has the codes of the rules.

The table's id identifies it, since its name may be used again; the number of tablets identifies the tablets. Amounts
from before a split or merge are not sizes of tablets, so the host is incomplete until its next report. The bytes of the
whole table and its traffic are still known, and are converted for the sizing.

An ignored report is kept with its code until the node sends a good one, or for ``WINDOW_US``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from immutables import Map

from ringlog.kernel.balance.model import LOADS, MeasuredLoads
from ringlog.kernel.balance.sizing import COUNT_MAX
from ringlog.kernel.values import Micros, NodeId, Value, field

WINDOW_US: Final = 180_000_000
"""Three times the reporting period. A node that is silent for longer counts as not measured."""

CLOCK_AHEAD_US: Final = 60_000_000
AMOUNT_MAX: Final = 1 << 48
CAPACITY_MAX: Final = 1 << 60

REPORT_CODES: Final[Mapping[str, str]] = {
    "negative": "an amount or the capacity is below 0",
    "no_capacity": "the capacity is 0: loads are divided by it",
    "too_large": "a tablet has more than 2^48, or the node more than 2^60",
    "not_a_number": "an amount is not an integer",
    "unknown_tablet": "the table does not have a tablet of that number",
    "clock_ahead": "the node's clock is more than a minute ahead of the broker's",
    "older": "the node has sent a newer report",
    "unknown_node": "no such node was registered",
    "unknown_table": "no table has or had that id",
    "unreadable": "the record cannot be decoded",
    "load_not_believed": "its MAC is missing or wrong",
}
"""Why a report is ignored. A tablet's number is checked with the number of tablets in the report; amounts are limited
so that sums stay exact."""

UNREGISTERED: Final[NodeId] = ""
"""Key of the ignored records without a node, and of those of unknown nodes beyond ``STRANGERS_MAX``."""
STRANGERS_MAX: Final = 100
"""The most entries for nodes that are not registered."""


class LoadReport(Value):
    """A report of ``node``, made at ``at`` by its own clock.

    ``loads``: amount by kind of load, table id and tablet. ``counts``: number of tablets by table id. Amounts are
    unchecked values of the record; ``fold_report`` checks them.
    """

    node: NodeId
    at: Micros
    capacity: object
    loads: Mapping[str, Mapping[str, Mapping[int, object]]]
    counts: Mapping[str, int]


class ReportBasis(Value):
    """The part of the state that reports are checked against.

    ``nodes``: those that have not left; ``left``: those that have. ``tables``: id to name and number of tablets;
    ``dropped``: ids of all other tables that exist or existed.
    """

    nodes: Collection[NodeId]
    tables: Mapping[str, tuple[str, int]]
    dropped: Collection[str] = ()
    left: Collection[NodeId] = ()


class AcceptedReport(Value):
    """A node's newest report and its append time."""

    report: LoadReport
    appended: Micros


class IgnoredReport(Value):
    """The code and the append time of a node's last ignored report."""

    code: str
    appended: Micros


class Reports(Value):
    """The newest report of each node, and the last ignored report of each node that has sent no good one since."""

    newest: Map[NodeId, AcceptedReport] = field(default_factory=Map)
    ignored: Map[NodeId, IgnoredReport] = field(default_factory=Map)

    @property
    def now(self) -> Micros:
        """The append time of the newest report."""
        times = [one.appended for kept in (self.newest, self.ignored) for one in kept.values()]
        return max(times, default=0)


def fold_report(reports: Reports, report: LoadReport, appended: Micros, basis: ReportBasis) -> Reports:
    """Return the reports with one more. Never raises, even for unusable records."""
    if report.node not in basis.nodes:
        is_one_more = report.node not in reports.ignored and len(reports.ignored) >= len(basis.nodes) + STRANGERS_MAX
        node = UNREGISTERED if is_one_more else report.node
        return reports if report.node in basis.left else ignore(reports, node, "unknown_node", appended)
    if code := _fault(reports, report, appended):
        return ignore(reports, report.node, code, appended)
    newest = reports.newest.set(report.node, AcceptedReport(report, appended))
    return Reports(newest, reports.ignored.delete(report.node) if report.node in reports.ignored else reports.ignored)


def ignore(reports: Reports, node: NodeId, code: str, appended: Micros) -> Reports:
    """Return the reports after an ignored one."""
    return Reports(reports.newest, reports.ignored.set(node, IgnoredReport(code, appended)))


def within_window(reports: Reports, now: Micros, basis: ReportBasis) -> dict[NodeId, MeasuredLoads]:
    """Return the loads that nodes reported in the last ``WINDOW_US``, for present tables and tablets."""
    return {
        node: measured_of(found.report, basis)
        for node, found in sorted(reports.newest.items())
        if node in basis.nodes and found.appended >= now - WINDOW_US and not _is_foreign(found.report, basis)
    }


def ignored_within_window(reports: Reports, now: Micros, basis: ReportBasis) -> Iterator[tuple[NodeId, str]]:
    """Yield node and code of each ignored report; the node is ``UNREGISTERED`` if it is not known."""
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
    """Return the loads of the present tablets, with tables by name."""
    loads: dict[str, dict[str, Mapping[int, int]]] = {}
    earlier: dict[str, dict[str, Mapping[int, int]]] = {}
    for kind, tables in report.loads.items():
        loads[kind], earlier[kind] = {}, {}
        for table, found in tables.items():
            name, count = basis.tables.get(table, ("", 0))
            amounts: Mapping[int, int] = found  # type: ignore[assignment]  # _fault has looked at each amount
            if count == report.counts[table]:
                loads[kind][name] = amounts
            elif count:
                earlier[kind][name] = recut(amounts, report.counts[table], count)
    assert report.capacity is None or isinstance(report.capacity, int)
    return MeasuredLoads(report.capacity, loads, earlier)


def recut(amounts: Mapping[int, int], before: int, now: int) -> Mapping[int, int]:
    """Return amounts of ``before`` tablets as amounts of ``now`` tablets, after splits or merges.

    A split divides an amount equally. A merge adds the amounts of siblings, if all are known. Otherwise none is known.
    """
    assert before >= 1 <= now, "a table has at least one tablet"
    if before == now:
        return amounts
    if now > before:
        parts = now // before
        if before * parts != now or parts & (parts - 1):
            return {}
        divided = {
            number * parts + part: amount // parts + (part < amount % parts)
            for number, amount in amounts.items()
            for part in range(parts)
        }
        assert sum(divided.values()) == sum(amounts.values()), "a split keeps the sum"
        return divided
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
    assert sum(found.values()) == sum(amounts.values()), "a merge keeps the sum"
    return {
        number: amount
        for number, amount in found.items()
        if parts_of[number] == min(before, (number + 1) << bits) - (number << bits)
    }


def _is_foreign(report: LoadReport, basis: ReportBasis) -> bool:
    """Return whether the report names a table that, as far as is known now, never existed."""
    return any(table not in basis.tables and table not in basis.dropped for table in report.counts)


def _fault(reports: Reports, report: LoadReport, appended: Micros) -> str:
    """Return the first rule that the report itself breaks; empty if it breaks none."""
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
