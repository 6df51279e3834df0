"""The nodes that enter and leave the write group of a range, and the groups whose quorums a safe write needs.

From ``write_both_read_old`` until an operation ends, the write group of a range that it moves holds the entering and
the leaving nodes. A majority of this group is not enough. {A, B, X} is a majority of {A, B, C, X, Y}, but misses the
read quorum {C, Y} of the new group {X, Y, C}. Each operation counts as a whole: the group before it excludes the
entering nodes, the group after it excludes the leaving ones. One operation makes two groups. If several operations
change the same range at once, each combination of finished and unfinished ones is a group, because a later read may be
planned on any of these views.

This module does not distinguish kinds of operations: the deltas of the plan name the entering and leaving nodes. A plan
grows with the ring, so change topics and caches get the changes range by range (``served``), as a write group and its
``RangeChange`` records.

Source: CASSANDRA-21200, which counts an entering node and the node that it replaces as one slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ringlog.kernel.columns.blocks import items_at, with_items
from ringlog.kernel.model.state import Change, ClusterState, Operation, RangeGroup, Replica, in_order
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD, has_reached, in_flight
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import Epoch, NodeId, OperationId, Token, Value


class RangeChange(Value):
    """The change of one operation in flight to the write group of a range; ids ascend."""

    operation: OperationId
    entering: tuple[NodeId, ...]
    leaving: tuple[NodeId, ...]


class ServedRange(Value):
    """A range with its groups and the changes in flight, in the order of admission."""

    start: Token
    end: Token
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch
    moving: tuple[RangeChange, ...] = ()


def write_groups(write: Sequence[NodeId], moving: Iterable[RangeChange]) -> dict[str, tuple[NodeId, ...]]:
    """Return every group whose quorum a write needs, by name, from the write group of a range and its changes.

    A group may have no members: then it needs no answers.
    """
    groups = {"replicas": frozenset(write)}
    for one in moving:
        named = {}
        for name, members in groups.items():
            prefix = "" if name == "replicas" else f"{name}, "
            named[f"{prefix}before {one.operation}"] = members.difference(one.entering).union(one.leaving)
            named[f"{prefix}after {one.operation}"] = members.difference(one.leaving).union(one.entering)
        groups = named
    return {name: tuple(node for node in write if node in members) for name, members in groups.items()}


def moving_at(state: ClusterState, key: str, token: Token) -> tuple[RangeChange, ...]:
    """Return the changes in flight of the range that holds ``token`` under the placement ``key``."""
    found = []
    for operation in _movers(state):
        here = _Gathered()
        for change, enters in _steps(operation):
            if change.replication == key and in_range(token, change.start, change.end):
                here.add(change.node, enters)
        if here.entering or here.leaving:
            found.append(here.of(operation))
    return tuple(found)


def served(state: ClusterState) -> Mapping[str, tuple[RangeGroup | ServedRange, ...]]:
    """Return every placement's ranges by end. A range without changes in flight is the object of the state itself."""
    placements = {key: placement.ranges for key, placement in in_order(state.placements)}
    moving: dict[str, dict[int, tuple[RangeChange, ...]]] = {}
    for operation in _movers(state):
        gathered: dict[tuple[str, int], _Gathered] = {}
        for change, enters in _steps(operation):
            placement = state.placements.get(change.replication)
            if placement is not None:  # else no keyspace uses the setting now
                for index in _within(placement.ends, change.start, change.end):
                    gathered.setdefault((change.replication, index), _Gathered()).add(change.node, enters)
        for (key, index), here in gathered.items():
            ranges = moving.setdefault(key, {})
            ranges[index] = (*ranges.get(index, ()), here.of(operation))
    return placements | {key: _with_moving(placements[key], here) for key, here in moving.items()}


def _with_moving(
    ranges: Sequence[RangeGroup], here: Mapping[int, tuple[RangeChange, ...]]
) -> tuple[RangeGroup | ServedRange, ...]:
    """Return the ranges by place, with their changes in flight. Blocks of ranges without changes are shared with the
    state.
    """
    places = sorted(here)
    served_ranges = [_served(group, here[at]) for at, group in zip(places, items_at(ranges, places), strict=True)]
    every: Sequence[RangeGroup | ServedRange] = ranges
    return with_items(every, places, served_ranges)


def as_served(group: RangeGroup | ServedRange) -> ServedRange:
    """Return a range of ``served`` with its changes in flight, if it has any."""
    return group if isinstance(group, ServedRange) else _served(group, ())


class _Gathered:
    """The nodes that enter and leave one range by one operation, over all of its steps."""

    def __init__(self) -> None:
        self.entering: set[NodeId] = set()
        self.leaving: set[NodeId] = set()

    def add(self, node: NodeId, enters: bool) -> None:
        (self.entering if enters else self.leaving).add(node)

    def of(self, operation: Operation) -> RangeChange:
        return RangeChange(operation.id, tuple(sorted(self.entering)), tuple(sorted(self.leaving)))


def _served(group: RangeGroup, moving: tuple[RangeChange, ...]) -> ServedRange:
    return ServedRange(group.start, group.end, group.read, group.write, group.changed, moving)


def _movers(state: ClusterState) -> Iterator[Operation]:
    """Yield the operations in flight that also write to new owners."""
    return (operation for operation in in_flight(state) if has_reached(operation, WRITE_BOTH_READ_OLD))


def _steps(operation: Operation) -> Iterator[tuple[Change, bool]]:
    """Yield the changes of write groups over all steps of an operation, and whether a node enters."""
    for deltas in (operation.plan.start, operation.plan.middle, operation.plan.finish):
        for change in deltas.write_added:
            yield change, True
        for change in deltas.write_removed:
            yield change, False


def _within(ends: tuple[Token, ...], start: Token, end: Token) -> Iterator[int]:
    """Yield the indices of the ranges that make up ``(start, end]``: one, unless it was cut since the plan was made."""
    last = index = bisect_left(ends, end)
    assert ends[index : index + 1] == (end,), "a moving range has the end in its plan"
    while True:
        yield index
        index = (index or len(ends)) - 1
        if index == last or not in_range(ends[index], start, end):
            return
