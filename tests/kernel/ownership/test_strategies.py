"""Replication strategies compared with the naive model, their keys, valid factors, and racks."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.ownership.strategies import (
    census_of,
    first_met,
    impossible,
    is_first_met,
    natural,
    replication_key,
    ring_of,
)
from ringlog.kernel.values import Replication
from ringlog_testing.placement.layout import replicas
from tests.kernel.movements.clusters import ENTIRE, network, placed, simple

SETTINGS = [simple(2), ENTIRE, network(d0=3), network(d0=2, d1=2), network(d0=("r0", "r2"), d1=1)]


@st.composite
def rings(draw: st.DrawFn) -> dict[str, tuple[str, list[int]]]:
    """Draw up to 9 nodes in two datacenters and three racks, with up to three tokens each."""
    count = draw(st.integers(1, 9))
    tokens = draw(st.lists(st.integers(-40, 40), min_size=3 * count, max_size=3 * count, unique=True))
    return {
        f"n{number}": (
            f"d{draw(st.integers(0, 1))}/r{draw(st.integers(0, 2))}",
            tokens[3 * number : 3 * number + draw(st.integers(1, 3))],
        )
        for number in range(count)
    }


@settings(deadline=None, max_examples=60)
@given(rings(), st.sampled_from(SETTINGS))
def test_the_replicas_are_those_of_the_model(nodes: dict[str, Any], setting: Replication) -> None:
    state = placed(nodes)
    ring = ring_of(state.token_owners, state.nodes)
    places = {name: (node.datacenter, node.rack) for name, node in state.nodes.items()}
    for position in range(-42, 43):
        found = natural(setting, ring, position)
        assert len(found) == len(set(found))
        assert found == replicas(setting, state.token_owners, places, position)


def test_racks_come_before_repeats() -> None:
    nodes = {"a": ("d/r1", [1]), "b": ("d/r1", [2]), "c": ("d/r2", [3]), "e": ("d/r2", [4]), "f": ("d/r3", [5])}
    state = placed(nodes)
    ring = ring_of(state.token_owners, state.nodes)
    assert natural(network(d=3), ring, 1) == ("a", "c", "f")
    assert natural(network(d=2), ring, 1) == ("a", "c")
    assert natural(network(d=4), ring, 1) == ("a", "b", "c", "f")
    assert natural(network(d=("r2", "r3")), ring, 1) == ("c", "f")
    assert natural(network(elsewhere=1), ring, 1) == ()


def test_settings_have_different_keys() -> None:
    keys = [simple(2), network(a=2), network(a=("r1", "r2")), network(a=2, b=1), ENTIRE]
    assert [replication_key(one) for one in keys] == [
        "simple:2",
        "network:a=2",
        "network:a=r1+r2",
        "network:a=2,b=1",
        "entire",
    ]


def test_possible_settings() -> None:
    state = placed({"a": ("d/r1", [1]), "b": ("d/r2", [2])})
    census = census_of(["a", "b"], state.nodes)
    for good in (simple(2), network(d=2), network(d=("r1", "r2")), ENTIRE):
        assert impossible(good, census) == ""
    for bad in (simple(3), network(d=3), network(d=("r1", "r3")), network(d=1, e=1)):
        assert impossible(bad, census)
    assert impossible(ENTIRE, {})


WALKED = [
    *(simple(factor) for factor in (1, 2, 3, 12)),
    *(network(**{name: factor}) for name in ("d0", "d1") for factor in (1, 2, 3)),
]


@settings(deadline=None, max_examples=60)
@given(rings(), st.sampled_from(WALKED), st.integers(-42, 42))
def test_the_first_member_of_a_walk_is_known_between_positions(
    nodes: dict[str, Any], setting: Replication, begin: int
) -> None:
    state = placed(nodes)
    ring = ring_of(state.token_owners, state.nodes)
    if is_first_met(setting, ring):
        back = [*range(begin, -44, -1), *range(44, begin, -1)]
        walked = [natural(setting, ring, position) for position in back]
        assert list(first_met(setting, ring, begin, back)) == walked
