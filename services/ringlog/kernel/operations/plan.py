"""Plans: how the live layout gets from the canonical one before an operation to the canonical one after it.

With C the canonical layout of the token map M, N that of the map afterwards, both cut at the tokens of either: a range
whose members differ has nodes that gain it and nodes that lose it.

- ranges are split at new tokens when the operation is prepared;
- **start**: who gains enters the write groups;
- **middle**: who gains enters the read groups, who loses leaves them, in one swap;
- **finish**: who loses leaves the write groups too. Ranges are merged at tokens that are gone: the live placement is N.

Join, leave, move, replace and remove differ in M and N only; a change of a keyspace's replication compares two
settings on one M. How the ranges that differ are found is the matter of ``ownership.shifts``; where the rows of a
gained range come from, that of ``operations.sources``.

Source: CEP-21, and the rules of streaming in ``docs/architecture.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter

from ringlog.kernel.blocks import picked
from ringlog.kernel.operations.kinds import Changes, kind_of
from ringlog.kernel.operations.rings import ring_after
from ringlog.kernel.operations.sources import NOBODY, Members, givers_of, quorum_sources, sources_of
from ringlog.kernel.ownership.deltas import ends_by_setting
from ringlog.kernel.ownership.placements import nodes_of, replications_in_use
from ringlog.kernel.ownership.shifts import Shift, part_in, shifts
from ringlog.kernel.ownership.strategies import (
    ENTIRE,
    ENTIRE_END,
    NETWORK,
    SIMPLE,
    natural,
    replication_key,
    ring_of,
)
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.state import Change, ClusterState, Deltas, LockedRange, Node, Operation, Plan, Source
from ringlog.kernel.swift import maker_of
from ringlog.kernel.values import NodeId, Replication, Token

_setting_of, _end_of = attrgetter("replication"), attrgetter("end")
_new_change, _new_source, _new_lock = maker_of(Change), maker_of(Source), maker_of(LockedRange)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Who enters a group and who leaves it, in the order of the walk.

    ``swaps``: each that enters, with the living one whose place it takes and who gives it the rows; None if it is not
    as simple as that.
    """

    entering: Members
    leaving: Members
    swaps: tuple[tuple[NodeId, NodeId], ...] | None


@dataclass(frozen=True, slots=True)
class _Moving:
    """The ranges of one setting that change hands, by end.

    ``groups``: range end to all replicas before and after. ``anywhere``: the setting knows no datacenters, so a place
    may be taken from one to another.
    """

    key: str
    ranges: Sequence[tuple[Range, _Exchange]]
    groups: Callable[[Token], tuple[Members, Members]]
    anywhere: bool = False


def plan_movement(state: ClusterState, operation: Operation) -> Plan:
    """The plan of an operation that changes the tokens of nodes of one datacenter."""
    before = ring_of(state.token_owners, state.nodes)
    assert all(before.owners.get(token) == operation.node for token in operation.gone), "it gives its own tokens away"
    assert all(before.owners.get(token) in (None, operation.node, operation.replaced) for token in operation.tokens), (
        "it takes nobody's tokens, or those of whom it replaces"
    )
    added = tuple(sorted(set(operation.tokens).difference(before.owners)))
    datacenter = state.nodes[operation.node].datacenter
    dead = _down(state).union(operation.ignored)
    after = ring_after(before, operation)
    used = [(key, setting, part_in(setting, datacenter)) for key, setting in replications_in_use(state)]
    parts = dict.fromkeys(part for _, _, part in used if part is not None)
    changed = *operation.tokens, *operation.gone
    shared: dict[Replication, Sequence[tuple[Range, _Exchange]]] = {}
    for is_local in (False, True):
        some = [part for part in parts if (part.strategy == NETWORK) is is_local]
        for part, found in shifts(some, datacenter if is_local else "", before, after, changed).items():
            shared[part] = _exchanges(found, state.nodes, dead, part.strategy == SIMPLE)
    moving = []
    for key, replication, own in used:
        if own is None:
            continue

        def groups(end: Token, replication: Replication = replication) -> tuple[Members, Members]:
            return natural(replication, before, end), natural(replication, after, end)

        moving.append(_Moving(key, shared[own], groups, own.strategy == SIMPLE))
    return _planned(moving, state.nodes, dead, added, tuple(sorted(operation.gone)))


def plan_alteration(state: ClusterState, key: str, old: Replication, new: Replication) -> Plan:
    """The plan by which the ranges under ``key`` get from one setting to another."""
    ring = ring_of(state.token_owners, state.nodes)
    found: list[Shift] = []
    cuts = alteration_ends(state, old, new)
    for index, end in enumerate(cuts):
        groups = natural(old, ring, end), natural(new, ring, end)
        if set(groups[0]) != set(groups[1]):
            found.append(((cuts[index - 1], end), *groups))
    dead = _down(state)
    replicas = {end: (before, after) for (_, end), before, after in found}
    moving = _Moving(key, _exchanges(found, state.nodes, dead), lambda end: replicas[end])
    return _planned([moving], state.nodes, dead, (), ())


