"""The cache as its users see it: one epoch at a time, switched at once, never backwards.

Two adapters keep the same promises (one conformance suite): ``redis_cache`` and ``memory``.

- A write applies whole or not at all; a reader sees the projection of exactly one epoch.
- A delta applies only on the very state it starts from. A delta to the stored state only confirms it.
- A full projection replaces the same, an older one, an absent one or another cluster's; a later one of the same cluster
  stays, unless it is the very one of which the writer knows that the log has it not (``Full.over``), and another
  cluster's while somebody confirms it (``FOREIGN_US``): two clusters of one name with one Redis.
- What has lost a part is neither read nor built upon: a delta finds its base missing.
- ``confirmed_at`` is when a keeper last knew that no later epoch existed; it never goes back within one epoch, unless
  it lies ``AHEAD_US`` ahead of who confirms: a clock was wrong, and what nobody confirms any more would look young.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ringlog.cache.projection import CacheDelta, Fields, Full, Stamp
from ringlog.kernel.values import Micros

FOREIGN_US: Micros = 10_000_000
"""Between confirmations of two clusters by their keepers' clocks: within it the one that is stored is alive. Keepers
confirm about once a second."""

AHEAD_US: Micros = 10_000_000
"""Keepers' clocks differ by less."""


class WriteOutcome(Enum):
    """What became of a write.

    ``BASE_MISSING``: send the full projection; ``LATER_STORED``: the cache is ahead of us; ``FOREIGN``: the keeper of
    another cluster of this name is at work there.
    """

    APPLIED = "applied"
    BASE_MISSING = "base_missing"
    LATER_STORED = "later_stored"
    FOREIGN = "foreign"


class CacheUnavailable(Exception):
    """The cache gives no answer, or none that can be believed.

    Whether a write happened is open, and writing it again is harmless.
    """


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What goes with each write: digest of the state, next offset of the log, and when (wall clock, microseconds)."""

    digest: str
    offset: int
    confirmed_at: Micros


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """The content of a cache: one epoch."""

    stamp: Stamp
    confirmation: Confirmation
    parts: dict[str, Fields]


class CacheStore(Protocol):
    """One cluster's projection. Every method raises CacheUnavailable when the store does not answer."""

    def apply(self, write: CacheDelta | Full, confirmation: Confirmation) -> WriteOutcome:
        """Write the difference or the whole, if the rules above allow it."""
        ...

    def read(self) -> StoredEpoch | None:
        """All of the one stored epoch; None if nothing is stored."""
        ...

    def confirmed(self) -> tuple[Stamp, Confirmation] | None:
        """Which state is stored, and how it was confirmed last, at a cost that does not grow; None if nothing is."""
        ...
