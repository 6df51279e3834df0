"""The groups of a tablet, as those of any range: who reads, who writes, what is moving, whom the rows come from.

A tablet answers the question that a range answers (``RangeGroup``), so that replica plans, their re-check and the
quorums of a safe write (R1 to R7) know no tablets. Within one node only the shard changes: its groups stay.

``since`` of a member is that of its writing; ``changed`` is later wherever it reads since later, and a read that was
answered before ``changed`` counts no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringlog.kernel.columns.fast_dataclass import maker_of
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

_new_replica: Final = maker_of(Replica)
_new_group: Final = maker_of(RangeGroup)

Serving = tuple[RangeGroup, tuple[RangeChange, ...]]
"""Read group and write group of a token, since which epoch, and what moves in the write group."""


def group_of(tablet: Tablet) -> RangeGroup:
    """The read and the write group of a tablet now."""
    transition = tablet.transition
    changed = max(tablet.changed, transition.changed) if transition is not None else tablet.changed
    return RangeGroup(tablet.start, tablet.end, _group(readers(tablet)), _group(writers(tablet)), changed)


def moving_of(table: str, tablet: Tablet) -> tuple[RangeChange, ...]:
    """What moves in a tablet that two sets of replicas write: at most one thing."""
    transition = tablet.transition
    if transition is None or STAGES[transition.stage].writes is not Side.BOTH:
        return ()
    old, new = set(nodes_of(tablet.replicas)), set(nodes_of(transition.next))
    if old == new:
        return ()
    name = f"{table}/{tablet.index}"
    return (RangeChange(name, tuple(sorted(new.difference(old))), tuple(sorted(old.difference(new)))),)


def serving(state: ClusterState, keyspace: str, table: str, token: Token) -> Serving | None:
    """Who serves a token of a table, and what is moving there; None if nobody does. ``table``: its bare name.

    A keyspace in tablets has no answer without a table. O(log n).
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
    """``group_of`` a tablet that is in no transition, as nearly all are: each request of a table asks for one."""
    changed, nodes, since = tablets.settled(index)
    replicas = tuple(map(_new_replica, nodes, since))
    return _new_group(tablets.ends[index - 1], tablets.ends[index], replicas, replicas, changed)


def map_of(state: ClusterState, table: Table) -> TabletMap | None:
    """The tablets of a table, its own or those that it shares; None if it is not in tablets."""
    if table.tablets is None:
        return None
    return state.tablets[f"{table.keyspace}.{table.tablets.base}" if table.tablets.base else table.full_name]


def streams_of(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[tuple[NodeId, NodeId], ...]:
    """(source, target) of the rows of a tablet in transition: see ``operations.sources``.

    Within a node it is both. In a salvage all others who live are sources, or itself; where nobody has admitted a
    loss, a majority must live. ``anywhere``: its replication knows no datacenters. A source is empty where too few
    replicas are alive to know every row. If those that are missing have left, nobody else ever will: then all who are
    there are merged, and who comes begins with nothing where nobody is, as from itself (decision 134).
    """
    transition = tablet.transition
    assert transition is not None, "rows move in a transition"
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


def unknowing(tablet: Tablet, nodes: Mapping[NodeId, Node], anywhere: bool) -> tuple[NodeId, ...]:
    """The dead without whom nobody knows every row that a transition streams; none if the living do."""
    if all(source != NO_SOURCE for source, _ in streams_of(tablet, nodes, anywhere)):
        return ()
    return tuple([node for node in nodes_of(tablet.replicas) if is_dead(nodes[node])])


def missed(tablet: Tablet, nodes: Mapping[NodeId, Node]) -> tuple[NodeId, ...]:
    """The dead without whom a salvage, whose loss nobody has admitted, does not go on; none if it may."""
    transition = tablet.transition
    return unknowing(tablet, nodes, True) if transition is not None and transition.stage == SALVAGING else ()


def has_majority(group: tuple[NodeId, ...], nodes: Mapping[NodeId, Node]) -> bool:
    """True if more than half of a group is alive, which then has what any majority of it has written; or if nobody else
    ever will have more.
    """
    return 2 * sum(not is_dead(nodes[node]) for node in group) > len(group) or is_forfeited(group, nodes)


def is_forfeited(group: tuple[NodeId, ...], nodes: Mapping[NodeId, Node]) -> bool:
    """True if all replicas that are dead have left: nobody who may come back knows more than those who are there."""
    return all(nodes[node].state == "left" for node in group if is_dead(nodes[node]))


def is_dead(node: Node) -> bool:
    """True for a node of which nothing is awaited: it was declared down, or has left."""
    return node.down or node.state == "left"


def _group(replicas: tuple[TabletReplica, ...]) -> tuple[Replica, ...]:
    return tuple([Replica(replica.node, replica.since) for replica in replicas])