def alteration_key(old: Replication, new: Replication) -> str:
    """The key of the ranges of a keyspace while it changes from one setting to another."""
    return f"{replication_key(old)}>{replication_key(new)}"


def alteration_ends(state: ClusterState, old: Replication, new: Replication) -> tuple[Token, ...]:
    """The range ends on which both settings can be described."""
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
            assert node not in found, "nobody is rebuilt from what it has"
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


def _exchanges(
    found: Iterable[Shift], nodes: Mapping[NodeId, Node], dead: frozenset[NodeId], anywhere: bool = False
) -> list[tuple[Range, _Exchange]]:
    known: dict[tuple[Members, Members], _Exchange] = {}
    exchanges = []
    last: tuple[object, object] = (None, None)
    for range_, old, new in found:
        if old is not last[0] or new is not last[1]:  # else the same range, cut by others
            exchange = known.get((old, new))
            last = old, new
        if exchange is None:
            entering = tuple(node for node in new if node not in old)
            leaving = tuple(node for node in old if node not in new)
            givers = givers_of(entering, leaving, nodes, anywhere)
            assert set(old).difference(leaving).union(entering) == set(new), (
                "an exchange leads from one group to the other"
            )
            assert len(set(entering)) == len(entering), "a node enters a group once"
            assert all(node != giver for node, giver in givers.items()), "nobody streams from itself"
            simple = len(entering) == len(leaving) == len(givers) and dead.isdisjoint(givers.values())
            exchange = _Exchange(entering, leaving, tuple(givers.items()) if simple else None)
            known[old, new] = exchange
        exchanges.append((range_, exchange))
    return exchanges


def _planned(
    moving: Iterable[_Moving],
    nodes: Mapping[NodeId, Node],
    dead: frozenset[NodeId],
    split_at: tuple[Token, ...],
    merge_at: tuple[Token, ...],
) -> Plan:
    gained: list[Change] = []
    lost: list[Change] = []
    sources: list[Source] = []
    for one in moving:
        key = one.key
        for (start, end), exchange in one.ranges:
            for node in exchange.entering:
                gained.append(_new_change(key, start, end, node))
            for node in exchange.leaving:
                lost.append(_new_change(key, start, end, node))
            if exchange.swaps is not None:
                for node, giver in exchange.swaps:
                    sources.append(_new_source(key, start, end, giver, node))
            else:
                found = sources_of(*one.groups(end), nodes, dead, one.anywhere)
                assert all(source != node for source, node in found), "nobody streams from itself"
                sources += [_new_source(key, start, end, source, node) for source, node in found]
    return Plan(
        split_at=split_at,
        start=Deltas(write_added=tuple(gained)),
        middle=Deltas(read_added=tuple(gained), read_removed=tuple(lost)),
        finish=Deltas(write_removed=tuple(lost)),
        sources=tuple(sources),
        merge_at=merge_at,
    )


# ------------------------------------------------------------------------------------------------------------ locks


def locks_of(state: ClusterState, operation: Operation) -> tuple[LockedRange, ...]:
    """The ranges, as they are before the split, that the operation holds, by setting and end: what its plan splits,
    merges, streams or changes the groups of; of a keyspace that gets another setting, all.
    """
    if kind_of(operation).changes is Changes.SETTING:
        key = replication_key(state.keyspaces[operation.keyspace].replication)
        return tuple(LockedRange(key, one.start, one.end, one.changed) for one in state.placements[key].ranges)
    locks, plan = [], operation.plan
    reached = ends_by_setting(plan.start, plan.middle, plan.finish)
    for key, some in groupby(plan.sources, _setting_of):
        reached.setdefault(key, set()).update(map(_end_of, some))
    known: dict[tuple[int, frozenset[Token]], list[int]] = {}
    for key, placement in sorted(state.placements.items()):
        if not placement.ends:
            continue
        inside = frozenset(reached.get(key, ()))
        cut = (plan.split_at, plan.merge_at) if key != ENTIRE else ((), ())
        asked = id(placement.ends), inside  # settings are cut at the same ends, and many have parts in common
        if asked not in known:
            known[asked] = _places_of(placement.ends, inside.union(cut[0]), cut[1])
        locked = picked(placement.ranges, known[asked])
        locks += [_new_lock(key, group.start, group.end, group.changed) for group in locked]
    return tuple(locks)


def _places_of(cuts: tuple[Token, ...], inside: Iterable[Token], merged: Iterable[Token]) -> list[int]:
    """Where the ranges are in which these tokens lie, and those on both sides of a token that is ``merged``."""
    places = set(map(partial(bisect_left, cuts), inside))
    if len(cuts) in places:  # the first range goes round
        places.remove(len(cuts))
        places.add(0)
    places.update(place for token in merged for place in _both_sides(cuts, token))
    return sorted(places)


def _both_sides(ends: Sequence[Token], token: Token) -> tuple[int, int]:
    """Where the range is that ends at ``token``, and the next one."""
    index = bisect_left(ends, token)
    return index, (index + 1) % len(ends)
