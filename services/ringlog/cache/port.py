"""The port of a cache: it stores one epoch at a time and replaces it atomically.

The adapters ``redis_cache`` and ``memory`` pass the same suite.

Invariants:

- A write applies completely or not at all. A reader sees the projection of exactly one epoch.

- A delta applies only to its base state. A delta whose result is stored already only renews the confirmation.

- A full projection replaces the same epoch, an older one, an empty cache, or the projection of another cluster. It does
  not replace a later epoch of the same cluster, unless the writer knows that the log lacks exactly that epoch
  (``FullProjection.replaces``). It does not replace another cluster's projection that was confirmed within
  ``FOREIGN_ACTIVE_US``: two clusters with the same name use one Redis.

- A projection that has lost a part is not read and not extended. A delta then reports that its base is missing.

- At ``confirmed_at``, a cache writer knew that no later epoch existed. The time never decreases within one epoch,
  except if it is ``CLOCK_SKEW_MAX_US`` ahead of the clock of the present writer. Then a clock was wrong, and an
  unconfirmed projection would seem recent.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from ringlog.cache.projection import CacheDelta, Fields, FullProjection, Stamp
from ringlog.errors import RinglogError
from ringlog.kernel.values import Micros, Value

TIMEOUT_S = 2.0
"""The default limit of one call to the store."""
FOREIGN_ACTIVE_US: Micros = 10_000_000
"""The stored cluster counts as active if the confirmations of two clusters are less than this apart.

Cache writers confirm about once per second, by their own clocks.
"""

CLOCK_SKEW_MAX_US: Micros = 10_000_000
"""Upper bound of the difference between the clocks of cache writers."""


class WriteOutcome(Enum):
    """The result of a write.

    ``BASE_MISSING``: write the full projection. ``LATER_STORED``: the cache contains a later epoch. ``FOREIGN``: the
    cache writer of another cluster with this name uses the cache.
    """

    APPLIED = "applied"
    BASE_MISSING = "base_missing"
    LATER_STORED = "later_stored"
    FOREIGN = "foreign"


class CacheUnavailable(RinglogError):
    """The cache does not respond, or returns invalid data.

    A write may have been applied, and a retry is safe.
    """

    code = "cache_unavailable"
    retriable = True


class Confirmation(Value):
    """Metadata of each write: the state's digest, the next log offset, and the wall-clock time."""

    digest: str
    offset: int
    confirmed_at: Micros


class StoredEpoch(Value):
    """The content of a cache: one epoch."""

    stamp: Stamp
    confirmation: Confirmation
    parts: dict[str, Fields]


class CacheStore(Protocol):
    """The projection of one cluster. Every method raises CacheUnavailable if the store does not respond."""

    def apply(self, write: CacheDelta | FullProjection, confirmation: Confirmation) -> WriteOutcome:
        """Write a delta or a full projection, as the invariants above allow."""
        ...

    def read(self) -> StoredEpoch | None:
        """Return the stored epoch, or None if the cache is empty."""
        ...

    def confirmed(self) -> tuple[Stamp, Confirmation] | None:
        """Return the stamp and last confirmation of the stored epoch, or None if the cache is empty.

        The cost does not depend on the size of the state.
        """
        ...
