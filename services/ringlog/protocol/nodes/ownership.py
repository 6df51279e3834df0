"""The ranges that a node serves under one replication setting or for one table with tablets, found by bisection."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ringlog.kernel.columns.blocks import taken_over
from ringlog.kernel.model.state import Placement, Replica
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.ring.ranges import Range, index_at, ranges_between
from ringlog.kernel.tablets.change_records import changed_tablets
from ringlog.kernel.tablets.mutual_exclusion import is_on
from ringlog.kernel.tablets.stages import nodes_of, readers, writers
from ringlog.kernel.values import TOKEN_MAX, NodeId, Token, Value


class Owned(Value):
    """For each range of the ring: whether the node takes its writes, and whether it answers its reads.

    Attributes:
        ends: The ends of the ranges, ascending. The other fields have the same order.
    """

    ends: tuple[Token, ...] = ()
    writes: tuple[bool, ...] = ()
    reads: tuple[bool, ...] = ()

    def accepts_writes(self, token: Token) -> bool:
        """Return True if the node is a write replica of ``token``."""
        return bool(self.ends) and self.writes[index_at(self.ends, token)]

    def serves_reads(self, token: Token) -> bool:
        """Return True if the node is a read replica of ``token``."""
        return bool(self.ends) and self.reads[index_at(self.ends, token)]

    def is_replica(self) -> bool:
        """Return True if the node replicates anything."""
        return any(self.writes) or any(self.reads)


NOTHING = Owned()


class OwnedTablets(Value):
    """The tablets that a node serves. Computed on demand, because a table may have a million tablets."""

    tablets: TabletMap
    node: NodeId

    def accepts_writes(self, token: Token) -> bool:
        """Return True if the node is a write replica of ``token``."""
        return self.has(self.tablets.index_of(token))

    def serves_reads(self, token: Token) -> bool:
        """Return True if the node is a read replica of ``token``."""
        return self.node in nodes_of(readers(self.tablets.tablet(self.tablets.index_of(token))))

    def is_replica(self) -> bool:
        """Return True if the node replicates anything."""
        return is_on(self.tablets, self.node)

    def has(self, index: int) -> bool:
        """Return True if the node is a write replica of the tablet ``index``."""
        return self.node in nodes_of(writers(self.tablets.tablet(index)))


Served = tuple[Placement, Owned]
"""A placement, and the ranges that a node serves under it."""


def owned_by(placement: Placement | None, node: str, before: Served | None = None) -> Owned:
    """Return the ranges that ``node`` serves under ``placement``.

    Args:
        before: An earlier placement and its result. Unchanged groups are copied from it.
    """
    if placement is None:
        return NOTHING
    if before is not None and before[0] is placement:
        return before[1]
    earlier, owned = before or (None, NOTHING)
    writes: list[bool] = []
    reads: list[bool] = []
    for at, groups in taken_over(() if earlier is None else earlier.ranges, placement.ranges):
        if at is None:
            writes += [_is_in(group.write, node) for group in groups]
            reads += [_is_in(group.read, node) for group in groups]
        else:
            writes += owned.writes[at : at + len(groups)]
            reads += owned.reads[at : at + len(groups)]
    if (writes, reads, placement.ends) == (list(owned.writes), list(owned.reads), owned.ends):
        return owned
    return Owned(placement.ends, tuple(writes), tuple(reads))


def lost_ranges(before: Owned | OwnedTablets | None, after: Owned | OwnedTablets) -> list[Range]:
    """Return the ranges with writes that the node took before and no longer takes.

    Args:
        before: The earlier ranges, or None for all ranges of the ring.
    """
    if before is after:
        return []
    if isinstance(before, OwnedTablets) and isinstance(after, OwnedTablets):
        ends = after.tablets.ends
        if before.tablets.ends == ends:
            changed = changed_tablets(before.tablets, after.tablets)
            gone = sorted(index for index in changed if before.has(index) and not after.has(index))
            return [(ends[index - 1], ends[index]) for index in gone]
    elif isinstance(before, Owned) and isinstance(after, Owned):
        taken = [(before.ends[at - 1], before.ends[at]) for at, did in enumerate(before.writes) if did]
        return [one for start, end in taken for one in _cut(start, end, after.ends) if not after.accepts_writes(one[1])]
    # Ownership is constant between neighbouring ends of either kind, so each end represents the range before it.
    every = tuple(sorted({*(() if before is None else _ends(before)), *_ends(after)})) or (TOKEN_MAX,)
    return [
        one
        for one in ranges_between(every)
        if (before is None or before.accepts_writes(one[1])) and not after.accepts_writes(one[1])
    ]


def _ends(owned: Owned | OwnedTablets) -> tuple[Token, ...]:
    return owned.tablets.ends if isinstance(owned, OwnedTablets) else owned.ends


def _cut(start: Token, end: Token, ends: tuple[Token, ...]) -> list[Range]:
    """Split the range ``(start, end]`` at each of ``ends`` inside it."""
    above, below = bisect_right(ends, start), bisect_left(ends, end)
    inside = ends[above:below] if start < end else (*ends[above:], *ends[:below])
    return list(zip((start, *inside), (*inside, end), strict=True))


def _is_in(group: tuple[Replica, ...], node: str) -> bool:
    for replica in group:  # noqa: SIM110 (a third of the time of a generator)
        if replica.node == node:
            return True
    return False
