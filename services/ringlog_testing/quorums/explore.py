"""A run over all plans of a cluster and its result in numbers.

Many ranges of many plans have equal histories, except for the names of the nodes. Each distinct history is checked once
and counted as often as it occurs. A conflict is reported with its first place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import in_recovery
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import Value, replace
from ringlog_testing.quorums.case import Case, CaseOptions, Cases
from ringlog_testing.quorums.check import Conflict, QuorumVerdict, check
from ringlog_testing.quorums.model import QuorumRules, RangeHistory
from ringlog_testing.quorums.plans import KINDS
from ringlog_testing.quorums.service_timeline import KnownGates
from ringlog_testing.quorums.service_timeline import histories as service_histories
from ringlog_testing.quorums.tablet_plans import KINDS as TABLET_KINDS
from ringlog_testing.quorums.tablet_plans import TabletCase, TabletCases, begin, walks
from ringlog_testing.quorums.tablet_timeline import histories as tablet_histories
from ringlog_testing.quorums.timeline import Placed, TooManyMembers, histories
from ringlog_testing.quorums.walk import WAITS, Fault, WalkWorld, cancels, drive, faults

DRAWN = "drawn by hand"
"""The kind of hand-written histories."""
PLANS_MAX = 20_000
"""Maximum plans of one kind: a few minutes of work."""

Progress = Callable[[str, int, int], None]
"""Reported repeatedly: kind, number of finished plans, number of all plans."""


class TooMuch(Exception):
    """The cluster has too many plans or too large groups for an exhaustive check. ``code`` is stable."""

    code = "too_many_plans"


class NotQuiet(Exception):
    """The cluster has an operation in flight. ``code`` is stable."""

    code = "operations_in_flight"


class QuorumConflict(Value):
    """A conflict, its first place, and its number of occurrences in the ranges of all plans (``times``)."""

    title: str
    placed: Placed
    conflict: Conflict
    times: int


class PlanFault(Value):
    """A fault of a plan, with the plan's title."""

    title: str
    fault: Fault


@dataclass(slots=True)
class Findings:
    """The checks and results for one kind of operation.

    ``refused``: rejected requests that the cluster does not allow. ``unpromised``: plans that admit loss, so only
    layouts and cancels were checked. ``waiting``: plans that wait forever, by the code in ``WAITS``; they are not
    counted as plans. ``entries``: applied entries. ``ranges``: changed ranges. ``distinct``: their distinct histories.
    ``views`` and ``pairs``: sums over all ranges. ``cancels``: tried cancels.
    """

    kind: str
    plans: int = 0
    refused: int = 0
    unpromised: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    ranges: int = 0
    distinct: set[RangeHistory] = field(default_factory=set)
    views: int = 0
    pairs: int = 0
    cancels: int = 0
    broken: list[PlanFault] = field(default_factory=list)
    counterexamples: dict[tuple[str, str], QuorumConflict] = field(default_factory=dict)


class Explorer:
    """A checker of plans under a set of rules. It caches the results of histories."""

    def __init__(self, rules: QuorumRules) -> None:
        self.rules = rules
        self._verdicts: dict[RangeHistory, QuorumVerdict] = {}
        self._service_gates: KnownGates = {}

    def plans(self, state: ClusterState, kind: str, options: CaseOptions, progress: Progress | None = None) -> Findings:
        """Check every plan of one kind on a quiet cluster. Raise NotQuiet or TooMuch."""
        if flying := in_flight(state):
            raise NotQuiet(f"{flying[0].id} is in {flying[0].stage}: finish or cancel it first")
        if moving := next(iter(transitions(state)), None):
            tablets, transition = moving
            raise NotQuiet(
                f"{tablets.table}/{transition.tablet} is in {transition.stage}: wait until the migration ends"
            )
        if recovery := in_recovery(state):
            raise NotQuiet(f"a recovery has been active since epoch {recovery.entered}: end it first")
        every: Cases | TabletCases = KINDS[kind] if kind in KINDS else TABLET_KINDS[kind]
        cases: list[Case | TabletCase] = list(islice(every(state, options), PLANS_MAX + 1))
        if len(cases) > PLANS_MAX:
            raise TooMuch(
                f"there are more plans of kind {kind} than {PLANS_MAX}, and only the first ones would be "
                "checked: try fewer new tokens, or a smaller cluster"
            )
        findings = Findings(kind)
        for done, case in enumerate(cases):
            if progress is not None:
                progress(kind, done, len(cases))
            if isinstance(case, Case):
                self._plan(state, case, findings)
            else:
                self._tablet_plan(state, case, findings)
        return findings

    def drawn(self, given: Iterable[tuple[str, Placed]]) -> Findings:
        """Check hand-written histories."""
        findings = Findings(DRAWN)
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
        if fault is not None and fault.code in WAITS:
            findings.waiting[fault.code] += 1
            return
        findings.plans += 1
        findings.unpromised += not case.promised
        findings.entries += len(steps) - 1
        tried = list(cancels(steps))
        findings.cancels += len(tried)
        found = [fault, *tried] if fault is not None else [*faults(steps), *tried]
        findings.broken += [PlanFault(case.title, one) for one in found if one is not None]
        states = [step.state for step in steps]
        try:
            for placed in (*histories(steps), *service_histories(states, self._service_gates)) if case.promised else ():
                self._range(case.title, placed, findings)
            for placed in tablet_histories(states):
                self._range(case.title, placed, findings)
        except TooManyMembers as many:
            raise TooMuch(str(many)) from None

    def _tablet_plan(self, state: ClusterState, case: TabletCase, findings: Findings) -> None:
        """Check every path of a case: undisturbed, reverted, or with a node lost."""
        begun = begin(state, case)
        if isinstance(begun, Fault):
            findings.refused += 1
            return
        ways = list(walks(begun, case))
        if ways[0].fault is not None and ways[0].fault.code in WAITS:
            findings.waiting[ways[0].fault.code] += 1
            return
        findings.plans += 1
        for walk in ways:
            findings.cancels += walk.turned
            findings.entries += max(0, len(walk.states) - 1)
            if walk.fault is not None:
                findings.broken.append(PlanFault(case.title, walk.fault))
            for placed in (*tablet_histories(walk.states), *service_histories(walk.states, self._service_gates)):
                self._range(case.title, placed, findings)

    def _range(self, title: str, placed: Placed, findings: Findings) -> None:
        history = placed.history
        if history not in self._verdicts:
            self._verdicts[history] = check(history, self.rules)
        verdict = self._verdicts[history]
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
