"""Mutual exclusion of tablet transitions and node operations.

Both change the groups that serve data, and share gates and fences. So either tablets are in transition, or an operation
is past ``requested``; the other side waits. An operation in ``requested`` that could continue keeps new transitions
from starting and lets running ones end. An operation that *drains* (its node leaves and still has tablets) does not: it
waits for transitions, and they may start.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Load balancing", and its ``paused_requests``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Node, Operation, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, Transition
from ringlog.kernel.operations.gates import leaving_node
from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.sources import quorum_sources
from ringlog.kernel.operations.stages import REQUESTED, in_flight
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.ownership.strategies import impossible
from ringlog.kernel.service import holds_place
from ringlog.kernel.tablets.allocation import census, eligible
from ringlog.kernel.tablets.groups import is_dead
from ringlog.kernel.tablets.stages import nodes_of, readers
from ringlog.kernel.values import NodeId, Replication


def transitions(state: ClusterState) -> Iterator[tuple[TabletMap, Transition]]:
    """Yield all transitions with the map of their table, by table and tablet."""
    for _, tablets in in_order(state.tablets):
        for _, transition in in_order(tablets.transitions):
            yield tablets, transition


def tables_on(state: ClusterState, node: NodeId) -> tuple[str, ...]:
    """Return the tables, by name, with a tablet that a node has or will have."""
    return tuple(name for name, tablets in in_order(state.tablets) if is_on(tablets, node))


def is_on(tablets: TabletMap, node: NodeId) -> bool:
    """Return whether a node has or will have one of the tablets."""
    if node in tablets.nodes and tablets.held[tablets.nodes.index(node)]:
        return True
    return any(replica.node == node for one in tablets.transitions.values() for replica in one.next)


def lost_without(state: ClusterState, node: NodeId) -> Iterator[str]:
    """Yield the tablets of a dead node whose rows the living do not all know, as ``table/number``."""
    for name in tables_on(state, node):
        for tablet in state.tablets[name]:
            moving = tablet.transition
            is_there = node in nodes_of(tablet.replicas if moving is None else (*tablet.replicas, *moving.next))
            if is_there and not knows_every_row(state, name, nodes_of(readers(tablet))):
                yield f"{name}/{tablet.index}"


def is_draining(state: ClusterState, operation: Operation) -> bool:
    """Return whether the operation waits until its node has no tablets and no place in the metadata service."""
    node = leaving_node(operation)
    waits = operation.stage == REQUESTED and bool(node)
    return waits and (holds_place(state, node) or bool(tables_on(state, node)))


def drained_by(state: ClusterState) -> dict[NodeId, Operation]:
    """Return the nodes that must give their tablets away, each with its operation."""
    return {node: one for one in in_flight(state) if one.stage == REQUESTED and (node := leaving_node(one))}


def must_wait(state: ClusterState, operation: Operation) -> Rejected | None:
    """Return why tablets, or the metadata service, keep a requested operation from continuing; None if they do not."""
    node = leaving_node(operation)
    if node and holds_place(state, node):
        text = f"{state.nodes[node].name} must first leave the metadata service"
        return Rejected("awaits_service", f"operation: {text}")
    if node and (tables := tables_on(state, node)):
        name = state.nodes[node].name
        return Rejected(
            "awaits_tablets", f"operation: {name} has tablets of {len(tables)} tables, the first is {tables[0]}"
        )
    for tablets, transition in transitions(state):
        where = f"{tablets.table}/{transition.tablet} is in {transition.stage}"
        return Rejected("awaits_tablets", f"operation: {operation.id} waits for migrating tablets: {where}")
    return None


def may_begin(state: ClusterState) -> Rejected | None:
    """Return why no transition may start now; None if transitions may start."""
    for operation in in_flight(state):
        if not is_draining(state, operation):
            why = f"{operation.id} ({operation.stage}) and migrating tablets exclude each other"
            return Rejected("operations_in_flight", f"migrations: {why}")
    return None


def targets(state: ClusterState) -> dict[NodeId, Node]:
    """Return the nodes that may receive tablets now: ``eligible`` nodes that are not asked to leave, and replacing
    nodes.
    """
    found = eligible(state)
    for operation in drained_by(state).values():
        if kind_of(operation).brings_node and not state.nodes[operation.node].down:
            found[operation.node] = state.nodes[operation.node]
    return found


def undrainable(state: ClusterState, node: NodeId, instead: NodeId = "") -> Rejected | None:
    """Return why the tablets of a node have no other place, with table and rack; None if they have one.

    ``instead``: the node that replaces it.
    """
    assert instead != node, "the replacing node is another node"
    left = {name: found for name, found in targets(state).items() if name != node}
    if instead:
        left[instead] = state.nodes[instead]
    known = census(left)
    for table in tables_on(state, node):
        replication = replication_of(state, table)
        by_zone = strategy_of(replication).by_zone
        why = _no_other(state, replication.zone, left) if by_zone else impossible(replication, known)
        if why:
            where = state.nodes[node]
            text = f"tablets of {table} on {where.name} (rack {where.rack} of {where.datacenter}) have no other node"
            return Rejected("drain_impossible", f"node: {text}: {why}")
    return None


def _no_other(state: ClusterState, zone: str, left: Mapping[NodeId, Node]) -> str:
    """Return why a zone cannot place its data on these nodes; empty if it can."""
    return "" if any(node in left for node in state.zones[zone].nodes) else f"zone {zone} has no other data node"


def replication_of(state: ClusterState, table: str) -> Replication:
    """Return the replication of a table's keyspace."""
    return state.keyspaces[state.tables[table].keyspace].replication


def knows_every_row(state: ClusterState, table: str, group: tuple[NodeId, ...]) -> bool:
    """Return whether the living nodes of a group of a table know every write of a quorum of it."""
    dead = [node for node in group if is_dead(state.nodes[node])]
    return bool(quorum_sources(state.nodes, group, dead, is_anywhere(state, table)))


def is_worse_off(state: ClusterState, table: str, tablet: Tablet) -> bool:
    """Return whether the new replicas, which are read, serve the tablet worse than the old ones would.

    That is: more of them are dead, or only the old group's living nodes know every row.
    """
    assert tablet.transition is not None, "a settled tablet has one group"
    old, new = nodes_of(tablet.replicas), nodes_of(tablet.transition.next)
    dead = [sum(is_dead(state.nodes[node]) for node in group) for group in (old, new)]
    return dead[1] > dead[0] or (knows_every_row(state, table, old) and not knows_every_row(state, table, new))


def is_anywhere(state: ClusterState, table: str) -> bool:
    """Return whether the replication of a table names no datacenters. Then each of its groups counts as one."""
    return not replication_of(state, table).datacenters
