"""Several operations in flight, sequential and concurrent; each range's history is checked as if it were alone.

A random walk: requests of every kind, nodes that die and return, steps in any order, cancels. Each finished operation
is checked for every quorum in every pair of views, on all ranges that it had locked. A write that no quorum knows after
one operation can harm the next only if a check of that operation failed first.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import LockedRange
from ringlog.kernel.operations import plan as planner
from ringlog.kernel.operations.stages import CANCELLED, FINISHED, in_flight, is_ended
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import Command
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog_testing.quorums import plans
from ringlog_testing.quorums.case import Case, CaseOptions
from ringlog_testing.quorums.check import APART, check
from ringlog_testing.quorums.description import state_of
from ringlog_testing.quorums.model import QuorumRules, RangeHistory
from ringlog_testing.quorums.timeline import histories
from ringlog_testing.quorums.walk import WalkStep, WalkWorld, acknowledgements, faults

KEYSPACES = (
    ({"strategy": "network", "datacenters": {"dc1": 3}}, {"strategy": "simple", "factor": 2}),
    ({"strategy": "network", "datacenters": {"dc1": 2, "dc2": 1}}, {"strategy": "entire"}),
    ({"strategy": "simple", "factor": 3}, {"strategy": "entire"}),
    ({"strategy": "network", "datacenters": {"dc1": ["r1", "r2"]}},),
)
ACTIONS = 60
KINDS = [kind for kind in plans.KINDS if kind != "assassinate"]


@dataclass
class Followed:
    """An operation in flight: its locked ranges and its steps so far."""

    case: Case
    locks: tuple[LockedRange, ...]
    steps: list[WalkStep]


@dataclass
class Walk:
    """A cluster and its operations in flight."""

    dice: random.Random
    world: WalkWorld
    followed: dict[str, Followed] = field(default_factory=dict)
    known: set[RangeHistory] = field(default_factory=set)
    ended: Counter[str] = field(default_factory=Counter)
    together: int = 0

    def request(self) -> None:
        kind = self.dice.choice(KINDS)
        cases = list(plans.KINDS[kind](self.world.state, CaseOptions()))
        if not cases:
            return
        case = self.dice.choice(cases)
        before = self.world.state
        if any(self.world.apply(command).kind is not OutcomeKind.APPLIED for command in case.ground):
            return
        ground = self.world.state
        if self.world.apply(case.request).kind is not OutcomeKind.APPLIED:
            self.ended["refused"] += 1
            return
        for name in set(self.world.state.operations) - set(before.operations):
            operation = self.world.state.operations[name]
            self.followed[name] = Followed(
                case, operation.locks, [WalkStep(ground, None), WalkStep(self.world.state, operation)]
            )
            self.together = max(self.together, len(self.followed))

    def step(self) -> bool:
        """Apply one of the coordinator's proposals; return False if there is none."""
        state = self.world.state
        proposals = propose(CoordinatorView(state, acknowledgements(state, state.time), state.epoch, state.time))
        if proposals:
            self.apply(self.dice.choice(proposals).command)
        return bool(proposals)

    def apply(self, command: Command) -> None:
        assert self.world.apply(command).kind is OutcomeKind.APPLIED, command
        for name, one in list(self.followed.items()):
            operation = self.world.state.operations[name]
            if operation.stage != one.steps[-1].stage:
                one.steps.append(WalkStep(self.world.state, operation))
            if is_ended(operation):
                del self.followed[name]
                self.ended[operation.stage] += 1
                if operation.stage == FINISHED and one.case.promised:
                    self.check(one)

    def check(self, one: Followed) -> None:
        for placed in histories(one.steps):
            key = placed.replication.split(">")[0]
            mine = any(lock.replication == key and in_range(placed.end, lock.start, lock.end) for lock in one.locks)
            if mine and placed.history not in self.known:
                self.known.add(placed.history)
                kinds = {conflict.kind for conflict in check(placed.history, QuorumRules()).conflicts}
                assert kinds <= ({APART} if died_meanwhile(one) else set()), (kinds, one.case.title, placed)

    def cancel(self) -> None:
        flying = in_flight(self.world.state)
        if flying:
            name = self.dice.choice(flying).id
            state, outcome = self.world.would(CancelOperation(name, "tried"))
            if outcome.kind is OutcomeKind.APPLIED:
                assert state.operations[name].stage == CANCELLED
                self.apply(CancelOperation(name, "tried"))

    def revive(self) -> None:
        for node in sorted(self.world.state.nodes.values(), key=lambda one: one.id):
            if node.down and node.state != "left":
                self.world.apply(DeclareUp(node.id, ""))


def died_meanwhile(one: Followed) -> bool:
    """Return whether the operation's own node was declared down meanwhile; then the operation continues without it.

    If it was the only replica of its datacenter, no other node can acknowledge, and safety depends on that declaration
    alone. If the node still answers, a late coordinator may read from it.
    """
    operation = one.steps[-1].operation
    assert operation is not None
    parting = operation.replaced or operation.node
    return bool(parting) and one.steps[-1].state.nodes[parting].down and not one.steps[0].state.nodes[parting].down


def walk_of(seed: int) -> Walk:
    dice = random.Random(seed)
    nodes = [
        {
            "name": f"n{number}",
            "tokens": [1_000 * number],
            "datacenter": f"dc{1 + number % 2}",
            "rack": f"r{number % 3}",
        }
        for number in range(1, 10)
    ]
    if seed % len(KEYSPACES) in (0, 3):
        for number, node in enumerate(nodes):
            node.update(datacenter="dc1", rack=f"r{1 + number % 3}")
    keyspaces = [{"name": f"k{n}", "replication": one} for n, one in enumerate(KEYSPACES[seed % len(KEYSPACES)])]
    walk = Walk(dice, WalkWorld(state_of({"nodes": nodes, "keyspaces": keyspaces})))
    for _ in range(ACTIONS):
        dice.choice(
            (walk.request, walk.request, walk.step, walk.step, walk.step, walk.step, walk.cancel, walk.revive)
        )()
    while in_flight(walk.world.state):
        walk.revive()
        if not walk.step():
            break
    return walk


@pytest.mark.parametrize("first", range(0, 16, 4))
def test_random_walks(first: int) -> None:
    """Run four walks, one with each set of keyspaces."""
    walks = [walk_of(seed) for seed in range(first, first + 4)]
    for walk in walks:
        assert in_flight(walk.world.state) == ()
        quiet = WalkStep(walk.world.state, None)
        assert list(faults((quiet, quiet))) == []
    assert sum(walk.ended[FINISHED] for walk in walks) > 4
    assert max(walk.together for walk in walks) > 1
    assert len({history for walk in walks for history in walk.known}) > 4


def test_a_walk_finds_a_planted_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted plan asks one node of a quorum that it should merge."""
    real = planner.quorum_sources
    monkeypatch.setattr(planner, "quorum_sources", lambda *arguments: real(*arguments)[:1])
    with pytest.raises(AssertionError, match="kept"):
        [walk_of(seed) for seed in range(20)]
