"""Who enters and who leaves the write group of a range, and the groups of which a safe write needs a quorum.

From ``write_both_read_old`` on until an operation ends, the write group of a range that it moves holds both who enters
and who leaves. A majority of it is not enough: {A, B, X} is one of {A, B, C, X, Y}, and misses the read quorum {C, Y}
of the new group {X, Y, C}. Of each operation either all of its change counts or nothing of it: before it, who enters
is left out; after it, who leaves. One operation makes two groups. Where several change the same range at once, each
combination of those done and not done yet is a group, for any of them may be the view that a later read is planned on.

No kind of operation is named here: the deltas of its plan say who enters and who leaves. A plan grows with the ring, so
others see them range by range (``served``), in the records of change topics and caches: what they need beside the write
group is what ``RangeChange`` says.

Source: CASSANDRA-21200, which counts who enters and whom it replaces as one slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringlog.kernel.columns.blocks import picked, with_items
from ringlog.kernel.model.state import Change, ClusterState, Operation, RangeGroup, Replica, in_order
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD, has_reached, in_flight
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import Epoch, NodeId, OperationId, Token


@dataclass(frozen=True, slots=True)
class RangeChange:
    """What an operation in flight does to the write group of a range; ids ascend."""

    operation: OperationId
    entering: tuple[NodeId, ...]
    leaving: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ServedRange:
    """A range as others see it: its groups, and what is moving in it, in the order of admission."""

    start: Token
    end: Token
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch
    moving: tuple[RangeChange, ...] = ()


def write_groups(write: Sequence[NodeId], moving: Iterable[RangeChange]) -> dict[str, tuple[NodeId, ...]]:
    """Every group of which a write needs a quorum, by name, from the write group of a range and what moves in it.

    One group may have no member: nobody's answer is needed for it.
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
    """What is moving in the range that holds ``token`` under the placement ``key``."""
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
    """Every placement's ranges by end; a range in which nothing moves is the object of the state itself."""
    placements = {key: placement.ranges for key, placement in in_order(state.placements)}
    moving: dict[str, dict[int, tuple[RangeChange, ...]]] = {}
    for operation in _movers(state):
        gathered: dict[tuple[str, int], _Gathered] = {}
        for change, enters in _steps(operation):
            placement = state.placements.get(change.replication)
            if placement is not None:  # else no keyspace uses the setting any more
                for index in _within(placement.ends, change.start, change.end):
                    gathered.setdefault((change.replication, index), _Gathered()).add(change.node, enters)
        for (key, index), here in gathered.items():
            ranges = moving.setdefault(key, {})
            ranges[index] = (*ranges.get(index, ()), here.of(operation))
    return placements | {key: _with_moving(placements[key], here) for key, here in moving.items()}


def _with_moving(
    ranges: Sequence[RangeGroup], here: Mapping[int, tuple[RangeChange, ...]]
) -> tuple[RangeGroup | ServedRange, ...]:
    """The ranges, with what moves in some, by their place; all others are shared with the state, block by block."""
    places = sorted(here)
    served_ranges = [_served(group, here[at]) for at, group in zip(places, picked(ranges, places), strict=True)]
    every: Sequence[RangeGroup | ServedRange] = ranges
    return with_items(every, places, served_ranges)


def as_served(group: RangeGroup | ServedRange) -> ServedRange:
    """A range of ``served`` with what moves in it, if only nothing."""
    return group if isinstance(group, ServedRange) else _served(group, ())


class _Gathered:
    """Who enters and who leaves one range by one operation, over all of its steps."""

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
    """The operations in flight that write to new owners, too."""
    return (operation for operation in in_flight(state) if has_reached(operation, WRITE_BOTH_READ_OLD))


def _steps(operation: Operation) -> Iterator[tuple[Change, bool]]:
    """The changes of write groups over all steps of an operation, and whether a node enters."""
    for deltas in (operation.plan.start, operation.plan.middle, operation.plan.finish):
        for change in deltas.write_added:
            yield change, True
        for change in deltas.write_removed:
            yield change, False


def _within(ends: tuple[Token, ...], start: Token, end: Token) -> Iterator[int]:
    """Indices of the ranges that make up ``(start, end]``: one, unless it was cut since the plan was made."""
    last = index = bisect_left(ends, end)
    assert ends[index : index + 1] == (end,), "a range that moves ends where its plan says"
    while True:
        yield index
        index = (index or len(ends)) - 1
        if index == last or not in_range(ends[index], start, end):
            return
