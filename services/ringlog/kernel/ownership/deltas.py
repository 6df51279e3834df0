"""Deltas applied to live placements: who enters and who leaves the groups of which ranges, and since when.

Applying is strict: a range must exist exactly as the change names it, a node may enter only a group that lacks it and
leave only one that has it. Who enters is a member since the epoch of the entry; who leaves and comes back starts
anew, so ``since`` never spans a gap. A range whose groups change gets that epoch as ``changed``; all others stay the
same objects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from immutables import Map

from ringlog.kernel.ring.ranges import Range, index_at
from ringlog.kernel.state import Deltas, Placement, RangeGroup, Replica
from ringlog.kernel.values import Epoch, NodeId, Token

_GROUPS = ("read_added", "read_removed", "write_added", "write_removed")


@dataclass(slots=True)
class Touched:
    """What happens to one range: the nodes that enter and leave its read and its write group."""

    read_added: set[NodeId] = field(default_factory=set)
    read_removed: set[NodeId] = field(default_factory=set)
    write_added: set[NodeId] = field(default_factory=set)
    write_removed: set[NodeId] = field(default_factory=set)


def touched(replication: str, *deltas: Deltas) -> list[tuple[Range, Touched]]:
    """The ranges under a replication setting that ``deltas`` change together, by end, with what happens to each."""
    gathered: dict[Range, Touched] = {}
    for one in deltas:
        for name in _GROUPS:
            for change in getattr(one, name):
                if change.replication == replication:
                    here = gathered.setdefault((change.start, change.end), Touched())
                    getattr(here, name).add(change.node)
    return sorted(gathered.items(), key=lambda item: item[0][1])


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the members of a group: as a clockwise walk meets them.

    ``owners``: the token map, with the tokens of nodes that are joining. ``beside``: nodes that are to take over
    another's tokens, each with the node beside which it stands.
    """

    tokens: tuple[Token, ...]
    owners: Mapping[Token, NodeId]
    beside: Mapping[NodeId, NodeId]

    def sorted(self, end: Token, group: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """The group of the range that ends at ``end``, in order."""
        if len(group) < 2:
            return group
        wanted = {self.beside.get(replica.node, replica.node) for replica in group}
        places: dict[NodeId, int] = {}
        first = index_at(self.tokens, end)
        for step in range(len(self.tokens)):
            owner = self.owners[self.tokens[(first + step) % len(self.tokens)]]
            if owner in wanted and owner not in places:
                places[owner] = step
                if len(places) == len(wanted):
                    break
        assert len(places) == len(wanted), "every replica owns a token, or is to take over one"

        def place(replica: Replica) -> tuple[int, bool]:
            return places[self.beside.get(replica.node, replica.node)], replica.node in self.beside

        return tuple(sorted(group, key=place))


def order_of(owners: Mapping[Token, NodeId], beside: Mapping[NodeId, NodeId] | None = None) -> Order:
    """The order that a token map gives."""
    return Order(tuple(sorted(owners)), owners, beside or {})


def apply_deltas(placements: Map[str, Placement], deltas: Deltas, order: Order, epoch: Epoch) -> Map[str, Placement]:
    """The placements after ``deltas``, changed ranges stamped with ``epoch``.

    Changes of a setting that no keyspace uses any more are left out.
    """
    for key, placement in sorted(placements.items()):
        changes = touched(key, deltas)
        if changes:
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
        placements = placements.set(key, replace(placement, ranges=ranges))
    return placements


def _apply(placement: Placement, changes: list[tuple[Range, Touched]], order: Order, epoch: Epoch) -> Placement:
    ranges = list(placement.ranges)
    for (start, end), change in changes:
        index = bisect_left(placement.ends, end)
        assert index < len(ranges), "a change names a range that exists"
        group = ranges[index]
        assert (group.start, group.end) == (start, end), "a change names a range that exists"
        read = _changed(group.read, change.read_added, change.read_removed, epoch)
        write = _changed(group.write, change.write_added, change.write_removed, epoch)
        assert {replica.node for replica in read} <= {replica.node for replica in write}, "readers are writers"
        ranges[index] = RangeGroup(start, end, order.sorted(end, read), order.sorted(end, write), epoch)
    return Placement(placement.key, tuple(ranges), placement.ends)


def _changed(group: tuple[Replica, ...], added: set[NodeId], removed: set[NodeId], epoch: Epoch) -> tuple[Replica, ...]:
    members = {replica.node for replica in group}
    assert not added & members, "a node enters a group only once"
    assert removed <= members, "only members leave a group"
    kept = tuple(replica for replica in group if replica.node not in removed)
    return kept + tuple(Replica(node, epoch) for node in sorted(added))
