"""The planner's input, built from a state and its tablet maps."""

from __future__ import annotations

from immutables import Map

from ringlog.kernel.balance.advice import make_plan
from ringlog.kernel.balance.model import BalancedHost
from ringlog.kernel.balance.source import collect_input, limits_of
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Node
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.model.tablet_map import (
    Resize,
    TabletReplica,
    Transition,
    new_map,
    uniform_ends,
    with_resize,
    with_transitions,
)
from ringlog.kernel.tablets.stages import CLEANUP_TARGET, STREAMING, USE_NEW
from ringlog.kernel.tablets.streaming import StreamUse
from ringlog.kernel.values import DatacenterReplication, Replication, replace


def node(name: str, state: str = "normal", capacity: int = 1, down: bool = False) -> Node:
    return Node(name, name, f"{name}:1", "dc1", "r1", 2, 12, "0", (), capacity, state, (), 1, down)


def state_of(*nodes: Node, racks: tuple[str, ...] = ()) -> ClusterState:
    replication = Replication("tablets", 1, (DatacenterReplication("dc1", 1, racks),))
    keyspaces = Map({"ks": Keyspace("ks", replication, "v")})
    return replace(EMPTY_STATE, epoch=7, nodes=Map({one.id: one for one in nodes}), keyspaces=keyspaces)


def on(name: str, shard: int = 0) -> TabletReplica:
    return TabletReplica(name, shard, 1)


STATE = state_of(node("n1"), node("n2"), node("new", "none"), node("gone", "left"), node("off", down=True))


def test_hosts_are_joined_nodes_and_nodes_in_tablet_maps() -> None:
    tablets = new_map("ks.t", uniform_ends(2), [[on("n1")], [on("gone")]], 1)
    inputs = collect_input(STATE, [tablets], {})
    assert list(inputs.hosts) == [
        BalancedHost("gone", "dc1", "r1", 2, 2, draining=True, alive=False, gone=True),
        BalancedHost("n1", "dc1", "r1", 2, 2),
        BalancedHost("n2", "dc1", "r1", 2, 2),
        BalancedHost("off", "dc1", "r1", 2, 2, alive=False),
    ]
    assert inputs.seed == 7


def test_a_weight_multiplies_what_a_node_holds() -> None:
    weighted = replace(STATE, nodes=STATE.nodes.set("n2", replace(STATE.nodes["n2"], capacity=3)))
    hosts = {one.id: one for one in collect_input(weighted, [], {}).hosts}
    assert [(hosts[name].capacity, hosts[name].weight) for name in ("n1", "n2")] == [(2, 1), (6, 3)]


def test_a_dead_replacing_node_is_a_host_of_its_tablets() -> None:
    """Only the transition names the node. It has not joined, and a node that is down gets no tablets."""
    state = state_of(node("n1"), node("n2", "joining", down=True))
    move = Transition(0, "migration", STREAMING, 2, 2, (on("n2"),))
    inputs = collect_input(state, [with_transitions(new_map("ks.t", uniform_ends(1), [[on("n1")]], 1), {0: move})], {})
    assert [host.id for host in inputs.hosts if not host.alive] == ["n2"]
    assert make_plan(inputs).migrations == ()


def test_transitions_count_at_their_target() -> None:
    tablets = new_map("ks.t", uniform_ends(3), [[on("n1")]] * 3, 1)
    stages = (STREAMING, USE_NEW, CLEANUP_TARGET)
    changes = [Transition(number, "migration", stage, 2, 2, (on("n2", 1),)) for number, stage in enumerate(stages)]
    moving = with_transitions(tablets, {one.tablet: one for one in changes})
    inputs = collect_input(replace(STATE, tablets=Map({"ks.t": moving})), [moving], {})
    (found,) = inputs.tables
    assert [found.moving[number] for number in range(3)] == [(("n2", 1),), (("n2", 1),), (("n1", 0),)]
    assert inputs.streams == (StreamUse(1, [("n1", 0)], [("n2", 1)]),)
    assert found.places(2) == (("n1", 0),)


def test_the_input_contains_racks_and_merges() -> None:
    tablets = with_resize(new_map("ks.t", uniform_ends(2), [[on("n1")]] * 2, 1), Resize("merge", 1, 2), 1)
    (found,) = collect_input(state_of(node("n1"), racks=("r1",)), [tablets], {}).tables
    assert found.racks == {"dc1": frozenset({"r1"})}
    assert found.merging


def test_a_plan_of_a_state() -> None:
    tablets = new_map("ks.t", uniform_ends(4), [[on("n1")]] * 4, 1)
    plan = make_plan(collect_input(STATE, [tablets], {}))
    assert {row.target[0] for row in plan.migrations if row.why == "balance"} == {"n2"}
    assert not make_plan(collect_input(STATE, [tablets], {}, busy="node_request")).migrations


def test_each_setting_is_read_live() -> None:
    names = [name for name in SETTINGS if name.startswith(("balance_", "tablet_stream"))]
    assert len(names) == 17
    for name in names:
        changed = replace(EMPTY_STATE, settings=Map({name: SETTINGS[name].default + 1}))
        assert limits_of(changed) != limits_of(EMPTY_STATE), name
