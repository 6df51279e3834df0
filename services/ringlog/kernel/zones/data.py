"""The data of a zone: tables whose tablets are the zone's partitions.

A table in a keyspace that a zone places has one tablet for each partition of the zone. The partition decides where its
tablets belong. Tablets move there like all tablets (``kernel.tablets``), one replica at a time, so requests, quorums,
gates and CDC streams are those of tablets. A step of a partition counts as applied only when its tablets are on the
step's nodes:

=====================  ===========================  =========================================  =======================
a partition            nodes that must have its     nodes that may keep them                   condition to leave
                       tablets
=====================  ===========================  =========================================  =======================
settled                its nodes                    no other nodes                             none
has a pending step     the nodes of the step        also the nodes of the queue's last step,   all must have them
                                                    and stable nodes that are planned again
is being cancelled     the nodes before the step    no other nodes                             the living must have them
=====================  ===========================  =========================================  =======================

A node whose role changes is outside the group for one step (``zones.queue``) and keeps its tablets in that step. A node
that leaves and is planned to return keeps its tablets, too, unless its replica must be made again or the step is a
reset's. A cancel does not wait for dead nodes, because they may never return. A dead node that returns gets its
tablets, including those of tables created in the meantime.

Invariant: a tablet's current and future replicas are on nodes that its partition has, had when it was settled, or goes
to.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.model.zones import Zone, ZonePartition, partition_key
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.mutual_exclusion import drained_by, replication_of, targets
from ringlog.kernel.values import NodeId, Value
from ringlog.kernel.zones.distribution import is_alive

Nodes = frozenset[NodeId]


class ZoneGoal(Value):
    """The nodes where the tablets of a partition belong. Nodes in ``must`` have to have them; only nodes in ``may`` are
    allowed to have them.

    ``forward``: every node in ``must`` needs them before the partition leaves the step; otherwise only the living ones.
    """

    must: Nodes
    may: Nodes
    forward: bool

    def __post_init__(self) -> None:
        assert self.must <= self.may, "required nodes are permitted nodes"


def goal_of(partition: ZonePartition) -> ZoneGoal:
    """Return where the tablets of a partition belong now."""
    if partition.cancel is not None:
        return _back(partition)
    if partition.pending:
        head = frozenset(partition.pending[0].nodes)
        return ZoneGoal(head, head.union(partition.pending[-1].nodes, _stays(partition)), forward=True)
    have = frozenset(() if partition.stable is None else partition.stable.nodes)
    return ZoneGoal(have, have, forward=False)


def _stays(partition: ZonePartition) -> Nodes:
    """Return the stable nodes that are planned to have the partition again after the pending steps."""
    stable, planned = partition.stable, partition.planned
    if stable is None or planned is None or partition.reduce or partition.append or partition.pending[0].forced:
        return frozenset()
    return frozenset(stable.nodes).intersection(planned.nodes)


def _back(partition: ZonePartition) -> ZoneGoal:
    assert partition.cancel is not None, "the partition has a cancellation"
    old = frozenset(partition.cancel.old.nodes)
    return ZoneGoal(old, old, forward=False)


def keyspaces_in(state: ClusterState, zone: str) -> list[str]:
    """Return the keyspaces that a zone places, by name."""
    return [name for name, one in in_order(state.keyspaces) if one.replication.zone == zone]


def zone_of(state: ClusterState, table: str) -> str:
    """Return the zone of a table that has tablets. Empty: the table is in no zone."""
    return replication_of(state, table).zone


def partition_of(state: ClusterState, table: str, number: int) -> ZonePartition:
    """Return the partition of a tablet. The table is in a zone."""
    return state.zone_partitions[partition_key(zone_of(state, table), number)]


def maps_in(state: ClusterState, zone: str) -> Iterator[TabletMap]:
    """Yield the maps of the tables that a zone places, by table."""
    used = frozenset(keyspaces_in(state, zone))
    for name, tablets in in_order(state.tablets) if used else ():
        if state.tables[name].keyspace in used:
            yield tablets


def takers(state: ClusterState) -> Nodes:
    """Return the nodes that may receive a tablet of a zone now.

    A living node that is asked to leave is one of them. Its operation waits until it has no tablets, and a partition
    whose steps include the node would otherwise be stuck.
    """
    leaving = (state.nodes[node] for node in drained_by(state))
    return frozenset(targets(state)).union(node.id for node in leaving if not node.down and node.state == "leaving")


def holders(tablet: Tablet) -> Nodes:
    """Return the nodes that have a tablet."""
    return frozenset(replica.node for replica in tablet.replicas)


# ---------------------------------------------------------------------------------------------------------- gates


def awaits_step(state: ClusterState, partition: ZonePartition) -> Rejected | None:
    """Return why the tablets keep the pending step from counting as applied; None if they do not."""
    goal = goal_of(partition)
    if partition.cancel is not None:  # its later steps are dropped: only the nodes of this step may keep data
        head = frozenset(partition.pending[0].nodes)
        goal = ZoneGoal(head, head, forward=True)
    return _awaits(state, partition, goal)


def awaits_return(state: ClusterState, partition: ZonePartition) -> Rejected | None:
    """Return why the tablets keep a cancel from counting as finished; None if they do not."""
    return _awaits(state, partition, _back(partition))


def misplaced(state: ClusterState, partition: ZonePartition, goal: ZoneGoal) -> Iterator[tuple[TabletMap, Tablet]]:
    """Yield the tablets of a partition, by table, that are in transition or not on the nodes that ``goal`` asks for."""
    must = goal.must if goal.forward else frozenset(node for node in goal.must if is_alive(state, node))
    for tablets in maps_in(state, partition.zone):
        tablet = tablets.tablet(partition.number)
        if tablet.transition is not None or not must <= holders(tablet) <= goal.may:
            yield tablets, tablet


def _awaits(state: ClusterState, partition: ZonePartition, goal: ZoneGoal) -> Rejected | None:
    for tablets, tablet in misplaced(state, partition, goal):
        where = f"{tablets.table}/{tablet.index}"
        stage = "" if tablet.transition is None else f", in {tablet.transition.stage}"
        there, wanted = (_names(state, nodes) for nodes in (holders(tablet), goal.must))
        return Rejected("awaits_data", f"partition: tablet {where} is on {there}{stage} and must be on {wanted}")
    return None


def _names(state: ClusterState, nodes: Nodes) -> str:
    return ", ".join(sorted(state.nodes[node].name for node in nodes))


# ------------------------------------------------------------------------------------------------------ migrations


def refused_by_zone(
    state: ClusterState, partition: ZonePartition, tablet: Tablet, source: NodeId | None, target: NodeId | None
) -> Rejected | None:
    """Return why a replica of a tablet may not leave ``source`` or go to ``target``; None if it may."""
    goal, where = goal_of(partition), f"{partition.zone}/{partition.number}"
    if target is not None and target not in goal.must:
        text = f"to: partition {where} does not move to {state.nodes[target].name}"
        return Rejected("outside_of_partition", f"{text}, but to {_names(state, goal.must)}")
    if target is not None and target not in takers(state):
        return Rejected("wrong_node_state", f"to: {state.nodes[target].name} receives no tablets")
    if source is not None and source in goal.may:
        return Rejected("outside_of_partition", f"from: partition {where} does not leave {state.nodes[source].name}")
    if target is None and not may_shrink(state, goal, tablet):
        return Rejected("replicas_as_wanted", f"kind: partition {where} must be on {_names(state, goal.must)}")
    return None


def may_shrink(state: ClusterState, goal: ZoneGoal, tablet: Tablet) -> bool:
    """Return whether a tablet has all replicas that it must have, so that one extra replica may be removed.

    During a cancel it needs a replica on each living node, and these must be a majority of the nodes that have not
    left.
    """
    there = holders(tablet)
    missing = goal.must - there
    if goal.forward:
        return not missing
    awaited = frozenset(node for node in goal.must if state.nodes[node].state != "left")
    return not any(is_alive(state, node) for node in missing) and 2 * len(awaited & there) > len(awaited)


# -------------------------------------------------------------------------------------------------------- creation


def placement_obstacle(state: ClusterState, zone: Zone) -> str:
    """Return why a zone cannot place the tablets of a new table; empty if it can.

    A majority of each partition's nodes must be normal and up. The others get their tablets when they return.
    """
    ready = frozenset(targets(state))
    for number in range(zone.partitions):
        reached = state.zone_partitions[partition_key(zone.name, number)].reached
        nodes = frozenset(() if reached is None else reached.nodes)
        if not nodes:
            return f"partition {zone.name}/{number} is on no nodes yet"
        if 2 * len(nodes & ready) <= len(nodes):
            away = _names(state, nodes - ready)
            return f"partition {zone.name}/{number} needs more nodes that are normal and up; not ready: {away}"
    return ""


def first_replicas(state: ClusterState, zone: Zone, held: dict[NodeId, int], epoch: int) -> list[list[TabletReplica]]:
    """Return the replicas of each tablet of a new table that the zone can place (``placement_obstacle``).

    The shards of a node take turns. ``held``: the number of replicas that each node has.
    """
    ready, turn, groups = targets(state), dict(held), []
    for number in range(zone.partitions):
        reached = state.zone_partitions[partition_key(zone.name, number)].reached
        assert reached is not None, "the zone's partitions have configurations"
        group = []
        for node in reached.nodes:
            if node in ready:
                at = turn.get(node, 0)
                turn[node] = at + 1
                group.append(TabletReplica(node, at % ready[node].shards, epoch))
        assert group, "a zone that can place its tablets has living nodes for each"
        groups.append(group)
    return groups


def in_zone(state: ClusterState, table: str) -> bool:
    """Return whether the tablets of a table are partitions of a zone."""
    return strategy_of(replication_of(state, table)).by_zone
