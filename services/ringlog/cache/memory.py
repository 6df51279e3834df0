"""The cache in memory, with the invariants of the port, for tests and models."""

from __future__ import annotations

import threading

from ringlog.cache.port import CLOCK_SKEW_MAX_US, FOREIGN_ACTIVE_US, Confirmation, StoredEpoch, WriteOutcome
from ringlog.cache.projection import PARTS, CacheDelta, Fields, FullProjection, Stamp


class MemoryCache:
    """A store that exists as long as its process. Safe from threads."""

    def __init__(self) -> None:
        self._stored: StoredEpoch | None = None
        self._lock = threading.Lock()

    def apply(self, write: CacheDelta | FullProjection, confirmation: Confirmation) -> WriteOutcome:
        """Write a delta or a full projection; see ``CacheStore``."""
        with self._lock:
            stored = self._stored
            same = stored is not None and stored.stamp.cluster_id == write.stamp.cluster_id
            replaces = write.replaces if isinstance(write, FullProjection) else None
            if stored is not None and same and stored.stamp.epoch > write.stamp.epoch and replaces != stored.stamp:
                return WriteOutcome.LATER_STORED
            if stored is not None and stored.stamp == write.stamp:
                before, now = stored.confirmation.confirmed_at, confirmation.confirmed_at
                latest = before if now < before < now + CLOCK_SKEW_MAX_US else now
                confirmation = Confirmation(confirmation.digest, confirmation.offset, latest)
                if isinstance(write, CacheDelta):
                    self._stored = StoredEpoch(write.stamp, confirmation, stored.parts)
                    return WriteOutcome.APPLIED
            if isinstance(write, FullProjection):
                if stored is not None and not same:
                    apart = confirmation.confirmed_at - stored.confirmation.confirmed_at
                    if abs(apart) < FOREIGN_ACTIVE_US:
                        return WriteOutcome.FOREIGN
                parts: dict[str, Fields] = {part: {} for part in PARTS}
            elif stored is None or stored.stamp != write.base:
                return WriteOutcome.BASE_MISSING
            else:
                parts = {part: dict(table) for part, table in stored.parts.items()}
                for part, key in write.remove:
                    parts[part].pop(key, None)
            for part, key, value in write.put:
                parts[part][key] = value
            self._stored = StoredEpoch(write.stamp, confirmation, parts)
            return WriteOutcome.APPLIED

    def read(self) -> StoredEpoch | None:
        """Return the stored epoch, or None if the cache is empty."""
        return self._stored

    def confirmed(self) -> tuple[Stamp, Confirmation] | None:
        """Return the stamp and last confirmation of the stored epoch, or None if the cache is empty."""
        stored = self._stored
        return None if stored is None else (stored.stamp, stored.confirmation)

    def clear(self) -> None:
        """Delete everything, as FLUSHALL does."""
        with self._lock:
            self._stored = None
