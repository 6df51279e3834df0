"""Admission of tablet transitions: placement, racks, living sources, and the limits on streaming (``streaming``)."""

from __future__ import annotations

from collections import Counter

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica, Transition
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.node_states import shown_state
from ringlog.kernel.tablets.gates import blocked_by
from ringlog.kernel.tablets.groups import irreplaceable, is_dead, is_forfeited
from ringlog.kernel.tablets.mutual_exclusion import (
    drained_by,
    is_anywhere,
    knows_every_row,
    replication_of,
    targets,
)
from ringlog.kernel.tablets.stages import (
    INTRANODE,
    MIGRATION,
    Giver,
    TransitionKind,
    kind_of,
    leaving,
    nodes_of,
    pending,
)
from ringlog.kernel.tablets.streaming import Streams
from ringlog.kernel.values import NodeId, Replication
from ringlog.kernel.zones.data import in_zone, partition_of, refused_by_zone


def refused_migration(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, step: Transition, running: Streams
) -> Rejected | None:
    """Return why ``step`` must not begin, or None; ``running`` then includes it.

    ``running``: the streams in the state and those of the transitions that were admitted before this one.
    """
    moved = Tablet(tablet.index, tablet.start, tablet.end, tablet.replicas, tablet.changed, step)
    source, target = leaving(moved), pending(moved)
    kind = kind_of(step)
    refused = _bad_shape(state, kind, source, target)
    placed = in_zone(state, tablets.table)
    if refused is None and placed and kind.exchanges and not kind.within_node:
        partition = partition_of(state, tablets.table, tablet.index)
        ends = (None if one is None else one.node for one in (source, target))
        refused = refused_by_zone(state, partition, tablet, *ends)
    if refused is None and not placed and target is not None and not kind.within_node:
        refused = _bad_place(state, tablets, tablet, source, target)
    if refused is None and kind.giver is Giver.OTHERS:
        refused = _unknowing(state, tablets.table, moved)
    if refused is None and (dead := blocked_by(state, tablets, moved)):
        names = ", ".join(state.nodes[node].name for node in dead)
        refused = Rejected("too_few_replicas", f"from: the move would wait for {names}, declared down")
    if refused is None and not placed and (source is None) != (target is None):
        refused = _unwanted(state, tablets, tablet, source or target, 1 if target is not None else -1)
    return refused or running.add(state, moved)


def _bad_shape(
    state: ClusterState, kind: TransitionKind, source: TabletReplica | None, target: TabletReplica | None
) -> Rejected | None:
    """Check that source and target are as the kind requires."""
    if target is not None:
        node = state.nodes.get(target.node)
        if node is None:
            return Rejected("unknown_node", f"to: {target.node} is not registered")
        if not 0 <= target.shard < node.shards:
            return Rejected("unknown_shard", f"to: {node.name} has shards 0 to {node.shards - 1}, no {target.shard}")
    if not kind.exchanges:
        return (
            None
            if source is target is None
            else Rejected("bad_field", f"kind: a {kind.name} takes no source and no target")
        )
    if kind.giver is Giver.LEAVING:
        if source is None or target is None:
            return Rejected("bad_field", f"kind: a {kind.name} needs a source shard and a target shard")
        if (source.node == target.node) != kind.within_node:
            return Rejected(
                "bad_field", f"kind: {INTRANODE.name} moves within a node, {MIGRATION.name} moves between nodes"
            )
        if is_dead(state.nodes[source.node]):
            return Rejected("wrong_node_state", f"from: {state.nodes[source.node].name} is dead: rebuild the replica")
        return None
    if source is None and target is None:
        return Rejected("bad_field", "kind: a rebuild needs a source shard, a target shard, or both")
    if source is not None and target is not None and not is_dead(state.nodes[source.node]):
        return Rejected("wrong_node_state", f"from: {state.nodes[source.node].name} is up: migrate the replica")
    return None


