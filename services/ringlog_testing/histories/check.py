"""The check of a history, key by key. It explains the first key that is not linearizable.

key of        values all different, no cas     method
register      yes                              zones (n log n)
register      no                               search (exhaustive up to a limit)
log                                            epochs (n log n)
"""

from __future__ import annotations

from ringlog.kernel.values import replace
from ringlog_testing.histories import logs, search, zones
from ringlog_testing.histories.events import Op, Type
from ringlog_testing.histories.operations import ClientOperation, OperationHistory, is_register, until
from ringlog_testing.histories.verdict import (
    HistoryReport,
    KeyReport,
    KeyVerdict,
    Linearizability,
    Method,
    ShortestCounterexample,
)

CONFIGURATIONS_MAX = 2_000_000
"""Limit of a key's search: a few seconds and less than a gigabyte."""
CORE_CONFIGURATIONS_MAX = 20_000
CORE_CHECKS_MAX = 300
"""Limits of the search for a minimal counterexample. Beyond them, the counterexample may not be minimal."""


def check(history: OperationHistory, limit: int = CONFIGURATIONS_MAX) -> HistoryReport:
    """Return whether a history is linearizable. ``limit``: configurations that the search of one key may visit."""
    keys = []
    for key, operations in history.keys:
        method, decision = decide(operations, limit)
        keys.append((KeyReport(key, method, len(operations), decision), operations))
    reports = tuple(report for report, _ in keys)
    verdicts = {report.decision.verdict for report in reports}
    broken = [one for one in keys if one[0].decision.verdict is Linearizability.NOT_LINEARIZABLE]
    if broken:
        first = min(broken, key=lambda one: (one[0].decision.line, one[0].key))
        return HistoryReport(Linearizability.NOT_LINEARIZABLE, reports, explain(*first))
    verdict = Linearizability.UNDECIDED if Linearizability.UNDECIDED in verdicts else Linearizability.LINEARIZABLE
    return HistoryReport(verdict, reports, None)


def decide(operations: tuple[ClientOperation, ...], limit: int = CONFIGURATIONS_MAX) -> tuple[Method, KeyVerdict]:
    """Decide one key's operations by the suitable method. A negative decision has its line."""
    if not is_register(operations):
        return Method.EPOCHS, logs.decide(operations)
    if not zones.applies(operations):
        return Method.SEARCH, search.decide(operations, limit)
    decision = zones.decide(operations)
    if decision.verdict is Linearizability.NOT_LINEARIZABLE:
        line = _first_line(operations)
        # The decision at this line may name fewer culprits than the decision at the end.
        decision = replace(zones.decide(until(operations, line)), line=line)
    return Method.ZONES, decision


def _first_line(operations: tuple[ClientOperation, ...]) -> int:
    """Return the first return that makes the history non-linearizable. Each prefix of a linearizable history is
    linearizable.
    """
    lines = sorted(one.returned for one in operations if one.returned is not None)
    low, high = 0, len(lines) - 1
    while low < high:
        middle = (low + high) // 2
        if zones.decide(until(operations, lines[middle])).verdict is Linearizability.NOT_LINEARIZABLE:
            high = middle
        else:
            low = middle + 1
    return lines[low]


def explain(report: KeyReport, operations: tuple[ClientOperation, ...]) -> ShortestCounterexample:
    """Return the smallest counterexample found in a key that is not linearizable."""
    decision = report.decision
    assert decision.verdict is Linearizability.NOT_LINEARIZABLE, "the history is not linearizable"
    if report.method is Method.EPOCHS:
        return ShortestCounterexample(report.key, decision.line, decision.why, decision.culprits, True)
    completed = tuple(one for one in until(operations, decision.line) if _matters(one))
    core, is_least = _core(completed, decision)
    _, last = decide(core, CORE_CONFIGURATIONS_MAX)
    why = last.why or decision.why or "no order of these operations explains every answer"
    return ShortestCounterexample(report.key, decision.line, why, core, is_least)


def _matters(one: ClientOperation) -> bool:
    return one.type is not Type.FAIL and not (one.type is Type.INFO and one.op is Op.READ)


def _core(completed: tuple[ClientOperation, ...], decision: KeyVerdict) -> tuple[tuple[ClientOperation, ...], bool]:
    """Remove operations while the others stay non-linearizable. Return them, and whether the result is minimal."""
    budget = _Budget(CORE_CHECKS_MAX)
    if decision.culprits and budget.is_broken(decision.culprits):
        completed = decision.culprits
    if not any(one.op is Op.CAS for one in completed):
        completed = _without(completed, _clusters(completed), budget)
    completed = _without(completed, [(one,) for one in completed if _observes(one)], budget)
    return completed, budget.left > 0


class _Budget:
    """The number of checks left for minimizing the counterexample."""

    def __init__(self, left: int) -> None:
        self.left = left

    def is_broken(self, rest: tuple[ClientOperation, ...]) -> bool:
        """Return whether these operations are not linearizable. Return False if no checks are left."""
        if self.left == 0 or not rest:
            return False
        self.left -= 1
        found = zones.decide(rest) if zones.applies(rest) else search.decide(rest, CORE_CONFIGURATIONS_MAX)
        return found.verdict is Linearizability.NOT_LINEARIZABLE


def _without(
    completed: tuple[ClientOperation, ...], units: list[tuple[ClientOperation, ...]], budget: _Budget
) -> tuple[ClientOperation, ...]:
    """Remove units, large groups first, while the others stay non-linearizable."""
    size = max(1, len(units) // 2)
    while units and budget.left:
        left_out, place = False, 0
        while place < len(units):
            gone = {one.invoked for unit in units[place : place + size] for one in unit}
            rest = tuple(one for one in completed if one.invoked not in gone)
            if budget.is_broken(rest):
                completed, units, left_out = rest, units[:place] + units[place + size :], True
            else:
                place += size
        if size == 1 and not left_out:
            break
        size = max(1, size // 2)
    return completed


def _clusters(operations: tuple[ClientOperation, ...]) -> list[tuple[ClientOperation, ...]]:
    """Return each value's write and reads. Without swaps, removing one value never breaks the order of the others."""
    values: dict[zones.Name, list[ClientOperation]] = {}
    for one in operations:
        values.setdefault(zones.name_of(one.asked if one.op is Op.WRITE else one.answer), []).append(one)
    return [tuple(found) for found in values.values()]


def _observes(one: ClientOperation) -> bool:
    """Return whether an operation changes nothing. Such operations can be removed from an order without breaking it."""
    return one.op is Op.READ or one.answer is False
