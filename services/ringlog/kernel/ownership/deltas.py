"""Application of deltas to live placements: nodes enter and leave the groups of ranges.

Application is strict. A range must exist exactly as the change names it. A node may enter only a group that lacks it,
and leave only one that has it. A node that enters is a member since the epoch of the entry. A node that leaves and
returns starts again, so ``since`` never spans a gap. A range whose groups change gets that epoch as ``changed``; all
others stay the same objects.

Groups have the order of a clockwise walk. A member that leaves does not change the order of the others, and a new one
is inserted by its distance alone, without a walk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from immutables import Map

from ringlog.kernel.columns.blocks import items_at, with_items
from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.plan_columns import RangeColumn, by_end, columns_of, nodes_in
from ringlog.kernel.model.state import Deltas, Node, Placement, RangeGroup, Replica
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Epoch, NodeId, Token, replace

_LAP = 2**64
"""A number above every distance on the ring."""
_WALK_MAX: Final = 64
"""Maximum number of tokens to walk."""
_NO_OWNERS: Final[Map[Token, NodeId]] = Map()

Nodes = tuple[NodeId, ...]
_end_of, _node_of = attrgetter("end"), attrgetter("node")
_read_of, _write_of, _changed_of = attrgetter("read"), attrgetter("write"), attrgetter("changed")


# ------------------------------------------------------------------------------------------- changes by range


_PLACED_MAX: Final = 16
_placed: Final = IdentityCache[tuple[Token, ...], tuple[tuple[list[Range], list[int]], ...]](2)
"""Ends to lists of ranges with their positions among the ends; at most ``_PLACED_MAX`` lists."""

_Met = Sequence[set[NodeId] | None]
"""For each range the nodes that a walk meets before the entering one; None if others influence the order."""

_Stand = tuple[Mapping[NodeId, tuple[Token, ...]], Mapping[NodeId, NodeId]]
"""``coming`` and ``standing_by`` of an order."""

_Walks = tuple[Mapping[NodeId, Node], Sequence[Token], list[Range], _Stand, _Met]
"""The directory, the ring, the ranges, the nodes not at their present tokens, and the nodes met."""

_WALKED_MAX: Final = 1_024
_walked: Final = IdentityCache[Sequence[Nodes], _Walks](8)
"""Walks by the lists of entering nodes, for at most ``_WALKED_MAX`` ranges.

The settings of a cluster and the steps of an operation share these lists. A node that enters all ranges of a ring does
so in one setting only: caching megabytes for it would be useless.
"""


def _over(column: RangeColumn[NodeId], ranges: list[Range]) -> Sequence[Nodes]:
    """Return the column's nodes for each of these ranges."""
    if column.ranges is ranges or column.ranges == ranges:
        return column.items
    known = dict(zip(column.ranges, column.items, strict=True))
    return [known.get(range_, ()) for range_ in ranges]


def _places(ends: tuple[Token, ...], ranges: list[Range]) -> list[int]:
    """Return the positions of these ranges, by end, among the ranges with these ends.

    The ends are the same in each stage of an operation and for all settings, and settings with a common part change the
    same ranges. So the result is cached.
    """
    known = _placed.get(ends) or ()
    for others, places in known:
        if others is ranges or others == ranges:
            return places
    found, index = [], 0
    for start, end in ranges:
        index = bisect_left(ends, end, index)
        there = index < len(ends) and (ends[index - 1], ends[index]) == (start, end)
        assert there, "a changed range exists"
        found.append(index)
    _placed.put(ends, (*known[1 - _PLACED_MAX :], (ranges, found)))
    return found


def columns_by_setting(*deltas: Deltas) -> dict[str, list[RangeColumn[NodeId]]]:
    """Return the key of each setting with the columns of the changes in ``deltas``, each once."""
    found: dict[str, dict[int, RangeColumn[NodeId]]] = {}
    for changes in (getattr(one, name) for one in deltas for name in _LISTS):
        for key, column in columns_of(changes).items():
            found.setdefault(key, {})[id(column)] = column  # a node that enters the writers also enters the readers
    return {key: list(columns.values()) for key, columns in found.items()}


@dataclass(slots=True)
class Touched:
    """The changes of one range: the nodes that enter and leave its read and its write group."""

    read_added: Nodes = ()
    read_removed: Nodes = ()
    write_added: Nodes = ()
    write_removed: Nodes = ()


