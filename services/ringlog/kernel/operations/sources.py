"""Where the rows of a gained range come from.

Rows of a gained range come from the replica whose place is taken: with those the new group knows all that the old
group knew, member for member. If that one is dead, or nobody leaves, a quorum of the old group in each datacenter is
merged: it meets every quorum that made a write durable. So do survivors fewer than a quorum, as long as those that
are missing are fewer than a quorum; with fewer, rows may be lost, and the gained range has no source (``unsourced``).

A group that shrinks has smaller quorums, and who leaves it takes away what only it and others that leave know. Where a
quorum of the smaller group might not know all, enough of its members, those that stay included, merge a quorum of the
old group that each new quorum has one of them. After every operation, then, a quorum of each group has every write
that a quorum has ever done: the next operation takes that for granted. Without it ``ringlog sim quorums`` finds reads
that miss a write: from three replicas to one at once, from five to three also one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ringlog.kernel.model.state import Node
from ringlog.kernel.operations.gates import InDatacenter, parts_of, quorum
from ringlog.kernel.values import NodeId

NO_SOURCE: NodeId = ""
"""The source of rows that no living nodes know for sure: no plan with it is admitted."""

Members = tuple[NodeId, ...]
"""The replicas of a range, in the order of the walk."""


def givers_of(
    entering: Sequence[NodeId], leaving: Sequence[NodeId], nodes: Mapping[NodeId, Node], anywhere: bool
) -> dict[NodeId, NodeId]:
    """Whose place each of those who enter takes: within a datacenter, if possible within a rack."""
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
    assert len(set(givers.values())) == len(givers), "a place is taken once"
    return givers


def sources_of(
    old: Members,
    new: Members,
    nodes: Mapping[NodeId, Node],
    dead: frozenset[NodeId],
    anywhere: bool,
    as_one: bool = False,
) -> list[tuple[NodeId, NodeId]]:
    """(source, target): where those who enter, and those who must know more in a smaller group, get the rows from.

    Who would have to merge while too few replicas are alive gets them from ``NO_SOURCE``. ``as_one``: as for
    ``quorum_sources``.
    """
    assert len(set(old)) == len(old), "nobody is twice in a group"
    assert len(set(new)) == len(new), "nobody is twice in a group"
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
    return sources


def _scopes(members: Iterable[NodeId], nodes: Mapping[NodeId, Node], anywhere: bool) -> list[set[NodeId]]:
    """``members`` of each datacenter by itself, if the setting knows datacenters, and all of them."""
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
    """Members of the new group that must merge, too, since ``lost`` leave without a successor.

    Of a quorum of the old group that has a write, at most ``lost`` go; the successor of any other has it then, and
    so has each of ``fresh``, who merge without a predecessor. Where that is no quorum of the new group for sure, a
    quorum of it merges. What is true of the whole must be true in each datacenter, if the setting knows datacenters.
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
    """Living members that together know every write of a quorum of ``group``, in the whole and in each datacenter;
    none if there are too few. ``as_one``: the group counts in the whole alone (``gates.parts_of``).
    """
    chosen: list[NodeId] = []
    lost = set(dead)
    for _, local in parts_of(nodes, group, as_one):
        alive = [node for node in local if node not in lost]
        if len(local) - len(alive) >= quorum(len(local)):
            return []
        chosen += alive[: quorum(len(local))]
    assert lost.isdisjoint(chosen), "nothing is read from the dead"
    return chosen
