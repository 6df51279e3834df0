"""Clusters with tablets, and a driver that advances tablets through their stages as a coordinator does."""

from __future__ import annotations

from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.placement.tablets import (
    AdvanceTablets,
    MigrateTablets,
    Shard,
    TabletAdvance,
    TabletMigration,
)
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Outcome
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, advance
from ringlog.kernel.model.tablet_map import Tablet
from ringlog.kernel.tablets.gates import reporters
from ringlog.kernel.tablets.mutual_exclusion import is_anywhere
from ringlog.kernel.tablets.stages import next_stage, session
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    Command,
    DatacenterReplication,
    Replication,
    StreamReport,
    TabletOptions,
    Witness,
    replace,
)
from tests.kernel.entries import applied, entry, uuid

TABLE = "ks.t"


def node_id(number: int) -> str:
    return uuid(number, space=7)


def register(number: int, rack: str = "r1", datacenter: str = "dc1", shards: int = 2) -> RegisterNode:
    name = f"n{number}"
    return RegisterNode(name, node_id(number), f"{name}:7000", datacenter, rack, shards, 12, "1", (), 1)


def normal(state: ClusterState, *nodes: RegisterNode) -> ClusterState:
    """Make the nodes normal with one token each, without barriers."""
    state = applied(state, *nodes)
    for one in nodes:
        token = 1_000 * (len(state.token_owners) + 1)
        nodes = state.nodes.set(one.id, replace(state.nodes[one.id], state="normal", tokens=(token,)))
        state = advance(state, state.epoch, nodes=nodes, token_owners=state.token_owners.set(token, one.id))
    return state


def cluster(*nodes: RegisterNode) -> ClusterState:
    return normal(applied(EMPTY_STATE, InitializeCluster("c")), *nodes)


def three_racks(shards: int = 2) -> ClusterState:
    """Return nodes 1 to 6, two in each of three racks."""
    return cluster(*[register(number, f"r{(number - 1) % 3 + 1}", shards=shards) for number in range(1, 7)])


def factor(count: int) -> Replication:
    return Replication("tablets", count)


def racks(*names: str) -> Replication:
    return Replication("tablets", len(names), (DatacenterReplication("dc1", len(names), names),))


def create_table(name: str = "t", tablets: TabletOptions | None = None, number: int = 1) -> CreateTable:
    columns = (Column("a", "int"),)
    return CreateTable("ks", name, uuid(number, space=9), columns, ("a",), (), CdcOptions(), tablets=tablets)


def with_table(state: ClusterState, replication: Replication, count: int) -> ClusterState:
    return applied(state, CreateKeyspace("ks", replication), create_table(tablets=TabletOptions(count)))


def tablet(state: ClusterState, index: int = 0, table: str = TABLE) -> Tablet:
    return state.tablets[table].tablet(index)


def places(found: Tablet) -> list[tuple[str, int]]:
    return [(replica.node, replica.shard) for replica in found.replicas]


def free_node(state: ClusterState, index: int = 0, rack: str = "") -> str:
    """Return a node of that rack without a replica of the tablet."""
    taken = {node for node, _ in places(tablet(state, index))}
    found = (one for one in state.nodes.values() if one.state == "normal" and one.id not in taken)
    return min(one.id for one in found if rack in ("", one.rack))


def migration(state: ClusterState, index: int = 0, source: int = 0) -> TabletMigration:
    """Return a move of one replica to a free node of its rack, or of any rack."""
    node, shard = places(tablet(state, index))[source]
    to = free_node(state, index, state.nodes[node].rack)
    return TabletMigration(TABLE, index, "migration", Shard(node, shard), Shard(to, 1))


def witnesses(state: ClusterState, *without: str) -> tuple[Witness, ...]:
    alive = [one.id for one in state.nodes.values() if one.state not in ("none", "left") and not one.down]
    return tuple(Witness(one, state.epoch, state.epoch) for one in sorted(alive) if one not in without)


def reports(state: ClusterState, index: int = 0, table: str = TABLE) -> tuple[StreamReport, ...]:
    found = tablet(state, index, table)
    assert found.transition is not None
    own = session(table, index, found.transition)
    who = reporters(found, state.nodes, is_anywhere(state, table)) if own else ()
    return tuple(StreamReport(one, own, 1, "00") for one in who)


def step(state: ClusterState, index: int = 0, table: str = TABLE) -> AdvanceTablets:
    """Return the command that advances a tablet, with all possible acknowledgements."""
    transition = tablet(state, index, table).transition
    assert transition is not None
    advance = TabletAdvance(table, index, next_stage(transition), (), reports(state, index, table))
    return AdvanceTablets((advance,), witnesses(state))


def started(state: ClusterState, one: TabletMigration, stage: str = "") -> ClusterState:
    """Start the transition and advance it to ``stage``."""
    state = applied(state, MigrateTablets((one,)))
    while stage and (found := tablet(state, one.tablet, one.table).transition) is not None and found.stage != stage:
        state = applied(state, step(state, one.tablet, one.table))
    return state


def settled(state: ClusterState, index: int = 0, table: str = TABLE) -> ClusterState:
    """Advance the tablet to the end of its transition."""
    while tablet(state, index, table).transition is not None:
        state = applied(state, step(state, index, table))
    return state


def outcome(state: ClusterState, command: Command) -> Outcome:
    return fold(state, entry(state, command)).outcome


def refused(state: ClusterState, command: Command) -> str:
    """Return the code of the rejection, or ``applied``."""
    found = outcome(state, command)
    return found.code or found.kind.value


def joining(state: ClusterState, number: int) -> ClusterState:
    """Register a node and request its join."""
    return applied(state, register(number), Join(node_id(number), (77_000 + number,), bytes(16)))
