"""Deltas applied to live placements: who enters and who leaves the groups of which ranges, and since when.

Applying is strict: a range must exist exactly as the change names it, a node may enter only a group that lacks it and
leave only one that has it. Who enters is a member since the epoch of the entry; who leaves and comes back starts
anew, so ``since`` never spans a gap. A range whose groups change gets that epoch as ``changed``; all others stay the
same objects.

Groups stand in the order of a clockwise walk, so a member that leaves disturbs nobody's place, and one that enters is
put into its own by its distance alone: nothing is walked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from immutables import Map

from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.state import Change, Deltas, Node, Placement, RangeGroup, Replica
from ringlog.kernel.swift import maker_of
from ringlog.kernel.values import Epoch, NodeId, Token

_new_group = maker_of(RangeGroup)
_LAP = 2**64
"""Above every distance on the ring."""


@dataclass(slots=True)
class Touched:
    """What happens to one range: the nodes that enter and leave its read and its write group."""

    read_added: tuple[NodeId, ...] = ()
    read_removed: tuple[NodeId, ...] = ()
    write_added: tuple[NodeId, ...] = ()
    write_removed: tuple[NodeId, ...] = ()


def touched(*deltas: Deltas) -> dict[str, list[tuple[Range, Touched]]]:
    """Key of a setting to the ranges that ``deltas`` change together, by end, with what happens to each."""
    gathered: dict[str, dict[Range, Touched]] = {}
    for one in deltas:
        for change, here in _places(gathered, one.read_added):
            here.read_added = (*here.read_added, change.node)
        for change, here in _places(gathered, one.read_removed):
            here.read_removed = (*here.read_removed, change.node)
        for change, here in _places(gathered, one.write_added):
            here.write_added = (*here.write_added, change.node)
        for change, here in _places(gathered, one.write_removed):
            here.write_removed = (*here.write_removed, change.node)
    return {key: sorted(ranges.items(), key=_by_end) for key, ranges in gathered.items()}


def _places(gathered: dict[str, dict[Range, Touched]], changes: tuple[Change, ...]) -> Iterator[tuple[Change, Touched]]:
    """Each change, and what is gathered of its range."""
    key, ranges = None, {}
    for change in changes:
        if change.replication != key:
            key = change.replication
            ranges = gathered.setdefault(key, {})
        place = change.start, change.end
        here = ranges.get(place)
        if here is None:
            here = ranges[place] = Touched()
        yield change, here


def _by_end(item: tuple[Range, Touched]) -> Token:
    return item[0][1]


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the members of a group: as a clockwise walk meets them.

    ``nodes``: the directory, every member with its tokens. ``coming``: the tokens of nodes that are joining.
    ``beside``: nodes that are to take over another's tokens, each with the node right after which it stands.
    """

    nodes: Mapping[NodeId, Node]
    coming: Mapping[NodeId, tuple[Token, ...]] = field(default_factory=dict)
    beside: Mapping[NodeId, NodeId] = field(default_factory=dict)
    _stands: dict[NodeId, tuple[tuple[Token, ...], bool]] = field(default_factory=dict, init=False, repr=False)
    """Where those stand that were asked for: the same few are in many groups."""

    def place(self, end: Token, node: NodeId) -> tuple[int, bool]:
        """What the members of the range that ends at ``end`` are sorted by: the distance to a node's next token."""
        stands = self._stands.get(node)
        tokens, is_beside = self._stand(node) if stands is None else stands
        index = bisect_left(tokens, end)
        distance = tokens[index] - end if index < len(tokens) else tokens[0] - end + _LAP
        return distance, is_beside

    def _stand(self, node: NodeId) -> tuple[tuple[Token, ...], bool]:
        owner = self.beside.get(node, node)
        tokens = self.coming.get(owner) or self.nodes[owner].tokens
        assert tokens, "every replica owns a token, or is to take over one"
        self._stands[node] = stands = tokens, owner is not node
        return stands

    def sorted(self, end: Token, group: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """The group of the range that ends at ``end``, in order."""
        return tuple(sorted(group, key=lambda replica: self.place(end, replica.node)))

    def with_one(self, end: Token, group: tuple[Replica, ...], replica: Replica) -> tuple[Replica, ...]:
        """The group, which is in order, with one more member."""
        assert replica.node not in [member.node for member in group], "a node enters a group only once"
        own = self.place(end, replica.node)
        index = bisect_left(group, own, key=lambda member: self.place(end, member.node))
        return (*group[:index], replica, *group[index:])


def apply_deltas(placements: Map[str, Placement], deltas: Deltas, order: Order, epoch: Epoch) -> Map[str, Placement]:
    """The placements after ``deltas``, changed ranges stamped with ``epoch``.

    Changes of a setting that no keyspace uses any more are left out.
    """
    for key, changes in sorted(touched(deltas).items()):
        placement = placements.get(key)
        if placement is not None:
            placements = placements.set(key, _apply(placement, changes, order, epoch))
    return placements


def reordered(placements: Map[str, Placement], node: NodeId, order: Order) -> Map[str, Placement]:
    """The placements, groups of ``node`` in the given order; no membership changes. For a node that moved."""
    for key, placement in sorted(placements.items()):
        ranges = tuple(
            replace(group, read=order.sorted(group.end, group.read), write=order.sorted(group.end, group.write))
            if any(replica.node == node for replica in group.write)
            else group
            for group in placement.ranges
        )
        assert len(ranges) == len(placement.ranges), "an order has no say in ranges"
        placements = placements.set(key, replace(placement, ranges=ranges))
    return placements


def _apply(placement: Placement, changes: Iterable[tuple[Range, Touched]], order: Order, epoch: Epoch) -> Placement:
    ranges, ends = list(placement.ranges), placement.ends
    newcomers: dict[NodeId, Replica] = {}
    index = 0
    for (start, end), change in changes:
        index = bisect_left(ends, end, index)  # changes come by their ends
        assert index < len(ranges), "a change names a range that exists"
        group = ranges[index]
        assert (group.start, group.end) == (start, end), "a change names a range that exists"
        assert group.changed <= epoch, "no range has changed with an entry that is still to come"
        assert not change.write_removed or not {*change.write_added}.intersection(change.write_removed), (
            "nobody enters and leaves with one step"
        )
        write = _without(group.write, change.write_removed)
        for node in change.write_added:
            write = order.with_one(end, write, _newcomer(newcomers, node, epoch))
        read = _without(group.read, change.read_removed)
        for node in change.read_added:
            read = _among(read, write, _newcomer(newcomers, node, epoch))
        if read is not group.read or change.write_removed:
            assert read is write or {replica.node for replica in read} <= {replica.node for replica in write}, (
                "readers are writers"
            )
        ranges[index] = _new_group(start, end, read, write, epoch)
    assert len(ranges) == len(ends), "deltas cut no range and join none"
    return Placement(placement.key, tuple(ranges), ends)


def _newcomer(newcomers: dict[NodeId, Replica], node: NodeId, epoch: Epoch) -> Replica:
    """One object for each node, not for each node and range."""
    found = newcomers.get(node)
    if found is None:
        found = newcomers[node] = Replica(node, epoch)
    return found


def _among(read: tuple[Replica, ...], write: tuple[Replica, ...], replica: Replica) -> tuple[Replica, ...]:
    """The readers with one more, in the order of the writers, who are in order and whose part they are."""
    nodes = [member.node for member in write]
    assert replica.node in nodes, "readers are writers"
    before = nodes[: nodes.index(replica.node)]
    index = 0
    for member in read:
        assert member.node != replica.node, "a node enters a group only once"
        index += member.node in before
    return (*read[:index], replica, *read[index:])


def _without(group: tuple[Replica, ...], removed: tuple[NodeId, ...]) -> tuple[Replica, ...]:
    if not removed:
        return group
    kept = tuple([replica for replica in group if replica.node not in removed])
    assert len(kept) == len(group) - len(removed), "only members leave a group"
    return kept
