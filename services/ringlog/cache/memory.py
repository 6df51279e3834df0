"""The cache in memory: the same promises as Redis, for tests and models."""

from __future__ import annotations

import threading

from ringlog.cache.port import Confirmation, Stored, Written
from ringlog.cache.projection import PARTS, Delta, Fields, Full, Stamp


class MemoryCache:
    """A store that lives as long as its process. Safe from threads."""

    def __init__(self) -> None:
        self._stored: Stored | None = None
        self._lock = threading.Lock()

    def apply(self, write: Delta | Full, confirmation: Confirmation) -> Written:
        """Write the difference or the whole; see ``CacheStore``."""
        with self._lock:
            stored = self._stored
            same = stored is not None and stored.stamp.cluster_id == write.stamp.cluster_id
            if stored is not None and same and stored.stamp.epoch > write.stamp.epoch:
                return Written.LATER_STORED
            if stored is not None and stored.stamp == write.stamp:
                latest = max(stored.confirmation.confirmed_at, confirmation.confirmed_at)
                confirmation = Confirmation(confirmation.digest, confirmation.offset, latest)
                if isinstance(write, Delta):
                    self._stored = Stored(write.stamp, confirmation, stored.parts)
                    return Written.APPLIED
            if isinstance(write, Full):
                parts: dict[str, Fields] = {part: {} for part in PARTS}
            elif stored is None or stored.stamp != write.base:
                return Written.BASE_MISSING
            else:
                parts = {part: dict(table) for part, table in stored.parts.items()}
                for part, key in write.remove:
                    parts[part].pop(key, None)
            for part, key, value in write.put:
                parts[part][key] = value
            self._stored = Stored(write.stamp, confirmation, parts)
            return Written.APPLIED

    def read(self) -> Stored | None:
        """The stored epoch; None if nothing is stored."""
        return self._stored

    def stored_stamp(self) -> Stamp | None:
        """Which state is stored; None if none."""
        stored = self._stored
        return None if stored is None else stored.stamp

    def clear(self) -> None:
        """Forget everything, as FLUSHALL does."""
        with self._lock:
            self._stored = None
