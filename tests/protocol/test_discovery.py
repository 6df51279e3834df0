"""Creation of a new cluster: all states of three processes, random walks of more, and counterexamples without each
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.values import replace
from ringlog.protocol.discovery import (
    ADDRESSES_MAX,
    initial_view,
    merge_view,
    missing_views,
    must_create,
    other_addresses,
    restored_view,
    with_cluster,
    with_founder,
)
from ringlog.wire.data import DiscoveryView, MetPeer, pack, unpack

Hears: TypeAlias = Callable[[DiscoveryView, DiscoveryView, str], DiscoveryView | None]
Seeds: TypeAlias = tuple[str, ...]
"""The seed addresses of each process: ``("b", "", "ab")`` for a, b and c."""
History: TypeAlias = tuple[DiscoveryView, ...]
"""All views that a process has stored. A sent message is one of the stored views that contain the receiver's address,
and may arrive at any later time, repeatedly, or never. The walk lets each of these views arrive at each moment, so it
covers lost, late and repeated messages and crashes.
"""
State: TypeAlias = tuple[History, ...]
LETTERS = "abcdef"


def initial_history(seeds: Seeds) -> State:
    return tuple((initial_view("c", own, own, known),) for own, known in zip(LETTERS, seeds, strict=False))


def arrivals(state: State, hearing: Hears = merge_view) -> Iterator[State]:
    """Return every state after one more message: a question, or an answer by a process that knows the sender or not."""
    for at, (*_, mine) in enumerate(state):
        for other in {view for history in state if history is not state[at] for view in history}:
            asked_at = "" if mine.address in other.known else other.address
            heard = hearing(mine, other, asked_at) if not asked_at or asked_at in mine.known else None
            if heard is not None and heard != mine:
                yield changed(state, at, heard)


def changed(state: State, at: int, view: DiscoveryView) -> State:
    return (*state[:at], (*state[at], view), *state[at + 1 :])


def crashes(state: State) -> Iterator[State]:
    """Return the states after one process loses its view, as if it sent the view before storing it."""
    for at, history in enumerate(state):
        if history[-1] != history[0]:
            yield changed(state, at, history[0])


def founders(state: State) -> set[str]:
    """Return the processes that have ever decided to create a cluster."""
    return {view.id for history in state for view in history if must_create(view)}


def have_two_creators(
    seeds: Seeds, hearing: Hears = merge_view, more: Callable[[State], Iterable[State]] = lambda _: ()
) -> bool:
    """Return whether a reachable state has two creators; the walk stops at the first one."""
    start = initial_history(seeds)
    known, waiting = set[object](), [start]
    while waiting:
        state = waiting.pop()
        if len(founders(state)) > 1:
            return True
        for following in (*arrivals(state, hearing), *more(state)):
            # The order of a process's views is not part of the state.
            key = tuple((frozenset(history), history[-1]) for history in following)
            if key not in known:
                known.add(key)
                waiting.append(following)
    return False


def reach(seeds: Seeds, own: str) -> set[str]:
    """Return the processes that the seeds of a process reach over all hops."""
    found, new = set[str](), {own}
    while new:
        found |= new
        new = {one for name in new for one in seeds[LETTERS.index(name)]} - found
    return found


def all_meet(seeds: Seeds) -> bool:
    ways = [reach(seeds, own) for own in LETTERS[: len(seeds)]]
    return all(one & other for one in ways for other in ways)


def test_two_processes_create_clusters_only_if_their_seeds_are_disjoint() -> None:
    subsets = [[left + right for left in ("", x) for right in ("", y)] for x, y in ("bc", "ac", "ab")]
    for seeds in product(*subsets):
        assert have_two_creators(seeds) is not all_meet(seeds), seeds


# -------------------------------------------------------------------------------------------------------- omitted rules


def without_creators(mine: DiscoveryView, other: DiscoveryView, asked_at: str) -> DiscoveryView | None:
    return merge_view(mine, replace(other, founder=""), asked_at)


def without_known_processes(mine: DiscoveryView, other: DiscoveryView, asked_at: str) -> DiscoveryView | None:
    return merge_view(mine, replace(other, known=(other.address, mine.address)), asked_at)


def from_an_unknown_process(mine: DiscoveryView, other: DiscoveryView, asked_at: str) -> DiscoveryView | None:
    return merge_view(mine, replace(other, known=(*other.known, mine.address)), asked_at)


@pytest.mark.parametrize(
    ("seeds", "hearing", "more"),
    [
        (("b", ""), without_creators, None),
        (("c", "c", "b"), without_known_processes, None),
        (("c", "c", "b"), from_an_unknown_process, None),
        (("c", "c", "b"), merge_view, crashes),
    ],
)
def test_each_omitted_rule_lets_two_processes_create_clusters(
    seeds: Seeds, hearing: Hears, more: Callable[[State], Iterable[State]] | None
) -> None:
    assert all_meet(seeds)
    assert not have_two_creators(seeds)
    assert have_two_creators(seeds, hearing, more or (lambda _: ()))


# --------------------------------------------------------------------------------------------- more processes


@st.composite
def groups(draw: st.DrawFn) -> tuple[State, Seeds]:
    """Return up to six processes, some without the name of the cluster, in the middle of their messages."""
    letters = LETTERS[: draw(st.integers(2, 6))]
    seeds = tuple("".join(draw(st.sets(st.sampled_from(letters)))) for _ in letters)
    names = [draw(st.sampled_from(["c", ""])) for _ in letters]
    state: State = tuple(
        (initial_view(name, own, own, known),) for name, own, known in zip(names, letters, seeds, strict=True)
    )
    for _ in range(draw(st.integers(0, 40))):
        following = list(arrivals(state))
        if not following:
            break
        state = draw(st.sampled_from(following))
    return state, seeds


def answered(views: dict[str, DiscoveryView]) -> bool:
    """Answer all questions of a round and return whether a process learned anything."""
    before = dict(views)
    for own in views:
        for address in other_addresses(views[own]):
            heard = merge_view(views[address], views[own])
            assert heard is not None
            views[address] = heard
            answer = merge_view(views[own], heard, address)
            assert answer is not None
            views[own] = answer
    return views != before


@settings(max_examples=80, deadline=None)
@given(groups())
def test_one_process_creates_the_cluster_and_all_learn_it(group: tuple[State, Seeds]) -> None:
    state, seeds = group
    views = {history[-1].address: history[-1] for history in state}
    while answered(views):
        pass
    found = {own: view.founder for own, view in views.items()}
    if all_meet(seeds):
        named = any(view.cluster for view in views.values())
        assert len(set(found.values())) == 1
        assert {view.cluster for view in views.values()} == ({"c"} if named else {""})
        assert all(found.values()) is named
        assert sum(must_create(view) for view in views.values()) == named
    for own, view in views.items():
        assert not missing_views(view)
        assert reach(seeds, own) <= set(view.known)


# --------------------------------------------------------------------------------------------------------- single rules


def test_a_process_that_knows_a_cluster_creates_none() -> None:
    there = with_cluster(initial_view("c", "b", "2", ""), "the cluster")
    mine = initial_view("", "a", "1", "b")
    heard = merge_view(mine, there, "b")
    assert heard is None, "the process has not learned of this cluster"
    asked = merge_view(there, mine)
    assert asked is not None
    heard = merge_view(mine, asked, "b")
    assert heard is not None
    assert (heard.cluster, heard.cluster_id, must_create(heard)) == ("c", "the cluster", False)


def test_a_process_is_discovered_under_a_second_address() -> None:
    mine = initial_view("c", "10.0.0.1:7", "1", ["localhost:7"])
    assert missing_views(mine) == ("localhost:7",)
    heard = merge_view(mine, mine, "localhost:7")
    assert heard is not None
    assert must_create(heard)


def test_discovery_continues_with_new_seeds() -> None:
    kept = unpack(DiscoveryView, pack(initial_view("", "a", "1", "b")))
    again = restored_view(kept, "c", "d")
    assert (again.cluster, again.known, again.id) == ("c", ("a", "b", "d"), "1")
    assert restored_view(again, "other", "").cluster == "c"
    assert must_create(restored_view(initial_view("", "a", "1", ""), "c", ""))


@pytest.mark.parametrize(
    "other",
    [
        DiscoveryView("other", "b", "2", ("a", "b")),
        DiscoveryView("c", "b", "2", tuple(map(str, range(ADDRESSES_MAX)))),
        DiscoveryView("c", "b", "2" * 256, ("a", "b")),
        DiscoveryView("c", "", "2", ("a", "b")),
        DiscoveryView("c", "b", "", ("a", "b")),
    ],
)
def test_an_ignored_process_is_not_discovered(other: DiscoveryView) -> None:
    assert merge_view(initial_view("c", "a", "1", "b"), other) is None


@pytest.mark.parametrize("name", ["a b", "../c", "c\x1b]0;title\x07"])
def test_an_impossible_name_is_not_stored(name: str) -> None:
    """A process that has stored such a name would wait for its log at each start."""
    assert merge_view(initial_view("", "a", "1", "b"), DiscoveryView(name, "b", "2", ("a", "b"))) is None
    hidden = DiscoveryView("c", "b", "2", ("a", "b", "x\x1b[8m"))
    assert merge_view(initial_view("", "a", "1", "b"), hidden) is None


def test_the_lowest_discovered_id_creates_the_cluster() -> None:
    met = (MetPeer("b", "2"), MetPeer("d", "3"))
    view = DiscoveryView("c", "a", "1", ("a", "b", "d"), met)
    assert must_create(with_founder(view))
    assert not must_create(with_founder(replace(view, id="4")))
    assert not must_create(with_founder(replace(view, cluster="")))
