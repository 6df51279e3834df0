"""The data of a zone: tables whose tablets are its partitions.

A table of a keyspace that is placed by a zone has a tablet for each partition of it. A partition says where its tablets
belong; they get there as all tablets do (``kernel.tablets``), one replica at a time, so requests, quorums, gates and
CDC streams are those of tablets. A step of a partition counts as applied only when its tablets are there:

=====================  =========================  =========================================  =======================
a partition            must have its tablets      may keep them                              left when
=====================  =========================  =========================================  =======================
at rest                who has it                 nobody else
has a step before it   who has the step           who has the last step of the queue, too,   all must have them
                                                  and who had it at rest and is planned to
is being cancelled     who had it before          nobody else                                the living must have them
=====================  =========================  =========================================  =======================

A node whose role changes is out of a group in between (``zones.queue``); it keeps its tablets meanwhile. So does one
that goes and is planned to come back, unless its replica is to be made anew, or the step is a reset's. On the way back
a dead node is not waited for: it may never return; when it does it gets its tablets, also those of tables that
were created meanwhile.

Invariant: the replicas of a tablet, and those that it is to have, are on nodes that its partition has, had at rest, or
goes to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.model.zones import Zone, ZonePartition, partition_key
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.mutual_exclusion import drained_by, replication_of, targets
from ringlog.kernel.values import NodeId
from ringlog.kernel.zones.distribution import is_alive

Nodes = frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class ZoneGoal:
    """Where the tablets of a partition belong: on the nodes that ``must`` have them, and nobody but who ``may``.

    ``forward``: every node must have them before the step is left; else only those that are alive.
    """

    must: Nodes
    may: Nodes
    forward: bool


def goal_of(partition: ZonePartition) -> ZoneGoal:
    """Where the tablets of a partition belong now."""
    if partition.cancel is not None:
        return _back(partition)
    if partition.pending:
        head = frozenset(partition.pending[0].nodes)
        return ZoneGoal(head, head.union(partition.pending[-1].nodes, _stays(partition)), forward=True)
    have = frozenset(() if partition.stable is None else partition.stable.nodes)
    return ZoneGoal(have, have, forward=False)


def _stays(partition: ZonePartition) -> Nodes:
    """Who had a partition at rest, and is planned to have it again behind what is pending."""
    stable, planned = partition.stable, partition.planned
    if stable is None or planned is None or partition.reduce or partition.append or partition.pending[0].forced:
        return frozenset()
    return frozenset(stable.nodes).intersection(planned.nodes)


def _back(partition: ZonePartition) -> ZoneGoal:
    assert partition.cancel is not None, "it is being cancelled"
    old = frozenset(partition.cancel.old.nodes)
    return ZoneGoal(old, old, forward=False)


def keyspaces_in(state: ClusterState, zone: str) -> list[str]:
    """The keyspaces that a zone places, by name."""
    return [name for name, one in in_order(state.keyspaces) if one.replication.zone == zone]


def zone_of(state: ClusterState, table: str) -> str:
    """The zone of a table that has tablets; empty if it is in none."""
    return replication_of(state, table).zone


def partition_of(state: ClusterState, table: str, number: int) -> ZonePartition:
    """The partition that a tablet of a table is of; the table is in a zone."""
    return state.zone_partitions[partition_key(zone_of(state, table), number)]


def maps_in(state: ClusterState, zone: str) -> Iterator[TabletMap]:
    """The maps of the tables that a zone places, by table."""
    used = frozenset(keyspaces_in(state, zone))
    for name, tablets in in_order(state.tablets) if used else ():
        if state.tables[name].keyspace in used:
            yield tablets


def takers(state: ClusterState) -> Nodes:
    """The nodes to which a tablet of a zone may be moved now. Who is asked to leave is one: his operation waits until
    he has no tablets, and a partition that goes through him would else stand still.
    """
    leaving = (state.nodes[node] for node in drained_by(state))
    return frozenset(targets(state)).union(node.id for node in leaving if not node.down and node.state == "leaving")


def holders(tablet: Tablet) -> Nodes:
    """The nodes that have a tablet."""
    return frozenset(replica.node for replica in tablet.replicas)


# ---------------------------------------------------------------------------------------------------------- gates


def awaits_step(state: ClusterState, partition: ZonePartition) -> Rejected | None:
    """Why the pending step may not count as applied yet, for the sake of data; None if it may."""
    goal = goal_of(partition)
    if partition.cancel is not None:  # the steps behind it go: nobody but its nodes is left
        head = frozenset(partition.pending[0].nodes)
        goal = ZoneGoal(head, head, forward=True)
    return _awaits(state, partition, goal)


def awaits_return(state: ClusterState, partition: ZonePartition) -> Rejected | None:
    """Why a cancel may not count as done yet, for the sake of data; None if it may."""
    return _awaits(state, partition, _back(partition))


def elsewhere(state: ClusterState, partition: ZonePartition, goal: ZoneGoal) -> Iterator[tuple[TabletMap, Tablet]]:
    """The tablets of a partition that are in transition, or not where ``goal`` has them, by table."""
    must = goal.must if goal.forward else frozenset(node for node in goal.must if is_alive(state, node))
    for tablets in maps_in(state, partition.zone):
        tablet = tablets.tablet(partition.number)
        if tablet.transition is not None or not must <= holders(tablet) <= goal.may:
            yield tablets, tablet


def _awaits(state: ClusterState, partition: ZonePartition, goal: ZoneGoal) -> Rejected | None:
    for tablets, tablet in elsewhere(state, partition, goal):
        where = f"{tablets.table}/{tablet.index}"
        stage = "" if tablet.transition is None else f", in {tablet.transition.stage}"
        there, wanted = (_names(state, nodes) for nodes in (holders(tablet), goal.must))
        return Rejected("awaits_data", f"partition: tablet {where} is on {there}{stage}; it belongs on {wanted}")
    return None


def _names(state: ClusterState, nodes: Nodes) -> str:
    return ", ".join(sorted(state.nodes[node].name for node in nodes))


# ------------------------------------------------------------------------------------------------------ migrations


def refused_by_zone(
    state: ClusterState, partition: ZonePartition, tablet: Tablet, source: NodeId | None, target: NodeId | None
) -> Rejected | None:
    """Why a replica of a tablet may not leave ``source``, or come to ``target``; None if it may."""
    goal, where = goal_of(partition), f"{partition.zone}/{partition.number}"
    if target is not None and target not in goal.must:
        text = f"to: partition {where} does not go to {state.nodes[target].name}"
        return Rejected("outside_of_partition", f"{text}, but to {_names(state, goal.must)}")
    if target is not None and target not in takers(state):
        return Rejected("wrong_node_state", f"to: {state.nodes[target].name} is given no tablets")
    if source is not None and source in goal.may:
        return Rejected("outside_of_partition", f"from: partition {where} does not leave {state.nodes[source].name}")
    if target is None and not may_shrink(state, goal, tablet):
        return Rejected("replicas_as_wanted", f"kind: partition {where} belongs on {_names(state, goal.must)}")
    return None


def may_shrink(state: ClusterState, goal: ZoneGoal, tablet: Tablet) -> bool:
    """True if a tablet has all replicas that it must have, so that one too many may go. On the way back that is each
    of the living, if they are a majority of those who may ever be there again.
    """
    there = holders(tablet)
    missing = goal.must - there
    if goal.forward:
        return not missing
    awaited = frozenset(node for node in goal.must if state.nodes[node].state != "left")
    return not any(is_alive(state, node) for node in missing) and 2 * len(awaited & there) > len(awaited)


# -------------------------------------------------------------------------------------------------------- creation


def unplaced(state: ClusterState, zone: Zone) -> str:
    """Why tablets of a new table have no place in a zone; empty if they have.

    Of the nodes of each partition a majority must be there; the others get theirs when they come back.
    """
    ready = frozenset(targets(state))
    for number in range(zone.partitions):
        reached = state.zone_partitions[partition_key(zone.name, number)].reached
        nodes = frozenset(() if reached is None else reached.nodes)
        if not nodes:
            return f"partition {zone.name}/{number} is on no nodes yet"
        if 2 * len(nodes & ready) <= len(nodes):
            away = _names(state, nodes - ready)
            return f"of the nodes of partition {zone.name}/{number} too few are normal and up; not so: {away}"
    return ""


def first_replicas(state: ClusterState, zone: Zone, held: dict[NodeId, int], epoch: int) -> list[list[TabletReplica]]:
    """The replicas of the tablets of a new table, which have a place (``unplaced``). The shards of a node take turns;
    ``held``: how many replicas each node has.
    """
    ready, turn, groups = targets(state), dict(held), []
    for number in range(zone.partitions):
        reached = state.zone_partitions[partition_key(zone.name, number)].reached
        assert reached is not None, "the zone's partitions have their places"
        group = []
        for node in reached.nodes:
            if node in ready:
                at = turn.get(node, 0)
                turn[node] = at + 1
                group.append(TabletReplica(node, at % ready[node].shards, epoch))
        groups.append(group)
    return groups


def in_zone(state: ClusterState, table: str) -> bool:
    """True if the tablets of a table are partitions of a zone."""
    return strategy_of(replication_of(state, table)).by_zone
