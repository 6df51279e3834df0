"""Plans: the steps of the live layout from the canonical one before an operation to the canonical one after it.

C is the canonical layout of the token map M, and N that of the map afterwards. Both are cut at the tokens of either. A
range whose members differ has nodes that gain it and nodes that lose it.

- Ranges are split at new tokens when the operation is prepared.
- **start**: Gaining nodes enter the write groups.
- **middle**: Gaining nodes enter the read groups and losing nodes leave them, in one swap.
- **finish**: Losing nodes leave the write groups, too. Ranges are merged at removed tokens: the live placement is N.

Join, leave, move, replace and remove differ in M and N only. A change of a keyspace's replication compares two settings
on one M. ``ownership.shifts`` finds the ranges that differ, and ``operations.sources`` the sources of gained rows.

Source: CEP-21, and the rules of streaming in ``docs/internals/coordination.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from ringlog.kernel.columns.blocks import items_at
from ringlog.kernel.model.plan_columns import (
    ChangeList,
    LockList,
    RangeColumn,
    SourceList,
    column_of,
    columns_of,
    in_columns,
)
from ringlog.kernel.model.state import ClusterState, Deltas, LockedRange, Node, Operation, Plan, Source
from ringlog.kernel.operations.kinds import Changes, kind_of
from ringlog.kernel.operations.rings import ring_after
from ringlog.kernel.operations.sources import NO_SOURCE, Members, givers_of, quorum_sources, sources_of
from ringlog.kernel.ownership.deltas import columns_by_setting
from ringlog.kernel.ownership.kinds import ENTIRE, strategy_of
from ringlog.kernel.ownership.placements import nodes_of, replications_in_use
from ringlog.kernel.ownership.shifts import Shift, part_in, shifts
from ringlog.kernel.ownership.strategies import ENTIRE_END, natural, replication_key, ring_of
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Epoch, NodeId, Replication, Token, Value

_range_of, _changed_of = attrgetter("start", "end"), attrgetter("changed")


class _Exchange(Value):
    """The nodes that enter and leave a group, in the order of the walk.

    ``swaps``: each entering node after the living node that it succeeds and streams from; None if an entering node
    needs other sources.
    """

    entering: Members
    leaving: Members
    swaps: tuple[tuple[NodeId, NodeId], ...] | None


class _Moving(Value):
    """The ranges of one setting that change hands, by end.

    ``groups``: range end to all replicas before and after. ``anywhere``: the setting knows no datacenters, so a node
    may succeed a node of another datacenter.
    """

    key: str
    ranges: Sequence[tuple[Range, _Exchange]]
    groups: Callable[[Token], tuple[Members, Members]]
    anywhere: bool = False


def plan_movement(state: ClusterState, operation: Operation) -> Plan:
    """Return the plan of an operation that changes the tokens of nodes of one datacenter."""
    before = ring_of(state.token_owners, state.nodes)
    assert all(before.owners.get(token) == operation.node for token in operation.gone), "removed tokens are its own"
    assert all(before.owners.get(token) in (None, operation.node, operation.replaced) for token in operation.tokens), (
        "added tokens are unused, the node's own, or the replaced node's"
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
        some = [part for part in parts if strategy_of(part).has_datacenters is is_local]
        for part, found in shifts(some, datacenter if is_local else "", before, after, changed).items():
            shared[part] = _exchanges(found, state.nodes, dead, strategy_of(part).is_anywhere)
    moving = []
    for key, replication, own in used:
        if own is None:
            continue

        def groups(end: Token, replication: Replication = replication) -> tuple[Members, Members]:
            return natural(replication, before, end), natural(replication, after, end)

        moving.append(_Moving(key, shared[own], groups, strategy_of(own).is_anywhere))
    return _planned(moving, state.nodes, dead, added, tuple(sorted(operation.gone)))


def plan_alteration(state: ClusterState, key: str, old: Replication, new: Replication) -> Plan:
    """Return the plan that takes the ranges under ``key`` from one setting to another."""
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
    """Return the key of the ranges of a keyspace during a change from one setting to another."""
    return f"{replication_key(old)}>{replication_key(new)}"


def alteration_ends(state: ClusterState, old: Replication, new: Replication) -> tuple[Token, ...]:
    """Return range ends that can describe both settings."""
    ends = set(state.token_owners)
    if strategy_of(old).is_everywhere or strategy_of(new).is_everywhere:
        ends.add(ENTIRE_END)
    return tuple(sorted(ends))


def plan_rebuild(state: ClusterState, node: NodeId, datacenter: str) -> Plan:
    """Return the plan for ``node`` to stream all its ranges from a quorum of the others, or of those in ``datacenter``.

    A range with too few living replicas has no source.
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
            assert node not in found, "a node does not rebuild from its own rows"
            sources += [Source(key, group.start, group.end, source, node) for source in found]
    return Plan(sources=tuple(sources))


