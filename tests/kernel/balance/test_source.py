"""From a state and its tablet maps to the planner's input."""

from __future__ import annotations

from immutables import Map

from ringlog.kernel.balance.model import BalancedHost
from ringlog.kernel.balance.plan import make_plan
from ringlog.kernel.balance.source import limits_of, picture_of
from ringlog.kernel.settings import SETTINGS
from ringlog.kernel.state import EMPTY_STATE, ClusterState, Keyspace, Node
from ringlog.kernel.swift import replaced
from ringlog.kernel.tablets.map import (
    Resize,
    TabletReplica,
    Transition,
    new_map,
    uniform_ends,
    with_resize,
    with_transitions,
)
from ringlog.kernel.tablets.stages import CLEANUP_TARGET, STREAMING, USE_NEW
from ringlog.kernel.values import DatacenterReplication, Replication


def node(name: str, state: str = "normal", capacity: int = 1, down: bool = False) -> Node:
    return Node(name, name, f"{name}:1", "dc1", "r1", 2, 12, "0", (), capacity, state, (), 1, down)


def state_of(*nodes: Node, racks: tuple[str, ...] = ()) -> ClusterState:
    replication = Replication("tablets", 1, (DatacenterReplication("dc1", 1, racks),))
    keyspaces = Map({"ks": Keyspace("ks", replication, "v")})
    return replaced(EMPTY_STATE, epoch=7, nodes=Map({one.id: one for one in nodes}), keyspaces=keyspaces)


def on(name: str, shard: int = 0) -> TabletReplica:
    return TabletReplica(name, shard, 1)


STATE = state_of(node("n1"), node("n2"), node("new", "none"), node("gone", "left"), node("off", down=True))


def test_hosts_are_those_that_have_joined_or_that_a_map_names() -> None:
    tablets = new_map("ks.t", uniform_ends(2), [[on("n1")], [on("gone")]], 1)
    picture = picture_of(STATE, [tablets], {})
    assert list(picture.hosts) == [
        BalancedHost("gone", "dc1", "r1", 2, 0, draining=True, alive=False, gone=True),
        BalancedHost("n1", "dc1", "r1", 2, 0),
        BalancedHost("n2", "dc1", "r1", 2, 0),
        BalancedHost("off", "dc1", "r1", 2, 0, alive=False),
    ]
    assert picture.seed == 7


def test_transitions_count_where_they_end() -> None:
    tablets = new_map("ks.t", uniform_ends(3), [[on("n1")]] * 3, 1)
    stages = (STREAMING, USE_NEW, CLEANUP_TARGET)
    changes = [Transition(number, "migration", stage, 2, 2, (on("n2", 1),)) for number, stage in enumerate(stages)]
    moving = with_transitions(tablets, {one.tablet: one for one in changes})
    (found,) = picture_of(STATE, [moving], {}).tables
    assert [found.moving[number].next for number in range(3)] == [(("n2", 1),), (("n2", 1),), (("n1", 0),)]
    assert [found.moving[number].streams for number in range(3)] == [True, False, False]
    assert found.places(2) == (("n1", 0),)


def test_racks_and_merges_are_taken_over() -> None:
    tablets = with_resize(new_map("ks.t", uniform_ends(2), [[on("n1")]] * 2, 1), Resize("merge", 1, 2), 1)
    (found,) = picture_of(state_of(node("n1"), racks=("r1",)), [tablets], {}).tables
    assert found.racks == {"dc1": frozenset({"r1"})}
    assert found.merging


def test_a_plan_of_a_state() -> None:
    tablets = new_map("ks.t", uniform_ends(4), [[on("n1")]] * 4, 1)
    plan = make_plan(picture_of(STATE, [tablets], {}))
    assert {row.target[0] for row in plan.migrations if row.why == "balance"} == {"n2"}
    assert not make_plan(picture_of(STATE, [tablets], {}, busy="node_request")).migrations


def test_each_setting_is_read_live() -> None:
    names = [name for name in SETTINGS if name.startswith(("balance_", "tablet_stream"))]
    assert len(names) == 14
    for name in names:
        changed = replaced(EMPTY_STATE, settings=Map({name: SETTINGS[name].default + 1}))
        assert limits_of(changed) != limits_of(EMPTY_STATE), name