def _bad_place(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, source: TabletReplica | None, target: TabletReplica
) -> Rejected | None:
    """Check that the target may have the tablet."""
    node = state.nodes[target.node]
    if target.node not in targets(state):
        how = "is down" if node.down else f"is {shown_state(state, node.id)}"
        return Rejected("wrong_node_state", f"to: {node.name} {how}, so it receives no tablets")
    replication = replication_of(state, tablets.table)
    racks = _racks(replication, node.datacenter)
    if racks is None or (racks and node.rack not in racks):
        return Rejected("rack_pinned", f"to: the replication names neither {node.datacenter} nor its rack {node.rack}")
    if source is None:
        return None
    here = state.nodes[source.node]
    if replication.datacenters and here.datacenter != node.datacenter:
        return Rejected("other_datacenter", f"to: {node.name} is in {node.datacenter}, not in {here.datacenter}")
    if (here.datacenter, here.rack) == (node.datacenter, node.rack):
        return None
    if racks and here.rack in racks:
        return Rejected("rack_pinned", f"to: {node.name} is in rack {node.rack}, the replica is of rack {here.rack}")
    if source.node in drained_by(state) or is_dead(here):
        return None
    counted = Counter(_rack_of(state.nodes[one]) for one in nodes_of(tablet.replicas))
    if counted[_rack_of(node)] >= counted[_rack_of(here)]:
        return Rejected("rack_full", f"to: rack {node.rack} has as many replicas as rack {here.rack}")
    return None


def _rack_of(node: Node) -> tuple[str, str]:
    return node.datacenter, node.rack


def _racks(replication: Replication, datacenter: str) -> tuple[str, ...] | None:
    """Return the racks that a replication names in a datacenter (none: any), or None if it does not name the
    datacenter.
    """
    if not replication.datacenters:
        return ()
    return next((local.racks for local in replication.datacenters if local.datacenter == datacenter), None)


def _unknowing(state: ClusterState, table: str, moved: Tablet) -> Rejected | None:
    """Reject a rebuild or repair without enough sources: a quorum of the replicas, or all remaining ones."""
    if not (dead := needed(state, table, moved)):
        return None
    names, count = ", ".join(state.nodes[node].name for node in dead), len(moved.replicas)
    return Rejected(
        "too_few_replicas", f"from: without {names}, fewer than {quorum(count)} replicas would have all rows"
    )


def needed(state: ClusterState, table: str, moved: Tablet) -> tuple[NodeId, ...]:
    """Return the dead nodes without which the transition cannot rebuild or repair the tablet; empty if it can.

    Without them no group knows every row, or too few members of a smaller group can get the rows that they need.
    """
    group = nodes_of(moved.replicas)
    if knows_every_row(state, table, group) or is_forfeited(group, state.nodes):
        return irreplaceable(moved, state.nodes, is_anywhere(state, table))
    return tuple([node for node in group if is_dead(state.nodes[node])])


def _unwanted(
    state: ClusterState, tablets: TabletMap, tablet: Tablet, one: TabletReplica | None, change: int
) -> Rejected | None:
    """Reject an additional or removed replica that the replication does not ask for in that place."""
    assert one is not None, "the move adds or removes a replica"
    assert change in (-1, 1), "a move changes one replica"
    replication, node = replication_of(state, tablets.table), state.nodes[one.node]
    there = [state.nodes[other] for other in nodes_of(tablet.replicas)]
    factor, racks = replication.factor, frozenset[str]()
    if replication.datacenters:
        local = next((one for one in replication.datacenters if one.datacenter == node.datacenter), None)
        factor, racks = (0, racks) if local is None else (local.factor, frozenset(local.racks))
        there = [other for other in there if other.datacenter == node.datacenter]
    in_rack = sum(other.rack == node.rack for other in there)
    if racks and node.rack in racks:  # a listed rack has one replica, regardless of the others
        if in_rack + change >= 1 and (change < 0 or not in_rack):
            return None
    elif (len(there) - factor) * change < 0:
        return None
    return Rejected(
        "replicas_as_wanted", f"kind: the tablet has {len(there)} replicas, and the replication requires {factor}"
    )
