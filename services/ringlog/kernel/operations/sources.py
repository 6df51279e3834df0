"""The sources of the rows of a gained range.

A gaining node streams from the replica that it succeeds. Then the new group knows all that the old group knew, member
for member. If that replica is dead, or no node leaves, a quorum of the old group in each datacenter is merged: it meets
every quorum that made a write durable. Survivors fewer than a quorum also meet every quorum, as long as the missing
nodes are fewer than a quorum. Otherwise rows may be lost, and the gained range has no source (``unsourced``).

A group that shrinks has smaller quorums, and a leaving node takes rows with it that only leaving nodes may have. So a
quorum of the smaller group might not know all rows. Then enough of its members, also of those that stay, merge a quorum
of the old group. Each new quorum includes one of these members. So after every operation, a quorum of each group has
every write that a quorum has ever done. The next operation relies on that. Without this merge ``ringlog sim quorums``
finds reads that miss a write: from three replicas to one at once, from five to three also one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ringlog.kernel.model.state import Node
from ringlog.kernel.operations.gates import InDatacenter, parts_of, quorum
from ringlog.kernel.values import NodeId

NO_SOURCE: NodeId = ""
"""The source of rows that the living nodes may not fully know. A plan with this source is not admitted."""

Members = tuple[NodeId, ...]
"""The replicas of a range, in the order of the walk."""


def givers_of(
    entering: Sequence[NodeId], leaving: Sequence[NodeId], nodes: Mapping[NodeId, Node], anywhere: bool
) -> dict[NodeId, NodeId]:
    """Return the leaving node that each entering node succeeds: in the same datacenter and, if possible, in the same
    rack.
    """
    if len(entering) == len(leaving) == 1:
        (node,), (other,) = entering, leaving
        return {node: other} if anywhere or nodes[node].datacenter == nodes[other].datacenter else {}
    left = list(leaving)
    givers: dict[NodeId, NodeId] = {}
    for node in entering:
        here = nodes[node]
        local = [giver for giver in left if nodes[giver].datacenter == here.datacenter]
        local = local or (left if anywhere else [])
        giver = next((giver for giver in local if nodes[giver].rack == here.rack), local[0] if local else None)
        if giver is not None:
            left.remove(giver)
            givers[node] = giver
    assert len(set(givers.values())) == len(givers), "each leaving member is replaced by one node"
    return givers


def sources_of(
    old: Members,
    new: Members,
    nodes: Mapping[NodeId, Node],
    dead: frozenset[NodeId],
    anywhere: bool,
    as_one: bool = False,
) -> list[tuple[NodeId, NodeId]]:
    """Return the (source, target) pairs of entering nodes, and of members that must know more in a smaller group.

    The source is ``NO_SOURCE`` for a node that would have to merge while too few replicas are alive. ``as_one``: as for
    ``quorum_sources``.
    """
    assert len(set(old)) == len(old), "a group contains a node once"
    assert len(set(new)) == len(new), "a group contains a node once"
    entering = [node for node in new if node not in old]
    leaving = [node for node in old if node not in new]
    givers = givers_of(entering, leaving, nodes, anywhere)
    lost = [node for node in leaving if node not in givers.values()]
    merging = {node for node in entering if givers.get(node) in dead or node not in givers}
    if lost:
        scopes = _scopes((*old, *new), nodes, anywhere)
        fresh = [node for node in entering if node not in givers]
        merging.update(_surer((old, new), lost, fresh, merging, scopes, dead))
    sources = []
    for node in new:
        found = [givers[node]] if node in givers else []
        if node in merging:
            known = quorum_sources(nodes, sorted(old, key=lambda one: one != node), dead, as_one)
            found = [one for one in known if one != node] if node not in dead else []
            found = found or ([NO_SOURCE] if old else [])
        sources += [(source, node) for source in found]
    assert all(source != node for source, node in sources), "a node does not stream from itself"
    return sources


def _scopes(members: Iterable[NodeId], nodes: Mapping[NodeId, Node], anywhere: bool) -> list[set[NodeId]]:
    """Return ``members`` of each datacenter, if the setting knows datacenters, and all of them."""
    everybody = set(members)
    names = sorted({nodes[node].datacenter for node in everybody} if not anywhere else ())
    return [*({node for node in everybody if nodes[node].datacenter == name} for name in names), everybody]


def _surer(
    groups: tuple[Members, Members],
    lost: Sequence[NodeId],
    fresh: Sequence[NodeId],
    merging: Collection[NodeId],
    scopes: Iterable[Collection[NodeId]],
    dead: frozenset[NodeId],
) -> set[NodeId]:
    """Return further members of the new group that must merge because ``lost`` nodes leave without a successor.

    A quorum of the old group has a write, and at most ``lost`` of its members leave. The successors of the others have
    the write, and so does each of ``fresh``, which merge without a predecessor. If these may be fewer than a quorum of
    the new group, a quorum of it merges. If the setting knows datacenters, this must also hold in each datacenter.
    """
    more: set[NodeId] = set()
    for scope in scopes:
        old, new, gone, come = ([node for node in group if node in scope] for group in (*groups, lost, fresh))
        sure = quorum(len(old)) - len(gone) + len(come)
        if not old or not new or sure >= quorum(len(new)):
            continue
        left = sorted((node for node in new if node not in merging and node not in more), key=lambda one: one in dead)
        more.update(left[: max(0, quorum(len(new)) - (len(new) - len(left)))])
    return more


def quorum_sources(
    nodes: Mapping[NodeId, InDatacenter], group: Sequence[NodeId], dead: Iterable[NodeId], as_one: bool = False
) -> list[NodeId]:
    """Return living members that together know every write of a quorum of ``group``, overall and in each datacenter.

    Empty if too few are alive. ``as_one``: the group counts only as a whole (``gates.parts_of``).
    """
    chosen: list[NodeId] = []
    lost = set(dead)
    for _, local in parts_of(nodes, group, as_one):
        alive = [node for node in local if node not in lost]
        if len(local) - len(alive) >= quorum(len(local)):
            return []
        chosen += alive[: quorum(len(local))]
    assert lost.isdisjoint(chosen), "no source is down"
    return chosen
