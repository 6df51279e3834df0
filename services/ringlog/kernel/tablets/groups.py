"""The groups of a tablet, in the form of any range: its readers, its writers, its changes and the sources of its rows.

A tablet gives the same answer as a range (``RangeGroup``), so replica plans, their re-check and the quorums of a safe
write (R1 to R7) do not distinguish tablets. Within one node only the shard changes, and the groups stay.

``since`` of a member is the epoch when it began to take writes. ``changed`` is later if a member serves reads only
since a later epoch. A read that was answered before ``changed`` does not count.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlog.kernel.model.state import ClusterState, Node, RangeGroup, Replica
from ringlog.kernel.model.tables import Table
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.operations.moving import RangeChange, moving_at
from ringlog.kernel.operations.sources import NO_SOURCE, sources_of
from ringlog.kernel.ownership.placements import group_at, placement_of_keyspace
from ringlog.kernel.tablets.stages import (
    SALVAGING,
    STAGES,
    Side,
    is_salvage,
    kind_of,
    nodes_of,
    pending,
    readers,
    writers,
)
from ringlog.kernel.values import NodeId, Token

Serving = tuple[RangeGroup, tuple[RangeChange, ...]]
"""The group of a token, and the changes in flight of its write group."""


def group_of(tablet: Tablet) -> RangeGroup:
    """Return the present read and write groups of a tablet."""
    transition = tablet.transition
    changed = max(tablet.changed, transition.changed) if transition is not None else tablet.changed
    return RangeGroup(tablet.start, tablet.end, _group(readers(tablet)), _group(writers(tablet)), changed)


def moving_of(table: str, tablet: Tablet) -> tuple[RangeChange, ...]:
    """Return the change in flight of a tablet whose old and new replicas both take writes: at most one."""
    transition = tablet.transition
    if transition is None or STAGES[transition.stage].writes is not Side.BOTH:
        return ()
    old, new = set(nodes_of(tablet.replicas)), set(nodes_of(transition.next))
    if old == new:
        return ()
    name = f"{table}/{tablet.index}"
    return (RangeChange(name, tuple(sorted(new.difference(old))), tuple(sorted(old.difference(new)))),)


def serving(state: ClusterState, keyspace: str, table: str, token: Token) -> Serving | None:
    """Return the group that serves a token of a table, and its changes in flight; None if there is none.

    ``table``: its bare name. A keyspace in tablets has no answer without a table. O(log n).
    """
    name = f"{keyspace}.{table}"
    tablets = state.tablets.get(name)
    if tablets is None and (found := state.tables.get(name)) is not None:
        tablets = map_of(state, found)
    if tablets is not None:
        index = tablets.index_of(token)
        if index not in tablets.transitions:
            return _settled(tablets, index), ()
        tablet = tablets.tablet(index)
        return group_of(tablet), moving_of(tablets.table, tablet)
    placement = placement_of_keyspace(state, keyspace)
    if placement is None or not placement.ends:
        return None
    return group_at(placement, token), moving_at(state, placement.key, token)


def _settled(tablets: TabletMap, index: int) -> RangeGroup:
    """Return ``group_of`` a tablet without a transition. This is the fast path, because nearly every request
    needs it.
    """
    changed, nodes, since = tablets.settled(index)
    replicas = tuple(map(Replica, nodes, since))
    return RangeGroup(tablets.ends[index - 1], tablets.ends[index], replicas, replicas, changed)


def map_of(state: ClusterState, table: Table) -> TabletMap | None:
    """Return the tablets of a table, its own or those of its base table; None if it is not in tablets."""
    if table.tablets is None:
        return None
    return state.tablets[f"{table.keyspace}.{table.tablets.base}" if table.tablets.base else table.full_name]


def streams_of(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[tuple[NodeId, NodeId], ...]:
    """Return the (source, target) pairs for the rows of a tablet in transition: see ``operations.sources``.

    Within a node, the node is source and target. In a salvage the sources are all other living replicas, or the target
    if there are none. If no loss was admitted, a majority must be alive. ``anywhere``: the replication knows no
    datacenters.

    A source is empty if too few replicas are alive to know every row. If all missing replicas have left, no other node
    will ever know more. Then all remaining replicas are merged. If none remain, the new replica starts empty, with
    itself as source (decision 134).
    """
    transition = tablet.transition
    assert transition is not None, "only rows of a migrating tablet move"
    coming = pending(tablet)
    if kind_of(transition).within_node and coming is not None:
        return ((coming.node, coming.node),)
    old, new = nodes_of(tablet.replicas), nodes_of(transition.next)
    if is_salvage(transition):
        others = [node for node in old if not is_dead(nodes[node]) and node not in new]
        if not kind_of(transition).admits_loss and not has_majority(old, nodes):
            others = [NO_SOURCE]
        return tuple((one, target) for target in new for one in others or [target])
    dead = frozenset(node for node in {*old, *new} if is_dead(nodes[node]))
    sources = sources_of(old, new, nodes, dead, anywhere, as_one=anywhere)
    if not is_forfeited(old, nodes):
        return tuple(sources)
    known = [node for node in old if node not in dead]
    return tuple(
        (one, target)
        for source, target in sources
        for one in ([source] if source != NO_SOURCE else [one for one in known if one != target] or [target])
    )


def irreplaceable(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[NodeId, ...]:
    """Return the dead replicas without which the living do not know every row that a transition streams; empty if they
    do.
    """
    if all(source != NO_SOURCE for source, _ in streams_of(tablet, nodes, anywhere)):
        return ()
    return tuple([node for node in nodes_of(tablet.replicas) if is_dead(nodes[node])])


def missed(tablet: Tablet, nodes: Mapping[NodeId, Node]) -> tuple[NodeId, ...]:
    """Return the dead replicas that a salvage waits for because no loss was admitted; empty if it may continue."""
    transition = tablet.transition
    return irreplaceable(tablet, nodes, True) if transition is not None and transition.stage == SALVAGING else ()


def has_majority(group: tuple[NodeId, ...], nodes: Mapping[NodeId, Node]) -> bool:
    """Return whether more than half of a group is alive, or all its dead nodes have left.

    A living majority has everything that any majority has written. If the dead have left, no node will ever have more.
    """
    return 2 * sum(not is_dead(nodes[node]) for node in group) > len(group) or is_forfeited(group, nodes)


def is_forfeited(group: tuple[NodeId, ...], nodes: Mapping[NodeId, Node]) -> bool:
    """Return whether all dead replicas have left: then no node that may return knows more than the living."""
    return all(nodes[node].state == "left" for node in group if is_dead(nodes[node]))


def is_dead(node: Node) -> bool:
    """Return whether nothing is expected from a node: it was declared down, or has left."""
    return node.down or node.state == "left"


def _group(replicas: tuple[TabletReplica, ...]) -> tuple[Replica, ...]:
    return tuple([Replica(replica.node, replica.since) for replica in replicas])
