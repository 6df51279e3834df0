"""The digest of a state that follows is the one made anew, whatever came before, and little is encoded for it."""

from __future__ import annotations

import random
from dataclasses import is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from ringlog.kernel.columns.blocks import in_blocks, with_items
from ringlog.kernel.columns.fast_dataclass import replaced
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop
from ringlog.kernel.encoding import digester as production
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import EMPTY_STATE, Placement, RangeGroup, Replica
from tests.kernel.entries import applied, entry, founded, node, random_command, random_history


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_digests_of_random_lives_are_those_made_anew(draw: random.Random, length: int) -> None:
    state, digester = EMPTY_STATE, Digester()
    for _ in range(length):
        command = random_command(draw, state) if state.epoch else InitializeCluster("c")
        state = fold(state, entry(state, command)).state
        if draw.random() < 0.7:
            assert digester.digest(state) == digest(state)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_gives_the_same_digests(seed: int) -> None:
    draw = random.Random(seed)
    states = [EMPTY_STATE, founded(), random_history(draw, 60), random_history(draw, 200)]
    digester = Digester()
    for state in draw.choices(states, k=30):
        assert digester.digest(state) == digest(state)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is encoded."""
    values: list[object] = []

    def noted(value: object) -> bytes:
        values.append(value)
        return encode(value)

    monkeypatch.setattr(production, "encode", noted)
    return values


def test_what_is_as_before_is_not_encoded_again(encoded: list[object]) -> None:
    before = applied(founded(), *(node(number) for number in range(1, 30)))
    after = applied(before, node(30))
    digester = Digester()
    digester.digest(before)
    encoded.clear()
    assert digester.digest(after) == digest(after)
    records = [value for value in encoded if is_dataclass(value)]
    assert records == [after.nodes[node(30).id], after.history.at(after.epoch)]


def test_nothing_is_kept_of_states_that_are_gone() -> None:
    small, large = founded(), random_history(random.Random(3), 200)
    worn, fresh = Digester(), Digester()
    for state in (small, large, small):
        worn.digest(state)
    fresh.digest(small)
    assert _kept(worn) == _kept(fresh)


def _kept(digester: Digester) -> dict[str, int]:
    return {name: len(one._rows) + len(one._items) + len(one._inner) for name, one in digester._encoders.items()}


def test_a_step_of_a_large_ring_encodes_the_ranges_that_it_changes(encoded: list[object]) -> None:
    placement = Placement("simple:1", in_blocks(ranges(2_000)), tuple(range(2_000)))
    before = replaced(founded(), placements=Map({placement.key: placement}))
    others = [replaced(placement.ranges[at], changed=9) for at in (7, 8, 1_500)]
    moved = replaced(placement, ranges=with_items(placement.ranges, (7, 8, 1_500), others))
    after = replaced(before, epoch=9, placements=before.placements.set(placement.key, moved))
    digester = Digester()
    digester.digest(before)
    encoded.clear()
    assert digester.digest(after) == digest(after)
    assert [value for value in encoded if type(value) is RangeGroup] == others
    assert digester.digest(before) == digest(before)


def ranges(count: int) -> tuple[RangeGroup, ...]:
    return tuple(RangeGroup(end - 1, end, (), (Replica(f"n{end % 7}", 1),), 1) for end in range(count))


@pytest.mark.parametrize("most", [100, 128, 300, 5_000])
def test_a_history_counts_from_wherever_it_begins(most: int) -> None:
    state, digester = applied(founded(), ChangeSettings((("history_entries", most),))), Digester()
    for _ in range(400):
        state = applied(state, Noop())
        assert digester.digest(state) == digest(state)
