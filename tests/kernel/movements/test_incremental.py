"""Incremental computations near the changed tokens equal the full ones: plans, composition, order, barriers.

The random runs of ``run`` compute each request with the naive model too.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.columns import blocks
from ringlog.kernel.commands.topology.movements import Move
from ringlog.kernel.encoding.decoder import decode_part
from ringlog.kernel.encoding.encoder import encode, part_digests
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.movements.admission import requested
from ringlog.kernel.operations.compose import refused_composition
from ringlog.kernel.operations.gates import gate, is_met, missing
from ringlog.kernel.operations.kinds import MOVE
from ringlog.kernel.operations.plan import plan_movement
from ringlog.kernel.operations.stages import in_flight, is_ended
from ringlog.kernel.ownership.placements import merge, split
from ringlog.kernel.values import Command, Witness, replace
from tests.kernel.movements import naive
from tests.kernel.movements import run as runs
from tests.kernel.movements.clusters import network, placed
from tests.kernel.movements.run import Run
from tests.kernel.operations.driver import SEED, applied, decided
from tests.kernel.ownership.rings import a_cluster, token_maps

PLANNED = ("join", "leave", "move", "replace", "remove")


@pytest.fixture(params=["tuples", "blocks"], autouse=True)
def _ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with ranges as in small clusters, and with ranges in blocks of two."""
    if request.param == "blocks":
        monkeypatch.setattr(blocks, "BLOCK", 2)
        monkeypatch.setattr(blocks, "BLOCK_MAX", 3)
        monkeypatch.setattr(blocks, "BLOCKS_FROM", 3)


def _applied_twice(state: ClusterState, command: Command) -> ClusterState:
    """Apply a command to the state and to its decoded copy, whose plans are not in columns, with the same result."""
    after = applied(state, command)
    operations = state.operations and decode_part("operations", encode(state.operations))
    stored = replace(state, operations=operations)
    assert part_digests(applied(stored, command)) == part_digests(after)
    return after


class Watched(Run):
    """A run that compares each step with the naive model."""

    def _ask(self, command: Command) -> None:
        state = self.state
        super()._ask(command)
        for operation in in_flight(self.state):
            if operation.id not in state.operations and operation.kind in PLANNED:
                assert operation.plan == naive.plan(state, operation)

    def check(self) -> None:
        super().check()
        flying = in_flight(self.state)
        recorded = [operation for operation in self.state.operations.values() if not is_ended(operation)]
        assert flying == tuple(sorted(recorded, key=lambda one: (one.marks[0].epoch, one.id)))
        for operation in flying:
            some = self.draw.sample(sorted(self.state.nodes), self.draw.randint(0, len(self.state.nodes)))
            witnesses = [Witness(node, operation.stage_epoch, operation.stage_epoch) for node in some]
            expected = not missing(gate(self.state, operation), witnesses)
            assert is_met(self.state, operation, witnesses) is expected
            self._count(f"gate met: {expected}")


def test_random_operations_have_the_plan_of_the_naive_model(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    for seed in range(40):
        monkeypatch.setattr(runs, "applied", _applied_twice if seed % 4 == 0 else applied)
        run = Watched(seed)
        try:
            run.go(steps=12)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        counts.update(run.counts)
    print(sorted(counts.items()))
    assert all(counts[what] for what in PLANNED)
    assert counts["gate met: True"] > 20
    assert counts["gate met: False"] > 20


@pytest.mark.parametrize("datacenters", [1, 2])
def test_plans_compose_as_in_the_naive_model(datacenters: int) -> None:
    """With one datacenter the test includes overlapping plans. Most of them do not compose."""
    verdicts: Counter[str] = Counter()
    for seed in range(80):
        draw = random.Random(seed)
        free = draw.sample(range(1_000), 24)
        nodes = {
            f"n{n}": (f"d{n % datacenters}/r{draw.randint(0, 1)}", [free.pop()]) for n in range(draw.randint(6, 14))
        }
        state = placed(nodes, network(d0=draw.randint(1, 3), d1=1))
        for node in draw.sample(sorted(nodes), 6):
            move = Move(node, (free.pop(),), SEED)
            gone = state.nodes[node].tokens
            asked = replace(requested(MOVE, node, EntryContext(state.epoch + 1, "", 0)), tokens=move.tokens, gone=gone)
            planned = replace(asked, plan=plan_movement(state, asked))
            admitted = isinstance(decided(state, move), Accepted)
            if admitted or datacenters == 1:
                composes = refused_composition(state, planned) is None
                assert composes is naive.composes(state, planned), f"seed {seed}"
                verdicts[f"beside {len(in_flight(state))}: {composes}"] += 1
            if admitted:
                state = applied(state, move)
    print(verdicts)
    assert verdicts["beside 1: True"] > 20
    assert verdicts["beside 2: True"] > 3
    assert verdicts["beside 1: False"] > 50 or datacenters > 1


@given(token_maps(), st.sets(st.integers(-45, 45), max_size=8))
def test_splitting_at_many_tokens_equals_single_splits(tokens: dict[str, list[int]], at: set[int]) -> None:
    placement = a_cluster(tokens, factors=[2]).placements["simple:2"]
    one_by_one = placement
    for token in sorted(at):
        one_by_one = naive.split(one_by_one, token)
    parts = split(placement, at)
    assert parts == one_by_one
    for token in sorted(at.difference(placement.ends)):
        one_by_one = merge(one_by_one, [token])
    assert merge(parts, at.difference(placement.ends)) == one_by_one == placement
