"""The tablet map compared with a list of tablets."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.model.tablet_map import (
    CHUNK,
    Resize,
    Tablet,
    TabletMap,
    TabletReplica,
    Transition,
    new_map,
    uniform_ends,
    with_resize,
    with_settled,
    with_transitions,
)
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN

replicas = st.builds(TabletReplica, st.sampled_from("abcdefgh"), st.integers(0, 2**32 - 1), st.integers(0, 2**63))
groups = st.lists(replicas, max_size=4, unique_by=lambda replica: replica.node).map(tuple)


def made(count: int, epoch: int = 5) -> TabletMap:
    group = (TabletReplica("a", 0, epoch), TabletReplica("b", 1, epoch))
    return new_map("ks.t", uniform_ends(count), [group] * count, epoch)


@given(st.lists(st.tuples(groups, st.integers(0, 2**63)), min_size=1, max_size=20))
def test_a_map_contains_its_tablets(wanted: list[tuple[tuple[TabletReplica, ...], int]]) -> None:
    ends = uniform_ends(len(wanted))
    tablets = new_map("ks.t", ends, [group for group, _ in wanted], 1, [at for _, at in wanted])
    assert list(tablets) == [
        Tablet(index, ends[index - 1], ends[index], group, at) for index, (group, at) in enumerate(wanted)
    ]
    columns = tablets.columns()
    found = zip(columns.tablet.tolist(), columns.node.tolist(), columns.shard.tolist(), strict=True)
    assert [(index, tablets.nodes[node], shard) for index, node, shard in found] == [
        (index, one.node, one.shard) for index, (group, _) in enumerate(wanted) for one in group
    ]


@given(st.integers(1, 3 * CHUNK), st.data())
def test_a_settled_tablet_changes_no_other_tablet(count: int, data: st.DataObject) -> None:
    before = made(count)
    changes = data.draw(st.dictionaries(st.integers(0, count - 1), st.tuples(groups, st.integers(0, 9)), max_size=5))
    after = with_settled(before, changes)
    for old, new in zip(before, after, strict=True):
        wanted = changes.get(old.index, (old.replicas, old.changed))
        assert (new.replicas, new.changed, new.start, new.end) == (*wanted, old.start, old.end)
    touched = {index // CHUNK for index in changes}
    for number, (old_chunk, chunk) in enumerate(zip(before.chunks, after.chunks, strict=True)):
        assert chunk is old_chunk or number in touched


def test_a_map_reuses_node_indexes() -> None:
    """Nodes join, leave and return. The map equals a list, for any index of a node."""
    random, width, most = Random(7), 5, 0
    names = [f"n{number}" for number in range(3)]
    groups = [tuple(TabletReplica(name, 0, 1) for name in names)] * (CHUNK + 9)
    tablets = new_map("ks.t", uniform_ends(len(groups)), groups, 1)
    for epoch in range(2, 900):
        name = f"n{epoch}" if random.random() < 0.7 else random.choice(names)
        names = [*names, name][-width:] if name not in names else names
        indices = random.sample(range(len(groups)), 3) if random.random() < 0.8 else range(len(groups))
        group = tuple(TabletReplica(one, 0, epoch) for one in sorted(random.sample(names, 2)))
        tablets = with_settled(tablets, dict.fromkeys(indices, (group, epoch)))
        for index in indices:
            groups[index] = group
        assert [one.replicas for one in tablets] == groups
        there = Counter(one.node for group in groups for one in group)
        assert {node: held for node, held in zip(tablets.nodes, tablets.held, strict=True) if held} == there
        assert len(set(tablets.nodes)) == len(tablets.nodes)
        most = max(most, len(there))
        assert len(tablets.nodes) <= most + 2, "new nodes of a step use indexes that were free before the step"
    assert most < 60, "hundreds of nodes joined"


@given(st.integers(1, 2_000), st.integers(TOKEN_MIN, TOKEN_MAX))
def test_a_token_belongs_to_the_found_tablet(count: int, token: int) -> None:
    tablets = made(count)
    found = tablets.tablet(tablets.index_of(token))
    below = found.start if found.index else TOKEN_MIN - 1
    assert below < token <= found.end


def test_powers_of_two_cut_the_ring_by_its_top_bits() -> None:
    assert uniform_ends(4) == (-(2**62) - 1, -1, 2**62 - 1, TOKEN_MAX)


def test_an_index_beyond_the_last_tablet_is_rejected() -> None:
    for index in (-1, 3):
        with pytest.raises(IndexError):
            made(3).tablet(index)


def test_transitions_and_decisions_are_set_and_removed() -> None:
    tablets = made(3)
    moving = Transition(1, "migration", "streaming", 8, 7, (TabletReplica("c", 0, 0), TabletReplica("b", 1, 5)))
    started = with_transitions(tablets, {1: moving})
    assert started.tablet(1).transition == moving
    assert started.tablet(0).transition is None
    assert started.chunks is tablets.chunks
    assert with_transitions(started, {1: None, 2: None}) == tablets
    decided = with_resize(tablets, Resize("split", 4, 9), 4)
    assert (decided.resize, decided.sequence) == (Resize("split", 4, 9), 4)
    revoked = with_resize(decided, None, 5)
    assert (revoked.resize, revoked.sequence) == (None, 5)