_LISTS: Final = ("read_added", "read_removed", "write_added", "write_removed")


def touched(*deltas: Deltas) -> dict[str, list[tuple[Range, Touched]]]:
    """Return the key of each setting with the ranges that ``deltas`` change together, by end, and their changes."""
    gathered: dict[str, dict[Range, Touched]] = {}
    lists = [(name, getattr(one, name)) for one in deltas for name in _LISTS]
    for list_of, key, column in ((name, key, column) for name, own in lists for key, column in columns_of(own).items()):
        ranges = gathered.setdefault(key, {})
        for range_, nodes in zip(column.ranges, column.items, strict=True):
            here = ranges.get(range_)
            if here is None:
                here = ranges[range_] = Touched()
            setattr(here, list_of, (*getattr(here, list_of), *nodes))
    return {key: sorted(ranges.items(), key=lambda item: item[0][1]) for key, ranges in gathered.items()}


# -------------------------------------------------------------------------------------------- order of groups


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the members of a group, by their distance on a clockwise walk.

    ``nodes``: the directory, every member with its tokens. ``coming``: the tokens of nodes that are joining.
    ``standing_by``: nodes that will take over another node's tokens, each with that node; it comes right after it in
    the order. ``ring``: all present tokens in order, if they are known, and their owners: walking a few is faster than
    comparing each member.
    """

    nodes: Mapping[NodeId, Node]
    coming: Mapping[NodeId, tuple[Token, ...]] = field(default_factory=dict)
    standing_by: Mapping[NodeId, NodeId] = field(default_factory=dict)
    ring: tuple[Sequence[Token], Mapping[Token, NodeId]] = ((), _NO_OWNERS)
    _met: dict[tuple[Token, NodeId], set[NodeId] | None] = field(default_factory=dict, init=False, repr=False)
    _stands: dict[NodeId, tuple[tuple[Token, ...], bool]] = field(default_factory=dict, init=False, repr=False)
    _places: dict[Token, dict[NodeId, int]] = field(default_factory=dict, init=False, repr=False)
    """Cached positions of nodes, by range end: the same few nodes are in many groups."""

    def place(self, end: Token, node: NodeId) -> int:
        """Return the sort key of a node in the group of the range that ends at ``end``: its distance from there."""
        known = self._places.get(end)
        if known is None:
            known = self._places[end] = {}
        found = known.get(node)
        if found is None:
            stands = self._stands.get(node)
            tokens, is_standing_by = self._stand(node) if stands is None else stands
            index = bisect_left(tokens, end)
            distance = tokens[index] - end if index < len(tokens) else tokens[0] - end + _LAP
            # Doubling leaves room for a node that stands by: it sorts right after the owner of the tokens.
            found = known[node] = 2 * distance + is_standing_by
        return found

    def met_by(self, ranges: list[Range], entering: Sequence[Nodes]) -> _Met:
        """Return for each range the nodes that a walk from its end meets before the entering node; None: compare
        members.

        The nodes that enter the write groups with one stage enter the read groups with the next, so the result is
        cached.
        """
        asked, known = (self.coming, self.standing_by), _walked.get(entering)
        if known is not None:
            nodes, tokens, others, stand, found = known
            if nodes is self.nodes and tokens is self.ring[0] and others is ranges and stand == asked:
                return found
        found = [
            self._met_before(end, nodes[0]) if len(nodes) == 1 else None
            for (_, end), nodes in zip(ranges, entering, strict=True)
        ]
        if len(ranges) <= _WALKED_MAX:
            _walked.put(entering, (self.nodes, self.ring[0], ranges, asked, found))
        return found

    def _met_before(self, end: Token, node: NodeId) -> set[NodeId] | None:
        """Return the nodes that a walk from ``end`` meets before ``node``.

        None: the walk is long, or other nodes count at tokens that are not their present ones.
        """
        asked = end, node
        if asked in self._met:
            return self._met[asked]
        (tokens, owners), met = self.ring, None
        if tokens and not self.standing_by and (not self.coming or self.coming.keys() == {node}):
            own = self._stand(node)[0]
            index = bisect_left(own, end)
            goal = own[index] if index < len(own) else own[0]
            first, last = bisect_left(tokens, end), bisect_left(tokens, goal)
            if goal >= end:
                walked = tokens[first:last] if last - first <= _WALK_MAX else None
            else:  # the walk wraps past the last token
                long = len(tokens) - first + last > _WALK_MAX
                walked = None if long else (*tokens[first:], *tokens[:last])
            met = None if walked is None else set(map(owners.__getitem__, walked))
            assert met is None or node not in met, "a node does not precede itself in a walk"
        self._met[asked] = met
        return met

    def _stand(self, node: NodeId) -> tuple[tuple[Token, ...], bool]:
        owner = self.standing_by.get(node, node)
        tokens = self.coming.get(owner) or self.nodes[owner].tokens
        assert tokens, "every replica owns a token or will own one"
        self._stands[node] = stands = tokens, owner is not node
        return stands

    def sorted(self, end: Token, group: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """Return the group of the range that ends at ``end``, in order."""
        return tuple(sorted(group, key=lambda replica: self.place(end, replica.node)))

    def with_one(self, end: Token, group: tuple[Replica, ...], replica: Replica) -> tuple[Replica, ...]:
        """Return the ordered group with one more member."""
        met = self._met_before(end, replica.node)
        if met is not None:
            at = _behind(group, met, replica.node)
            return (*group[:at], replica, *group[at:])
        own = self.place(end, replica.node)
        known = self._places[end]
        index, above = 0, len(group)
        while index < above:
            middle = (index + above) // 2
            node = group[middle].node
            there = known.get(node)
            if (self.place(end, node) if there is None else there) < own:
                index = middle + 1
            else:
                above = middle
        assert index == len(group) or group[index].node != replica.node, "a node enters a group only once"
        return (*group[:index], replica, *group[index:])


# ------------------------------------------------------------------------------------------------- application


def apply_deltas(placements: Map[str, Placement], deltas: Deltas, order: Order, epoch: Epoch) -> Map[str, Placement]:
    """Return the placements after ``deltas``, changed ranges stamped with ``epoch``.

    Changes of a setting that no keyspace uses now are skipped.
    """
    lists = [columns_of(getattr(deltas, name)) for name in _LISTS]
    entering = nodes_in(deltas.write_added).union(nodes_in(deltas.read_added))
    newcomers = {node: Replica(node, epoch) for node in entering}
    for key in sorted({key for found in lists for key in found}):
        placement = placements.get(key)
        if placement is not None:
            changed = _apply(placement, [found.get(key) for found in lists], order, epoch, newcomers)
            placements = placements.set(key, changed)
    return placements


def reordered(placements: Map[str, Placement], node: NodeId, order: Order) -> Map[str, Placement]:
    """Return the placements with the groups of ``node`` in the given order, after a move. Members do not change."""
    for key, placement in sorted(placements.items()):
        ranges = tuple(
            replace(group, read=order.sorted(group.end, group.read), write=order.sorted(group.end, group.write))
            if any(replica.node == node for replica in group.write)
            else group
            for group in placement.ranges
        )
        assert len(ranges) == len(placement.ranges), "reordering does not change ranges"
        placements = placements.set(key, replace(placement, ranges=ranges))
    return placements


def _apply(
    placement: Placement,
    columns: Sequence[RangeColumn[NodeId] | None],
    order: Order,
    epoch: Epoch,
    newcomers: Mapping[NodeId, Replica],
) -> Placement:
    """Return the placement after the changes. ``columns``: one for each of the four lists.

    ``newcomers``: one object for each node, not for each node and range.
    """
    given = [column for column in columns if column is not None]
    ranges = given[0].ranges
    if any(column.ranges is not ranges and column.ranges != ranges for column in given):
        ranges = sorted({range_ for column in given for range_ in column.ranges}, key=by_end)
    ends, places = placement.ends, _places(placement.ends, ranges)
    enter_read, leave_read, enter_write, leave_write = (
        None if column is None else _over(column, ranges) for column in columns
    )
    groups = items_at(placement.ranges, places)
    assert list(map(_end_of, groups)) == list(map(by_end, ranges)), "ranges have the ends of the placement"
    assert max(map(_changed_of, groups)) <= epoch, "no range changed at a future epoch"
    reads, writes = list(map(_read_of, groups)), list(map(_write_of, groups))
    if leave_write is not None:
        if enter_write is not None:
            assert all(map(_are_apart, enter_write, leave_write)), "no node both enters and leaves in one step"
        writes = _all_without(writes, leave_write)
    if enter_write is not None:
        writes = _all_with(writes, ranges, enter_write, order, newcomers)
    if leave_read is not None:
        reads = _all_without(reads, leave_read)
    if enter_read is not None:
        reads = _all_with(reads, ranges, enter_read, order, newcomers, writes)
    if leave_write is not None:
        assert not any(map(_is_any_of, reads, leave_write)), "readers are writers"
    changed = [
        RangeGroup(start, end, read, write, epoch)
        for (start, end), read, write in zip(ranges, reads, writes, strict=True)
    ]
    return Placement(placement.key, with_items(placement.ranges, places, changed), ends)


def _is_any_of(group: tuple[Replica, ...], nodes: Nodes) -> bool:
    """Return True if one of its members is among these nodes."""
    if len(nodes) == 1:
        return nodes[0] in map(_node_of, group)
    return not {*map(_node_of, group)}.isdisjoint(nodes)


def _are_apart(some: Nodes, others: Nodes) -> bool:
    return not some or not others or {*some}.isdisjoint(others)


def _all_without(groups: Iterable[tuple[Replica, ...]], removed: Iterable[Nodes]) -> list[tuple[Replica, ...]]:
    """Return the groups, each without the removed nodes of its range. Neighbouring ranges keep sharing equal groups."""
    found: list[tuple[Replica, ...]] = []
    last: tuple[Replica, ...] = ()
    gone: Nodes = ()
    left: tuple[Replica, ...] = ()
    for group, nodes in zip(groups, removed, strict=True):
        if group is not last or nodes != gone:
            last, gone = group, nodes
            left = _without(group, nodes) if nodes else group
        found.append(left)
    return found


def _all_with(
    groups: Iterable[tuple[Replica, ...]],
    ranges: list[Range],
    entering: Sequence[Nodes],
    order: Order,
    newcomers: Mapping[NodeId, Replica],
    writes: Sequence[tuple[Replica, ...]] = (),
) -> list[tuple[Replica, ...]]:
    """Return the ordered groups, each with the nodes that enter it. ``writes``: the writers, if the groups are readers.

    Neighbouring ranges keep sharing one group if the nodes enter at the same position.
    """
    found: list[tuple[Replica, ...]] = []
    last: tuple[Replica, ...] = ()
    here: Nodes = ()
    made, before = last, -1
    met_by = order.met_by(ranges, entering)
    for number, (group, nodes, met) in enumerate(zip(groups, entering, met_by, strict=True)):
        if met is not None:
            node = nodes[0]
            at = _behind(group, met, node)
            if writes:
                write = writes[number]
                there = at < len(write) and (write[at].node == node or node in map(_node_of, write))
                assert there, "readers are writers"
            if at != before or group is not last or nodes != here:
                made = (*group[:at], newcomers[node], *group[at:])
            before, last, here = at, group, nodes
        else:
            made, before = group, -1
            for node in nodes:
                if writes:
                    made = _among(made, writes[number], newcomers[node])
                else:
                    made = order.with_one(ranges[number][1], made, newcomers[node])
        found.append(made)
    return found


def _behind(group: tuple[Replica, ...], met: set[NodeId], node: NodeId) -> int:
    """Return the number of members of an ordered group that a walk has ``met`` before this node."""
    at = 0
    for member in group:
        if member.node not in met:
            assert member.node != node, "a node enters a group only once"
            break
        at += 1
    return at


def _among(read: tuple[Replica, ...], write: tuple[Replica, ...], replica: Replica) -> tuple[Replica, ...]:
    """Return the readers with one more member, in the order of the writers, which contain all readers."""
    own, index, size = replica.node, 0, len(read)
    for member in write:
        node = member.node
        if node == own:
            break
        index += index < size and read[index].node == node
    else:
        raise AssertionError("readers are writers")
    assert index == size or read[index].node != own, "a node enters a group only once"
    return (*read[:index], replica, *read[index:])


def _without(group: tuple[Replica, ...], removed: Nodes) -> tuple[Replica, ...]:
    for node in removed:
        for at, member in enumerate(group):
            if member.node == node:
                group = group[:at] + group[at + 1 :]
                break
        else:
            raise AssertionError("only members leave a group")
    return group
