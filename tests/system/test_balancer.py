"""The balancer on real processes: a node joins, and a table in tablets spreads onto it.

The active balancer is killed during the moves, and its standby continues. In the end each row is on the nodes of the
tablet map.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import DEADLINE_S, NodesWorld

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import CdcOptions, Column, Replication, TabletOptions
from ringlog.log.kafka.topics import LOAD, MUTATIONS
from ringlog.protocol.balancer.balancer import ROLE
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.records import Cell, Mutation, decode_node_load, encode_mutation, mutation_key, mutation_partition

pytestmark = [pytest.mark.system, pytest.mark.slow]

TABLE = "shop.seats"
TABLETS = 8
FACTOR = 2
ROWS = 600
STREAMS = 2
"""The maximum of concurrent moves, so low that the balancer must plan repeatedly."""
SESSION_TIMEOUT_S = 5
"""Long enough that a busy machine does not expire the active balancer."""


class BalancerWorld(NodesWorld):
    """Nodes, and a table in tablets with rows."""

    def __init__(self, agents: AgentsWorld, folder: Path) -> None:
        super().__init__(agents, folder)
        self._producer = Producer(
            {**QUIET, "bootstrap.servers": agents.stack.bootstrap_servers, "enable.idempotence": True}
        )
        self.keys: list[bytes] = []

    def create(self) -> None:
        """Create the table with a fixed number of tablets."""
        self.submit(ChangeSettings((("tablet_streams_max", STREAMS),)))
        self.submit(CreateKeyspace("shop", Replication("tablets", FACTOR)))
        options = TabletOptions(TABLETS, min_count=TABLETS, max_count=TABLETS)
        columns = (Column("seat", "text"), Column("who", "text"))
        self.submit(
            CreateTable("shop", "seats", str(uuid.uuid4()), columns, ("seat",), (), CdcOptions(), tablets=options)
        )

    def write(self, count: int) -> None:
        """Write this number of further rows."""
        topic = f"{self.agents.cluster}.{MUTATIONS.suffix}"
        for _ in range(count):
            key = b"seat-%d" % len(self.keys)
            made = Mutation(
                str(uuid.uuid4()), None, "shop", "seats", 1 + len(self.keys), None, "INSERT", (key,), (),
                (Cell("who", b"somebody " + key),),
            )  # fmt: skip
            place = mutation_key("shop", "seats", key)
            partition = mutation_partition(place, MUTATIONS.partitions)
            self._producer.produce(topic, encode_mutation(made), key=place, partition=partition)
            self.keys.append(key)
        self._producer.flush()

    @property
    def tablets(self) -> TabletMap:
        return self.agents.state.tablets[TABLE]

    def names(self, tablet: int) -> list[str]:
        """Return the names of the nodes with the tablet."""
        return [self.agents.state.nodes[one.node].name for one in self.tablets.replicas(tablet)]

    def names_of(self, key: bytes) -> list[str]:
        """Return the names of the nodes with the row."""
        return self.names(self.tablets.index_of(token_of(key)))

    def held(self) -> dict[str, int]:
        """Return the number of tablets by name of each node with tablets."""
        return dict(Counter(name for tablet in self.tablets for name in self.names(tablet.index)))

    def rows_are_whole(self) -> bool:
        """Return True if each node has the rows of its tablets."""
        wanted = Counter(name for key in self.keys for name in self.names_of(key))
        found = {name: self.status(name) for name in self.nodes}
        return all(page is not None and page["rows"] == wanted[name] for name, page in found.items())

    def check_rows(self) -> None:
        """Check that a node serves the written rows of its tablets and rejects reads of other rows."""
        for key in self.keys[::7]:
            for name in self.nodes:
                member = self.member(name)
                assert member is not None
                answer = self.http.get(f"http://{member.address}/v1/tables/{TABLE}/rows/{key.hex()}")
                if name not in self.names_of(key):
                    assert answer.status_code == httpx.codes.MISDIRECTED_REQUEST, (key, name)
                    continue
                (row,) = answer.json()["rows"]
                assert bytes.fromhex(row["cells"]["who"]["value"]) == b"somebody " + key

    def run(self, *words: str) -> dict[str, Any]:
        """Return the JSON output of a command."""
        found: dict[str, Any] = json.loads(self.agents.run(*words, "--json"))
        return found

    def plans(self) -> list[tuple[Entry, MigrateTablets]]:
        """Return the balancers' requests, in order."""
        return [
            (entry, entry.command)
            for entry in self.agents.applied()
            if isinstance(entry.command, MigrateTablets) and ROLE in entry.submitter
        ]

    def reported(self) -> dict[str, int]:
        """Return the bytes of the table in each node's last report, by name."""
        nodes = self.agents.state.nodes
        newest = {load.node: load for load in map(decode_node_load, self.agents.records(LOAD))}
        return {
            nodes[node].name: sum(sum(one.bytes) for one in load.tables if one.table == TABLE)
            for node, load in newest.items()
        }


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[BalancerWorld]:
    with closing(BalancerWorld(AgentsWorld(stack, cluster_name, tmp_path, SESSION_TIMEOUT_S), tmp_path)) as made:
        yield made