def unsourced(plan: Plan) -> tuple[tuple[str, Range], ...]:
    """Return the ranges, with their setting, that some node would have to serve although no source has all of their
    rows.
    """
    bare: set[tuple[str, Range]] = set()
    sources = columns_of(plan.sources)
    known: dict[tuple[int, int], set[Range]] = {}
    for key, gained in columns_of(plan.start.write_added).items():
        streamed = sources.get(key)
        asked = id(gained), id(streamed)
        if asked not in known:  # settings that have a part in common share its columns
            known[asked] = _without_rows(gained, streamed)
        bare.update((key, range_) for range_ in known[asked])
    for key, streamed in sources.items():
        if NO_SOURCE in {source for source, _ in streamed.all_items()}:
            bare.update(
                (key, range_) for range_, pairs in streamed.each() if any(pair[0] == NO_SOURCE for pair in pairs)
            )
    return tuple(sorted(bare))


def _without_rows(gained: RangeColumn[NodeId], sources: RangeColumn[tuple[NodeId, NodeId]] | None) -> set[Range]:
    """Return the ranges that some node gains without a source."""
    if sources is not None and _streams_to_each(gained, sources):
        return set()
    served = {(end, target) for (_, end), pairs in sources.each() for _, target in pairs} if sources else set()
    return {range_ for range_, nodes in gained.each() if any((range_[1], node) not in served for node in nodes)}


def _streams_to_each(gained: RangeColumn[NodeId], sources: RangeColumn[tuple[NodeId, NodeId]]) -> bool:
    """Return whether each gaining node of each range has exactly one source, as is usual."""
    alike = gained.ranges is sources.ranges and list(map(len, gained.items)) == list(map(len, sources.items))
    return alike and list(gained.all_items()) == [target for _, target in sources.all_items()]


def _down(state: ClusterState) -> frozenset[NodeId]:
    """Return the nodes that were declared down; they cannot be read."""
    return frozenset([node for node, found in state.nodes.items() if found.down])


def _exchanges(
    found: Iterable[Shift], nodes: Mapping[NodeId, Node], dead: frozenset[NodeId], anywhere: bool = False
) -> list[tuple[Range, _Exchange]]:
    known: dict[tuple[Members, Members], _Exchange] = {}
    exchanges = []
    last: tuple[object, object] = (None, None)
    for range_, old, new in found:
        if old is not last[0] or new is not last[1]:  # else the same range, cut by other tokens
            exchange = known.get((old, new))
            last = old, new
        if exchange is None:
            entering = tuple([node for node in new if node not in old])
            leaving = tuple([node for node in old if node not in new])
            givers = givers_of(entering, leaving, nodes, anywhere)
            assert len(old) - len(leaving) + len(entering) == len(new), "the exchange explains the new group"
            assert len(set(entering)) == len(entering), "a node enters a group once"
            assert all(node != giver for node, giver in givers.items()), "a node does not stream from itself"
            simple = len(entering) == len(leaving) == len(givers) and dead.isdisjoint(givers.values())
            swaps = tuple((giver, node) for node, giver in givers.items())
            exchange = _Exchange(entering, leaving, swaps if simple else None)
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
    gained: dict[str, RangeColumn[NodeId]] = {}
    lost: dict[str, RangeColumn[NodeId]] = {}
    sources: dict[str, RangeColumn[tuple[NodeId, NodeId]]] = {}
    known: dict[int, tuple[_Columns, bool]] = {}
    for one in moving:
        if (found := known.get(id(one.ranges))) is None:  # settings that have a part in common share its columns
            found = known[id(one.ranges)] = _columns_of(one.ranges)
        (entering, leaving, swaps), is_simple = found
        if not is_simple:
            swaps = _merged_sources(one, nodes, dead)
        for columns, column in ((gained, entering), (lost, leaving)):
            if column is not None:
                columns[one.key] = column
        if swaps is not None:
            sources[one.key] = swaps
    enter, leave = in_columns(ChangeList, gained), in_columns(ChangeList, lost)
    return Plan(
        split_at=split_at,
        start=Deltas(write_added=enter),
        middle=Deltas(read_added=enter, read_removed=leave),
        finish=Deltas(write_removed=leave),
        sources=in_columns(SourceList, sources),
        merge_at=merge_at,
    )


