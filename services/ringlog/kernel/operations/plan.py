"""Plans: how the live layout gets from the canonical one before an operation to the canonical one after it.

With C the canonical layout of the token map M, N that of the map afterwards, both cut at the tokens of either: a range
whose members differ has nodes that gain it and nodes that lose it.

- ranges are split at new tokens when the operation is prepared;
- **start**: who gains enters the write groups;
- **middle**: who gains enters the read groups, who loses leaves them, in one swap;
- **finish**: who loses leaves the write groups too. Ranges are merged at tokens that are gone: the live placement is N.

Join, leave, move, replace and remove differ in M and N only; a change of a keyspace's replication compares two
settings on one M. Only ranges whose clockwise walk meets a changed token before the group is full can differ: they
are found by walking back from each such token, in both maps, so that the cost grows with tokens times factor, not
with the ring.

Rows of a gained range come from the replica whose place is taken: with those the new group knows all that the old
group knew, member for member. If that one is dead, or nobody leaves, a quorum of the old group in each datacenter is
merged: it meets every quorum that made a write durable. So do survivors fewer than a quorum, as long as those that
are missing are fewer than a quorum; with fewer, rows may be lost, and the gained range has no source (``unsourced``).

A group that shrinks has smaller quorums, and who leaves it takes away what only it and others that leave know. Where a
quorum of the smaller group might not know all, so many of its members, those that stay included, merge a quorum of the
old group that each new quorum has one of them. After every operation, then, a quorum of each group has every write
that a quorum has ever done: the next operation takes that for granted. Without it ``ringlog sim quorums`` finds reads
that miss a write: from three replicas to one at once, from five to three also one by one.

Source: CEP-21, and the rules of streaming in ``docs/architecture.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringlog.kernel.commands.model import Replication
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.stages import resulting_owners
from ringlog.kernel.ownership.deltas import touched
from ringlog.kernel.ownership.placements import group_at, nodes_of, replications_in_use
from ringlog.kernel.ownership.strategies import (
    ENTIRE,
    ENTIRE_END,
    SIMPLE,
    Ring,
    filling,
    natural,
    replication_key,
    ring_of,
)
from ringlog.kernel.ring.ranges import Range, index_at
from ringlog.kernel.state import Change, ClusterState, Deltas, LockedRange, Node, Operation, Plan, Source
from ringlog.kernel.values import NodeId, Token

NOBODY: NodeId = ""
"""The source of rows that no living nodes know for sure: no plan with it is admitted."""


@dataclass(frozen=True, slots=True)
class _Shift:
    """A range whose members change, in the order of the walk.

    ``anywhere``: the setting knows no datacenters, so a place may be taken from one to another.
    """

    key: str
    range: Range
    old: tuple[NodeId, ...]
    new: tuple[NodeId, ...]
    anywhere: bool = False


def plan_movement(state: ClusterState, operation: Operation) -> Plan:
    """The plan of an operation that changes the token map of ``state``."""
    before = ring_of(state.token_owners, state.nodes)
    after = ring_of(resulting_owners(state.token_owners, operation), state.nodes)
    cuts = sorted(set(before.tokens).union(after.tokens))
    changed = (*operation.tokens, *operation.gone)
    shifts = [
        shift
        for key, replication in replications_in_use(state)
        for shift in _shifts(key, replication, before, after, cuts, changed)
    ]
    added = tuple(sorted(set(operation.tokens).difference(before.tokens)))
    return _planned(shifts, state.nodes, _down(state).union(operation.ignored), added, tuple(sorted(operation.gone)))


def plan_alteration(state: ClusterState, key: str, old: Replication, new: Replication) -> Plan:
    """The plan by which the ranges under ``key`` get from one setting to another."""
    ring = ring_of(state.token_owners, state.nodes)
    shifts = []
    cuts = alteration_ends(state, old, new)
    for index, end in enumerate(cuts):
        groups = natural(old, ring, end), natural(new, ring, end)
        if set(groups[0]) != set(groups[1]):
            shifts.append(_Shift(key, (cuts[index - 1], end), *groups))
    return _planned(shifts, state.nodes, _down(state), (), ())


def alteration_key(old: Replication, new: Replication) -> str:
    """The key of the ranges of a keyspace while it changes from one setting to another."""
    return f"{replication_key(old)}>{replication_key(new)}"


def alteration_ends(state: ClusterState, old: Replication, new: Replication) -> tuple[Token, ...]:
    """The range ends that both settings can be told on."""
    ends = set(state.token_owners)
    if ENTIRE in (old.strategy, new.strategy):
        ends.add(ENTIRE_END)
    return tuple(sorted(ends))


def plan_rebuild(state: ClusterState, node: NodeId, datacenter: str) -> Plan:
    """Where ``node`` gets all its ranges from: a quorum of the others, those of ``datacenter`` alone if it is named.

    A range of which too few replicas are alive has no source.
    """
    sources: list[Source] = []
    down = _down(state)
    for key, placement in sorted(state.placements.items()):
        for group in placement.ranges:
            members = nodes_of(group.read)
            if node not in members:
                continue
            if datacenter:
                members = tuple(m for m in members if state.nodes[m].datacenter == datacenter and m != node)
            found = quorum_sources(state.nodes, members, down | {node})
            sources += [Source(key, group.start, group.end, source, node) for source in found]
    return Plan(sources=tuple(sources))


def unsourced(plan: Plan) -> tuple[tuple[str, Range], ...]:
    """The ranges, with their setting, that somebody would have to serve without all rows from anywhere."""
    served = {(source.replication, source.end, source.target) for source in plan.sources}
    bare = {
        (change.replication, (change.start, change.end))
        for change in plan.start.write_added
        if (change.replication, change.end, change.node) not in served
    }
    bare.update((one.replication, (one.start, one.end)) for one in plan.sources if one.source == NOBODY)
    return tuple(sorted(bare))


def _down(state: ClusterState) -> frozenset[NodeId]:
    """The nodes that were declared down: nothing can be read from them."""
    return frozenset(node for node, found in state.nodes.items() if found.down)


def affected_ends(
    replication: Replication, rings: Iterable[Ring], cuts: Sequence[Token], changed: Iterable[Token]
) -> set[Token]:
    """The range ends, of ascending ``cuts``, whose walk in one of ``rings`` meets a changed token before it is full."""
    if replication.strategy == ENTIRE:
        return {ENTIRE_END} if cuts else set()
    ends: set[Token] = set()
    tokens = tuple(changed)
    for ring in rings:
        for token in tokens:
            if token in ring.owners:
                ends.update(_reaching(replication, ring, cuts, token))
    return ends


def _reaching(replication: Replication, ring: Ring, cuts: Sequence[Token], token: Token) -> Iterator[Token]:
    """The ends from which a walk gets to ``token`` before its group is full, counter-clockwise from there."""
    group = filling(replication, ring)
    first = index_at(cuts, token)
    for step in range(len(cuts)):
        end = cuts[first - step]
        owner = ring.owners.get(end) if step else None
        if owner is not None:
            group.offer(owner)
        if group.full:
            return
        yield end


def _shifts(
    key: str, replication: Replication, before: Ring, after: Ring, cuts: Sequence[Token], changed: Iterable[Token]
) -> Iterator[_Shift]:
    for end in sorted(affected_ends(replication, (before, after), cuts, changed)):
        start = end if replication.strategy == ENTIRE else cuts[bisect_left(cuts, end) - 1]
        old, new = natural(replication, before, end), natural(replication, after, end)
        if set(old) != set(new):
            yield _Shift(key, (start, end), old, new, replication.strategy == SIMPLE)


def _planned(
    shifts: Iterable[_Shift],
    nodes: Mapping[NodeId, Node],
    dead: frozenset[NodeId],
    split_at: tuple[Token, ...],
    merge_at: tuple[Token, ...],
) -> Plan:
    gained: list[Change] = []
    lost: list[Change] = []
    sources: list[Source] = []
    for shift in shifts:
        entering = [node for node in shift.new if node not in shift.old]
        leaving = [node for node in shift.old if node not in shift.new]
        gained += [Change(shift.key, *shift.range, node) for node in entering]
        lost += [Change(shift.key, *shift.range, node) for node in leaving]
        sources += _sources(shift, entering, leaving, nodes, dead)
    return Plan(
        split_at=split_at,
        start=Deltas(write_added=tuple(gained)),
        middle=Deltas(read_added=tuple(gained), read_removed=tuple(lost)),
        finish=Deltas(write_removed=tuple(lost)),
        sources=tuple(sources),
        merge_at=merge_at,
    )


def _sources(
    shift: _Shift,
    entering: Sequence[NodeId],
    leaving: Sequence[NodeId],
    nodes: Mapping[NodeId, Node],
    dead: frozenset[NodeId],
) -> list[Source]:
    """Where those who enter, and those who must know more in a smaller group, get the rows from.

    Places are taken within a datacenter, if possible within a rack. Who would have to merge while too few replicas are
    alive gets them from ``NOBODY``.
    """
    lost = list(leaving)
    givers: dict[NodeId, NodeId] = {}
    for node in entering:
        here = nodes[node]
        local = [giver for giver in lost if nodes[giver].datacenter == here.datacenter]
        local = local or (lost if shift.anywhere else [])
        giver = next((giver for giver in local if nodes[giver].rack == here.rack), local[0] if local else None)
        if giver is not None:
            lost.remove(giver)
            givers[node] = giver
    merging = {node for node in entering if givers.get(node) in dead or node not in givers}
    if lost:
        merging.update(_surer(shift, lost, [node for node in entering if node not in givers], merging, nodes, dead))
    sources = []
    for node in shift.new:
        found = [givers[node]] if node in givers else []
        if node in merging:
            known = quorum_sources(nodes, sorted(shift.old, key=lambda one: one != node), dead)
            found = [one for one in known if one != node] if node not in dead else []
            found = found or ([NOBODY] if shift.old else [])
        sources += [Source(shift.key, *shift.range, source, node) for source in found]
    return sources


def _surer(
    shift: _Shift,
    lost: Sequence[NodeId],
    fresh: Sequence[NodeId],
    merging: Collection[NodeId],
    nodes: Mapping[NodeId, Node],
    dead: frozenset[NodeId],
) -> set[NodeId]:
    """Members of the new group that must merge, too, since ``lost`` leave without a successor.

    Of a quorum of the old group that has a write, at most ``lost`` go; the successor of any other has it then, and
    so has each of ``fresh``, who merge without a predecessor. Where that is no quorum of the new group for sure, a
    quorum of it merges. What is true of the whole must be true in each datacenter, if the setting knows datacenters.
    """
    everywhere = {nodes[node].datacenter for node in (*shift.old, *shift.new)}
    scopes = [everywhere] if shift.anywhere else [*({name} for name in sorted(everywhere)), everywhere]
    more: set[NodeId] = set()
    for scope in scopes:
        old, new, gone, come = (
            [node for node in group if nodes[node].datacenter in scope] for group in (shift.old, shift.new, lost, fresh)
        )
        sure = quorum(len(old)) - len(gone) + len(come)
        if not old or not new or sure >= quorum(len(new)):
            continue
        left = sorted((node for node in new if node not in merging and node not in more), key=lambda one: one in dead)
        more.update(left[: max(0, quorum(len(new)) - (len(new) - len(left)))])
    return more


def quorum_sources(nodes: Mapping[NodeId, Node], group: Sequence[NodeId], dead: Iterable[NodeId]) -> list[NodeId]:
    """Living members that together know every write of a quorum of ``group``, in the whole and in each datacenter;
    none if there are too few.
    """
    chosen: list[NodeId] = []
    lost = set(dead)
    for datacenter in sorted({nodes[node].datacenter for node in group}):
        local = [node for node in group if nodes[node].datacenter == datacenter]
        alive = [node for node in local if node not in lost]
        if len(local) - len(alive) >= quorum(len(local)):
            return []
        chosen += alive[: quorum(len(local))]
    return chosen


# ------------------------------------------------------------------------------------------------------------ locks


def locks_of(state: ClusterState, plan: Plan) -> tuple[LockedRange, ...]:
    """The ranges, as they are before the split, that ``plan`` splits, merges, streams or changes the groups of; by
    setting and end.
    """
    locks = []
    for key, placement in sorted(state.placements.items()):
        if not placement.ends:
            continue
        inside = {end for (_, end), _ in touched(key, plan.start, plan.middle, plan.finish)}
        inside.update(source.end for source in plan.sources if source.replication == key)
        if key != ENTIRE:
            inside.update(plan.split_at)
        ends = {group_at(placement, token).end for token in inside}
        if key != ENTIRE:
            ends.update(end for token in plan.merge_at for end in _both_sides(placement.ends, token))
        for end in sorted(ends):
            group = group_at(placement, end)
            locks.append(LockedRange(key, group.start, group.end, group.changed))
    return tuple(locks)


def _both_sides(ends: Sequence[Token], token: Token) -> tuple[Token, Token]:
    """The ends of the range that ends at ``token`` and of the next one."""
    index = bisect_left(ends, token)
    return ends[index], ends[(index + 1) % len(ends)]
