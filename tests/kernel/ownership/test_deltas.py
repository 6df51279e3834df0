"""Deltas of placements: they apply strictly, set member epochs, and are reversed by their inverse."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from immutables import Map

from ringlog.kernel.model.state import Change, ClusterState, Deltas, Placement, Replica
from ringlog.kernel.ownership import deltas
from ringlog.kernel.ownership.deltas import Order, apply_deltas
from ringlog.kernel.ownership.placements import group_at, split
from tests.kernel.ownership.rings import a_cluster, shown, token_maps

STATE = a_cluster({"A": [100], "B": [200], "C": [300]})
ORDER = Order(STATE.nodes, {"X": (150,)})
GAIN = Deltas(write_added=(Change("simple:2", 100, 150, "X"),))
SWAP = Deltas(read_added=(Change("simple:2", 100, 150, "X"),), read_removed=(Change("simple:2", 100, 150, "C"),))


def _split(state: ClusterState = STATE) -> Map[str, Placement]:
    return state.placements.set("simple:2", split(state.placements["simple:2"], [150]))


def test_members_keep_their_since_and_new_ones_get_the_epoch() -> None:
    after = apply_deltas(apply_deltas(_split(), GAIN, ORDER, 20), SWAP, ORDER, 30)["simple:2"]
    group = group_at(after, 150)
    assert group.write == (Replica("X", 20), Replica("B", 5), Replica("C", 5))
    assert group.read == (Replica("X", 30), Replica("B", 5))
    assert group.changed == 30
    assert group_at(after, 200).changed == 5


def test_a_returning_member_gets_a_new_epoch() -> None:
    there = apply_deltas(_split(), GAIN, ORDER, 20)
    back = apply_deltas(apply_deltas(there, GAIN.inverse(), ORDER, 21), GAIN, ORDER, 22)
    assert group_at(back["simple:2"], 150).write[0] == Replica("X", 22)


def test_inverse_restores_the_groups() -> None:
    start = _split()
    restored = apply_deltas(apply_deltas(start, GAIN, ORDER, 20), GAIN.inverse(), ORDER, 21)
    for group in ("read", "write"):
        assert shown(restored["simple:2"], group) == shown(start["simple:2"], group)


def test_untouched_ranges_stay_the_same_objects() -> None:
    start = _split()
    after = apply_deltas(start, GAIN, ORDER, 20)
    kept = [before is now for before, now in zip(start["simple:2"].ranges, after["simple:2"].ranges, strict=True)]
    assert kept == [True, False, True, True]


def test_changes_of_a_removed_setting_are_skipped() -> None:
    start = _split()
    other = Deltas(write_added=(Change("simple:9", 100, 150, "X"),))
    assert apply_deltas(start, other, ORDER, 20) is start


def _ring(state: ClusterState) -> tuple[list[int], dict[int, str]]:
    owners = dict(state.token_owners.items())
    return sorted(owners), owners


@given(token_maps(), st.sets(st.integers(-45, 45), min_size=1, max_size=4), st.integers(-45, 45), st.data())
def test_walks_find_a_new_member(tokens: dict[str, list[int]], own: set[int], end: int, data: st.DataObject) -> None:
    state = a_cluster(tokens, factors=[2])
    old = data.draw(st.booleans())  # a node with tokens, or one that joins with some
    owned = {token for some in tokens.values() for token in some}
    coming = {} if old else {"X": tuple(sorted(own - owned))}
    assume(old or coming["X"])
    plain, walking = Order(state.nodes, coming), Order(state.nodes, coming, {}, _ring(state))
    who = data.draw(st.sampled_from(sorted(tokens))) if old else "X"
    others = data.draw(st.sets(st.sampled_from(sorted(tokens)), max_size=3)) - {who}
    group = plain.sorted(end, tuple(Replica(node, 1) for node in sorted(others)))
    found = walking.with_one(end, group, Replica(who, 2))
    assert found == plain.with_one(end, group, Replica(who, 2)) == plain.sorted(end, found)
    assert walking._met[end, who] is not None, "the ring walk was used"
    with pytest.raises(AssertionError, match="enters a group only once"):
        walking.with_one(end, found, Replica(who, 2))


def test_several_joining_members_are_found_in_the_group() -> None:
    order = Order(STATE.nodes, {"X": (150,), "Y": (140,)}, {}, _ring(STATE))
    group = (Replica("Y", 1), Replica("B", 1))
    assert order.with_one(120, group, Replica("X", 2)) == (group[0], Replica("X", 2), group[1])
    replacing = Order(STATE.nodes, {}, {"X": "B"}, _ring(STATE))
    assert replacing.with_one(120, (Replica("B", 1), Replica("C", 1)), Replica("X", 2))[1] == Replica("X", 2)


@pytest.mark.parametrize("most", [3, 2])
def test_walks_cache_members_up_to_a_bound(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(deltas, "_WALKED_MAX", most)
    ranges, entering = [(300, 100), (100, 200), (200, 300)], [("C",), ("A",), ("B",)]
    ring = _ring(STATE)
    first, second = (Order(STATE.nodes, ring=ring).met_by(ranges, entering) for _ in range(2))
    assert first == second == [{"A", "B"}, {"B", "C"}, {"C", "A"}]
    assert (first is second) == (most == 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Deltas(write_added=(Change("simple:2", 100, 150, "B"),)), "enters a group only once"),
        (Deltas(write_removed=(Change("simple:2", 100, 150, "X"),)), "only members leave"),
        (Deltas(write_added=(Change("simple:2", 100, 175, "X"),)), "a changed range exists"),
        (Deltas(write_added=(Change("simple:2", 300, 400, "X"),)), "a changed range exists"),
        (Deltas(read_added=(Change("simple:2", 100, 150, "A"),)), "readers are writers"),
    ],
)
def test_a_wrong_delta_is_a_defect(change: Deltas, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        apply_deltas(_split(), change, ORDER, 20)
