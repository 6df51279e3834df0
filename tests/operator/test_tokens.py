"""Allocated tokens balance the data per node under all settings, much better than random tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.client.tokens import allocate
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.ownership.placements import canonical
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Replication, replace
from ringlog.operator.intents.json_commands import from_json
from ringlog.operator.intents.replication import format_replication, parse_setting, replication_json
from ringlog.runtime.draw import SeededDraw
from tests.kernel.movements.clusters import network, placed, simple

Chooser = Callable[[ClusterState, str, int, bytes], tuple[int, ...]]
RACKS_3 = ("d0/r0", "d0/r1", "d0/r2", "d1/r0", "d1/r1", "d1/r2")
CASES = {
    "simple": (simple(3), ("d0/r0",) * 5, 1.8),
    "simple over racks": (simple(2), ("d0/r0", "d0/r1", "d1/r0"), 1.5),
    "one rack": (network(d0=3), ("d0/r0",) * 5, 1.8),
    "as many racks as replicas": (network(d0=3, d1=3), RACKS_3, 1.1),
    "a list of racks": (network(d0=("r0", "r1", "r2"), d1=("r0", "r1", "r2")), RACKS_3, 1.1),
    "more racks": (network(d0=2), ("d0/r0", "d0/r1", "d0/r2", "d0/r3"), 1.8),
    "fewer racks": (network(d0=3), ("d0/r0", "d0/r1") * 2, 1.8),
    "no keyspace yet": (None, RACKS_3, 1.1),
}
"""The setting, the locations of new nodes in turn, and the allowed ratio to the minimum load."""


def at_random(state: ClusterState, node: str, count: int, seed: bytes) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(sorted(draw.randint(TOKEN_MIN, TOKEN_MAX) for _ in range(count)))


def grown(
    setting: Replication | None, places: tuple[str, ...], nodes: int, count: int, choose: Chooser
) -> ClusterState:
    """Return a cluster whose nodes joined one after another, at each location in turn."""
    state = placed({f"n{number}": (places[number % len(places)], ()) for number in range(nodes)})
    if setting is not None:
        state = replace(state, keyspaces=state.keyspaces.set("ks", Keyspace("ks", setting, "v")))
    for number in range(nodes):
        name = f"n{number}"
        tokens = choose(state, name, count, number.to_bytes(16, "big"))
        assert len(set(tokens)) == count
        assert not any(token in state.token_owners for token in tokens)
        owner = replace(state.nodes[name], state="normal", tokens=tokens)
        owners = state.token_owners.update(dict.fromkeys(tokens, name))
        state = replace(state, nodes=state.nodes.set(name, owner), token_owners=owners)
    return state


def imbalance(state: ClusterState, setting: Replication) -> float:
    """Return the highest load of a node as a multiple of the minimum."""
    held = dict.fromkeys(state.nodes, 0)
    for group in canonical(setting, state.token_owners, state.nodes, 1):
        for replica in group.write:
            held[replica.node] += (group.end - group.start) % (TOKEN_MAX - TOKEN_MIN + 1)
    return max(held.values()) / min(held.values())


@pytest.mark.parametrize("case", CASES)
def test_successive_joins_balance_the_load(case: str) -> None:
    setting, places, limit = CASES[case]
    measured = setting or network(d0=3, d1=3)
    for rounds in (3, 5):
        nodes = rounds * len(places)
        balanced = imbalance(grown(setting, places, nodes, 16, allocate), measured)
        drawn = imbalance(grown(setting, places, nodes, 16, at_random), measured)
        print(f"{case}, {nodes} nodes: {balanced:.2f}, at random {drawn:.2f}")
        assert balanced < limit
        assert drawn > 1.3


@settings(max_examples=40)
@given(st.binary(min_size=16, max_size=16), st.integers(1, 12), st.integers(1, 20))
def test_the_seed_in_the_command_gives_its_tokens(seed: bytes, nodes: int, count: int) -> None:
    state = grown(simple(1), ("d0/r0", "d0/r1"), nodes, 2, allocate)
    asked = {"command": "Join", "node": "n0", "num_tokens": count, "seed": seed.hex()}
    join = from_json(state, asked, SeededDraw(b"anything"))
    assert isinstance(join, Join)
    assert join.seed == seed
    assert join.tokens == allocate(state, "n0", count, seed) == from_json(state, asked, SeededDraw(b"else")).tokens
    drawn = from_json(state, {"command": "Join", "node": "n0", "num_tokens": count}, SeededDraw(seed))
    assert drawn.tokens == allocate(state, "n0", count, drawn.seed)


# Replication settings as typed, parsed and formatted again.


@pytest.mark.parametrize(
    ("setting", "replication"),
    [
        ("3", {"strategy": "simple", "factor": 3}),
        ("entire", {"strategy": "entire"}),
        ("dc1=3", {"strategy": "network", "datacenters": {"dc1": 3}}),
        ("dc1=3,dc2=r1+r2", {"strategy": "network", "datacenters": {"dc1": 3, "dc2": ["r1", "r2"]}}),
        ("dc1=r1", {"strategy": "network", "datacenters": {"dc1": ["r1"]}}),
        ("zone:z", {"strategy": "zone", "zone": "z"}),
    ],
)
def test_settings_round_trip(setting: str, replication: dict[str, Any]) -> None:
    assert replication_json(parse_setting(setting)) == replication
    assert format_replication(replication) == setting


def test_a_number_of_replicas() -> None:
    assert parse_setting("2") == Replication("simple", 2)


@pytest.mark.parametrize("setting", ["dc1", "dc1=", "=3", "dc1=3,dc1=2", "dc1=3,"])
def test_invalid_settings(setting: str) -> None:
    with pytest.raises(ValueError, match="expected DATACENTER=NUMBER or"):
        parse_setting(setting)
