"""All plans of a cluster, one after the other, and what came of it in numbers.

Many ranges of many plans go through the same history but for the names of the nodes; each distinct history is checked
once and counted as often as it occurs. A conflict is reported with the first place where it occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import ClusterState
from ringlog.sim.quorums.case import Case, CaseOptions
from ringlog.sim.quorums.check import Conflict, QuorumVerdict, check
from ringlog.sim.quorums.model import QuorumRules, RangeHistory
from ringlog.sim.quorums.plans import KINDS
from ringlog.sim.quorums.timeline import Placed, TooManyMembers, histories
from ringlog.sim.quorums.walk import Fault, WalkWorld, cancels, drive, faults

PLANS_MAX = 20_000
"""Plans of one kind: a few minutes of work."""

Progress = Callable[[str, int, int], None]
"""Reported now and then: kind, plans gone through, plans in all."""


class TooMuch(Exception):
    """The cluster has more plans, or larger groups, than can be gone through. ``code`` is stable."""

    code = "too_many_plans"


class NotQuiet(Exception):
    """The cluster is in the middle of an operation. ``code`` is stable."""

    code = "operations_in_flight"


@dataclass(frozen=True, slots=True)
class QuorumConflict:
    """A conflict, where it was met first, and in how many ranges of all plans it was (``times``)."""

    title: str
    placed: Placed
    conflict: Conflict
    times: int


@dataclass(frozen=True, slots=True)
class PlanFault:
    """A fault of a plan, with the plan's title."""

    title: str
    fault: Fault


@dataclass(slots=True)
class Findings:
    """What was looked at for one kind of operation, and what was found.

    ``refused``: requests that the cluster cannot be asked for, as their rejections say. ``unpromised``: plans that
    admit loss, so that only layouts and cancels were looked at. ``entries``: applied entries, ``ranges``: ranges
    that changed, ``distinct``: the histories among them, ``views`` and ``pairs``: of those of all ranges,
    ``cancels``: cancels tried.
    """

    kind: str
    plans: int = 0
    refused: int = 0
    unpromised: int = 0
    entries: int = 0
    ranges: int = 0
    distinct: set[RangeHistory] = field(default_factory=set)
    views: int = 0
    pairs: int = 0
    cancels: int = 0
    broken: list[PlanFault] = field(default_factory=list)
    counterexamples: dict[tuple[str, str], QuorumConflict] = field(default_factory=dict)


class Explorer:
    """Goes through plans under a set of rules; keeps what it found out about histories."""

    def __init__(self, rules: QuorumRules) -> None:
        self.rules = rules
        self._known: dict[RangeHistory, QuorumVerdict] = {}

    def plans(self, state: ClusterState, kind: str, options: CaseOptions, progress: Progress | None = None) -> Findings:
        """Every plan of one kind on a quiet cluster. Raises NotQuiet, TooMuch."""
        if flying := in_flight(state):
            raise NotQuiet(f"{flying[0].id} is in {flying[0].stage}: finish or cancel it first")
        cases = list(islice(KINDS[kind](state, options), PLANS_MAX + 1))
        if len(cases) > PLANS_MAX:
            raise TooMuch(
                f"there are more plans of kind {kind} than {PLANS_MAX}, only the first ones are gone through: "
                "try fewer new tokens, or a smaller cluster"
            )
        findings = Findings(kind)
        for done, case in enumerate(cases):
            if progress is not None:
                progress(kind, done, len(cases))
            self._plan(state, case, findings)
        return findings

    def drawn(self, given: Iterable[tuple[str, Placed]]) -> Findings:
        """Histories that somebody drew."""
        findings = Findings("drawn by hand")
        for title, placed in given:
            findings.plans += 1
            self._range(title, placed, findings)
        return findings

    def _plan(self, state: ClusterState, case: Case, findings: Findings) -> None:
        world = WalkWorld(state)
        for command in case.ground:
            outcome = world.apply(command)
            assert outcome.kind is OutcomeKind.APPLIED, f"{case.title}: {outcome.code}: {outcome.detail}"
        steps, fault = drive(world, case.request)
        if fault is not None and fault.code in case.refusals:
            findings.refused += 1
            return
        findings.plans += 1
        findings.unpromised += not case.promised
        findings.entries += len(steps) - 1
        tried = list(cancels(steps))
        findings.cancels += len(tried)
        found = [fault, *tried] if fault is not None else [*faults(steps), *tried]
        findings.broken += [PlanFault(case.title, one) for one in found if one is not None]
        try:
            for placed in histories(steps) if case.promised else ():
                self._range(case.title, placed, findings)
        except TooManyMembers as many:
            raise TooMuch(str(many)) from None

    def _range(self, title: str, placed: Placed, findings: Findings) -> None:
        history = placed.history
        if history not in self._known:
            self._known[history] = check(history, self.rules)
        verdict = self._known[history]
        findings.ranges += 1
        findings.distinct.add(history)
        findings.views += len(verdict.history.views)
        findings.pairs += verdict.pairs
        for conflict in verdict.conflicts:
            key = (conflict.kind, conflict.level)
            first = findings.counterexamples.get(key)
            if first is None:
                first = QuorumConflict(title, replace(placed, history=verdict.history), conflict, 0)
            findings.counterexamples[key] = replace(first, times=first.times + 1)
