"""The part of the ring that one node serves under one replication setting: answered per token by bisection."""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.ownership.placements import nodes_of
from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.state import Placement
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


def owned_by(placement: Placement | None, node: str) -> Owned:
    """What ``node`` serves under ``placement``."""
    if placement is None:
        return NOTHING
    return Owned(
        ends=placement.ends,
        writes=tuple(node in nodes_of(group.write) for group in placement.ranges),
        reads=tuple(node in nodes_of(group.read) for group in placement.ranges),
    )