_Columns = tuple[RangeColumn[NodeId] | None, RangeColumn[NodeId] | None, RangeColumn[tuple[NodeId, NodeId]] | None]
"""The entering nodes, the leaving nodes, and the (source, target) pairs of rows."""


def _columns_of(ranges: Sequence[tuple[Range, _Exchange]]) -> tuple[_Columns, bool]:
    """Return the columns of ranges that change hands, and whether each gaining node has only one source."""
    where = [range_ for range_, _ in ranges]
    entering = column_of(where, [exchange.entering for _, exchange in ranges])
    leaving = column_of(where, [exchange.leaving for _, exchange in ranges])
    assert not ranges or entering or leaving, "changed ranges have entering or leaving members"
    swaps = [exchange.swaps for _, exchange in ranges if exchange.swaps is not None]
    is_simple = len(swaps) == len(ranges)
    return (entering, leaving, column_of(where, swaps) if is_simple else None), is_simple


def _merged_sources(
    moving: _Moving, nodes: Mapping[NodeId, Node], dead: frozenset[NodeId]
) -> RangeColumn[tuple[NodeId, NodeId]] | None:
    pairs: list[tuple[tuple[NodeId, NodeId], ...]] = []
    for (_, end), exchange in moving.ranges:
        found = exchange.swaps
        if found is None:
            found = tuple(sources_of(*moving.groups(end), nodes, dead, moving.anywhere))
        pairs.append(found)
    return column_of([range_ for range_, _ in moving.ranges], pairs)


# ------------------------------------------------------------------------------------------------------------ locks


def locks_of(state: ClusterState, operation: Operation) -> tuple[LockedRange, ...]:
    """Return the ranges, as they are before the split, that the operation locks, by setting and end.

    These are the ranges that its plan splits, merges or streams, and those whose groups it changes. A change of a
    keyspace's setting locks all ranges of the keyspace.
    """
    if kind_of(operation).changes is Changes.SETTING:
        key = replication_key(state.keyspaces[operation.keyspace].replication)
        return tuple(LockedRange(key, one.start, one.end, one.changed) for one in state.placements[key].ranges)
    plan = operation.plan
    reached = columns_by_setting(plan.start, plan.middle, plan.finish)
    sources = columns_of(plan.sources)
    known: dict[tuple[int, ...], tuple[list[int], list[Range]]] = {}
    columns: dict[str, RangeColumn[Epoch]] = {}
    for key, placement in sorted(state.placements.items()):
        if not placement.ends:
            continue
        inside: list[RangeColumn[Any]] = [*reached.get(key, ()), *([sources[key]] if key in sources else ())]
        cut = (plan.split_at, plan.merge_at) if key != ENTIRE.name else ((), ())
        # Settings are cut at the same ends, and many have parts in common.
        asked = id(placement.ends), len(cut[0]), *map(id, inside)
        if asked not in known:
            tokens = {end for column in inside for end in column.ends()}
            places = _places_of(placement.ends, tokens.union(cut[0]), cut[1])
            known[asked] = places, list(map(_range_of, items_at(placement.ranges, places)))
        places, ranges = known[asked]
        if places:
            columns[key] = RangeColumn(ranges, list(zip(map(_changed_of, items_at(placement.ranges, places)))))
    return in_columns(LockList, columns)


def _places_of(cuts: tuple[Token, ...], inside: Iterable[Token], merged: Iterable[Token]) -> list[int]:
    """Return the indices of the ranges that hold these tokens, and of those on both sides of a ``merged`` token."""
    places = set(map(partial(bisect_left, cuts), inside))
    if len(cuts) in places:  # the first range wraps around
        places.remove(len(cuts))
        places.add(0)
    places.update(place for token in merged for place in _both_sides(cuts, token))
    return sorted(places)


def _both_sides(ends: Sequence[Token], token: Token) -> tuple[int, int]:
    """Return the indices of the range that ends at ``token`` and of the next one."""
    index = bisect_left(ends, token)
    return index, (index + 1) % len(ends)
