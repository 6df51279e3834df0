"""Deltas applied to live placements: who enters and who leaves the groups of which ranges, and since when.

Applying is strict: a range must exist exactly as the change names it, a node may enter only a group that lacks it and
leave only one that has it. Who enters is a member since the epoch of the entry; who leaves and comes back starts
anew, so ``since`` never spans a gap. A range whose groups change gets that epoch as ``changed``; all others stay the
same objects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from immutables import Map

from ringlog.kernel.ring.ranges import Range
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


def apply_deltas(
    placements: Map[str, Placement], deltas: Deltas, owners: Mapping[Token, NodeId], epoch: Epoch
) -> Map[str, Placement]:
    """The placements after ``deltas``, changed ranges stamped with ``epoch``.

    Changes of a setting that no keyspace uses any more are left out. ``owners`` gives the owner of every range end,
    tokens that are moving in included: it orders the groups.
    """
    for key, placement in sorted(placements.items()):
        changes = touched(key, deltas)
        if changes:
            placements = placements.set(key, _apply(placement, changes, owners, epoch))
    return placements


def _apply(
    placement: Placement, changes: list[tuple[Range, Touched]], owners: Mapping[Token, NodeId], epoch: Epoch
) -> Placement:
    ranges = list(placement.ranges)
    for (start, end), change in changes:
        index = bisect_left(placement.ends, end)
        assert index < len(ranges), "a change names a range that exists"
        group = ranges[index]
        assert (group.start, group.end) == (start, end), "a change names a range that exists"
        read = _changed(group.read, change.read_added, change.read_removed, epoch)
        write = _changed(group.write, change.write_added, change.write_removed, epoch)
        assert {replica.node for replica in read} <= {replica.node for replica in write}, "readers are writers"
        place = _places(placement.ends, index, owners, {replica.node for replica in write})
        ranges[index] = RangeGroup(start, end, _ordered(read, place), _ordered(write, place), epoch)
    return Placement(placement.key, tuple(ranges), placement.ends)


def _changed(group: tuple[Replica, ...], added: set[NodeId], removed: set[NodeId], epoch: Epoch) -> tuple[Replica, ...]:
    members = {replica.node for replica in group}
    assert not added & members, "a node enters a group only once"
    assert removed <= members, "only members leave a group"
    kept = tuple(replica for replica in group if replica.node not in removed)
    return kept + tuple(Replica(node, epoch) for node in sorted(added))


def _places(
    ends: tuple[Token, ...], index: int, owners: Mapping[Token, NodeId], wanted: Iterable[NodeId]
) -> dict[NodeId, int]:
    """How many steps a clockwise walk from the range at ``index`` takes to meet each wanted node."""
    missing, places = set(wanted), {}
    for step in range(len(ends)):
        if not missing:
            break
        owner = owners[ends[(index + step) % len(ends)]]
        if owner in missing:
            missing.remove(owner)
            places[owner] = step
    assert not missing, "every replica owns a token"
    return places


def _ordered(group: tuple[Replica, ...], places: Mapping[NodeId, int]) -> tuple[Replica, ...]:
    return tuple(sorted(group, key=lambda replica: places[replica.node]))
