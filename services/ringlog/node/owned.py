"""The part of the ring that one node serves under one replication setting: answered per token by bisection."""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.state import Placement, RangeGroup, Replica
from ringlog.kernel.values import Token


@dataclass(frozen=True, slots=True)
class Owned:
    """For each range of the ring, by its end: does the node take writes of it, does it answer reads of it."""

    ends: tuple[Token, ...] = ()
    writes: tuple[bool, ...] = ()
    reads: tuple[bool, ...] = ()

    def takes(self, token: Token) -> bool:
        """True if the node is a write replica of ``token``."""
        return bool(self.ends) and self.writes[index_at(self.ends, token)]

    def answers(self, token: Token) -> bool:
        """True if the node is a read replica of ``token``."""
        return bool(self.ends) and self.reads[index_at(self.ends, token)]

    def some(self) -> bool:
        """True if the node replicates anything."""
        return any(self.writes) or any(self.reads)


NOTHING = Owned()

Served = tuple[Placement, Owned]
"""A placement, and what a node serves under it."""


def owned_by(placement: Placement | None, node: str, before: Served | None = None) -> Owned:
    """What ``node`` serves under ``placement``. ``before``: an earlier one and what it served there; of groups that it
    shares with this one nothing is worked out again.
    """
    if placement is None:
        return NOTHING
    if before is not None and before[0] is placement:
        return before[1]
    if before is None or before[0].ends != placement.ends:
        roles = [_roles(group, node) for group in placement.ranges]
        return Owned(placement.ends, tuple(takes for takes, _ in roles), tuple(answers for _, answers in roles))
    earlier, owned = before
    pairs = enumerate(zip(earlier.ranges, placement.ranges, strict=True))
    changed = [(at, group) for at, (was, group) in pairs if group is not was]
    if not changed:
        return owned
    writes, reads = list(owned.writes), list(owned.reads)
    for at, group in changed:
        writes[at], reads[at] = _roles(group, node)
    return Owned(placement.ends, tuple(writes), tuple(reads))


def loses(before: Owned, after: Owned) -> bool:
    """True if there are tokens whose writes the node took before, and does not take after."""
    if before is after or not any(before.writes):
        return False
    if not after.ends:
        return True
    if before.ends == after.ends:
        return any(took and not takes for took, takes in zip(before.writes, after.writes, strict=True))
    # Between two ends of either nothing changes: each end stands for what lies before it.
    return any(before.takes(end) and not after.takes(end) for end in sorted({*before.ends, *after.ends}))


def _roles(group: RangeGroup, node: str) -> tuple[bool, bool]:
    """Does the node take writes of the range, does it answer reads of it."""
    return _is_in(group.write, node), _is_in(group.read, node)


def _is_in(group: tuple[Replica, ...], node: str) -> bool:
    return any(replica.node == node for replica in group)