@pytest.mark.soak("tablets move under load; the simulator kills the balancer")
def test_a_table_spreads_onto_a_new_node_despite_a_killed_balancer(world: BalancerWorld) -> None:
    active = world.agents.start(ROLE)
    world.agents.spawn(ROLE)
    world.begin_all("n1", "n2")
    world.create()
    world.write(ROWS)
    until(world.rows_are_whole, "the rows", DEADLINE_S)
    assert world.held() == {"n1": TABLETS, "n2": TABLETS}
    term = world.agents.term(ROLE)

    world.begin("n3")
    world.agents.client.replica.wait_for(
        lambda state: len(state.tablets[TABLE].transitions) or None, DEADLINE_S, "a tablet to move"
    )
    active.kill()
    world.write(ROWS // 4)
    shown = world.run("balance", "status")
    assert [row["node"] for row in shown["nodes"]] == ["n1", "n2", "n3"]
    world.agents.await_term(ROLE, term + 1)

    def is_balanced() -> bool:
        return not world.tablets.transitions and sorted(world.held().values()) == [5, 5, 6]

    until(is_balanced, f"the table to be spread: {world.held()}", DEADLINE_S)
    world.await_normal("n3")
    until(world.rows_are_whole, "the rows to be on the replicas of the tablet map", DEADLINE_S)
    world.check_rows()
    explained(world)

    plans = world.plans()
    authors = {entry.submitter for entry, _ in plans}
    assert len(authors) > 1, "the killed balancer and its successor"
    moves = [move for _, plan in plans for move in plan.migrations if move.from_ and move.to]
    between = [move for move in moves if move.from_ and move.to and move.from_.node != move.to.node]
    assert len(between) == 5, "no tablet moves more than necessary"
    print(f"{len(plans)} plans, {len(moves)} moves, {len(world.keys)} rows; tablets: {world.held()}", flush=True)


def explained(world: BalancerWorld) -> None:
    """Check that the command line shows the balance and why no tablet moves."""

    def reported() -> bool:
        return set(world.reported()) == set(world.nodes) and all(world.reported().values())

    until(reported, "each node to report the bytes of its tablets", DEADLINE_S)
    shown = world.run("balance", "status")
    assert {row["node"]: row["tablets"] for row in shown["nodes"]} == world.held()
    assert all(sum(row["shards"]) == row["tablets"] for row in shown["nodes"])
    assert all(row["bytes"] for row in shown["nodes"])
    assert (shown["moving"], shown["pauses"], shown["migrations"], shown["ignored"]) == ([], [], [], [])
    why = world.run("balance", "--why")
    assert why["migrations"] == why["refused"] == why["obstacles"] == why["resizes"] == []
    assert [stop["code"] for stop in why["stops"] if stop["what"] == "dc1"] in (["balanced"], ["load_inversion"])
    there = next(tablet.index for tablet in world.tablets if "n3" in world.names(tablet.index))
    told = world.run("tablet", "explain", TABLE, str(there))
    assert "n3" in [node for node, _ in told["replicas"]]
    assert told["moves"] is None
    assert {stay["code"] for stay in told["stays"]} <= {"balanced", "load_inversion"}
