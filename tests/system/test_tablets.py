"""Registers of a table in tablets on real nodes under load: tablets move, are repaired, split and merged.

Tablets move between nodes and shards while a receiving node is killed. ``tests/faults/test_tablets_stages.py`` has
kills in each stage.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from tests.stopping import stop
from tests.system.agents_world import until
from tests.system.nodes_world import opened
from tests.system.registers_cluster import DEADLINE_S, Harm
from tests.system.tablets_cluster import TABLE, TABLETS, TabletsCluster

from ringlog.client.data.coordinator import Coordinator
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.rebalances import SwitchStable
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import Shard, TabletMigration
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.resize import MERGE, SPLIT
from ringlog.kernel.tablets.stages import INTRANODE, REPAIR, STREAMING
from ringlog.kernel.values import replace
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.distribution import targets
from ringlog.protocol.rebalancer.core import ROLE
from ringlog.stack import StackInfo
from ringlog.wire.ids import time_of

pytestmark = [pytest.mark.system, pytest.mark.slow]

OPERATIONS = 60
PANELS = (
    "tablets of each node, divided by its shards",
    "bytes of each node, divided by its shards",
    "migrating tablets",
)
"""The panels of a balance chart."""
FILLING = 300


@pytest.fixture(scope="module")
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TabletsCluster]:
    """Both tests share one world: its start takes longer than the second test."""
    with opened(TabletsCluster, stack, tmp_path_factory.mktemp("nodes")) as made:
        yield made


def test_tablets_move_split_and_merge_under_load_without_loss(world: TabletsCluster) -> None:
    world.found("n1", "n2", "n3", "n4", filling=FILLING)
    with world.load() as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        for index in range(TABLETS):
            source, target = world.ends_of(index)
            harms = [Harm(STREAMING, target)] if index == 0 else []
            assert world.go(load, world.migration(index, source, target), *harms) == harms
            assert target in world.nodes_of(world.tablets.tablet(index))
            assert source not in world.nodes_of(world.tablets.tablet(index))
        first = world.tablets.replicas(1)[0]
        here, there = Shard(first.node, first.shard), Shard(first.node, 1 - first.shard)
        world.go(load, TabletMigration(TABLE, 1, INTRANODE.name, here, there))
        world.go(load, TabletMigration(TABLE, 2, REPAIR.name))
        for number, (decision, count) in enumerate(((SPLIT, 2 * TABLETS), (MERGE, TABLETS)), start=1):
            world.submit(DecideResize(TABLE, decision, number))
            until(lambda goal=count: world.tablets.count == goal, f"the {decision}", DEADLINE_S)
            world.go_on(load, OPERATIONS, f"after the {decision}")
        world.conclude(load, FILLING, OPERATIONS)
        assert load.verified > OPERATIONS

    assert json.loads(world.agents.run("data", "read", TABLE, "filling-0", "--json"))["timestamp"] == 1
    drawn = world.folder / "balance.svg"
    world.agents.run("balance", "chart", str(drawn))
    titles = [found.text for found in ElementTree.parse(drawn).iter() if found.text in (*PANELS, *world.nodes)]
    assert set(titles) == {*PANELS, *world.nodes}


ASKS = "ringlog.agents.roles.controller", "ControllerThread", "_submit"
ZONE, PARTITIONS = "stock", 8
ROWS, ROWS_FILLED = "store.parts", 40


def test_a_zone_moves_despite_a_dead_rebalancer_and_waits_for_a_node(world: TabletsCluster) -> None:
    names = ("n1", "n2", "n3")
    for name in set(names) - set(world.nodes):
        world.begin(name)
    world.await_normal(*names)
    dying, replica = world.agents.start_dying(ROLE, *ASKS, 5), world.agents.client.replica
    began = world.agents.state.epoch
    world.submit(ChangeSettings((("zone_moves_max", 2),)))
    filter_ = '$[?(@.name < "n4")]'
    world.submit(CreateZone(ZONE, tuple(map(world.id_of, names)), PARTITIONS, 2, filter=filter_))

    world.submit(AlterZone(ZONE, replicas=3))
    assert dying.exit_code() == -signal.SIGKILL
    assert 3 in sizes(world.agents.client.read_barrier()) != [3] * PARTITIONS
    world.agents.start(ROLE)
    replica.wait_for(lambda state: sizes(state) == [3] * PARTITIONS, DEADLINE_S, "all to have three")
    steps = switches(world, began)
    assert Counter(number for number, _ in steps) == dict.fromkeys(range(PARTITIONS), 1), "no step lost or duplicated"
    assert len({author for _, author in steps}) > 1, "the killed rebalancer and its successor"

    # One partition stays on a stopped node: only that node can acknowledge that it continues alone.
    state = world.agents.state
    alone = targets(state, replace(state.zones[ZONE], replicas=1, quorum=1), [None] * PARTITIONS, range(PARTITIONS))
    (sleeper,) = alone[0].nodes if alone[0] is not None else ()
    name = state.nodes[sleeper].name
    world.submit(ChangeSettings((("zone_moves_max", PARTITIONS),)))
    stop(world.process_of(name).pid)
    world.submit(AlterZone(ZONE, replicas=1))
    late = [number for number, step in enumerate(alone) if step is not None and sleeper in step.nodes]
    replica.wait_for(
        lambda state: sizes(state) == [3 if number in late else 1 for number in range(PARTITIONS)],
        DEADLINE_S,
        f"all but {late}",
    )
    shown = json.loads(world.agents.run("zone", "show", ZONE, "--json"))
    waiting = [row for row in shown["partitions"] if row["waits"]]
    assert [row["partition"] for row in waiting] == late
    for row in waiting:
        assert (row["pending"], row["stable"], row["state"]) == ([[name]], [*names], "available")
        assert row["waits"] == f"for its group to have {name}; not yet: {name}"
        assert began < row["since"] == row["revision"]
        assert time_of(state.state_id) < row["at"]
    world.process_of(name).send_signal(signal.SIGCONT)
    replica.wait_for(lambda state: sizes(state) == [1] * PARTITIONS, DEADLINE_S, "all to have one")
    assert Counter(number for number, _ in switches(world, began)) == dict.fromkeys(range(PARTITIONS), 2)
    rows_follow_their_partitions(world)


def rows_follow_their_partitions(world: TabletsCluster) -> None:
    """A zone places a keyspace; then all of its partitions move to one node."""
    world.place_table(ROWS, ZONE)
    world.fill(ROWS_FILLED)
    first = world.id_of("n1")
    assert any(first not in on for on in placed(world.agents.state)), "another node has rows"
    world.submit(AlterZone(ZONE, filter='$[?(@.name == "n1")]', nodes=(first,)))
    world.agents.client.replica.wait_for(
        lambda state: (
            all(not one.pending for one in state.zone_partitions.values()) and placed(state) == [{first}] * PARTITIONS
        ),
        DEADLINE_S,
        "all partitions to be on n1, with their rows",
    )
    with Coordinator(world.agents.client.replica, "dc1") as coordinator:
        world.check_filling(coordinator, ROWS_FILLED, 1)


def placed(state: ClusterState) -> list[set[str]]:
    """Return the nodes of each tablet of ``ROWS``, by number."""
    return [{one.node for one in tablet.replicas} for tablet in state.tablets[ROWS]]


def sizes(state: ClusterState) -> list[int]:
    """Return the number of replicas of each partition of the zone, by number."""
    zone = state.zones.get(ZONE)
    return [] if zone is None else [len(one.stable.nodes) for one in partitions_of(state, zone) if one.stable]


def switches(world: TabletsCluster, after: int) -> list[tuple[int, str]]:
    """Return (partition, author) of each step above an epoch, in order."""
    return [
        (entry.command.partition, entry.submitter)
        for entry in world.agents.applied()[after:]
        if isinstance(entry.command, SwitchStable)
    ]
