"""Reads of the cached state: one consistent epoch with its age, or the advice to try again.

A reader remembers the highest epoch it has returned and never returns a lower one (after FLUSHALL or a restart a cache
may hold nothing, or for a moment less than before). It never guesses: what it cannot read whole it does not return.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ringlog.cache.port import CacheStore, CacheUnavailable
from ringlog.cache.projection import WHOLE_PARTS, whole
from ringlog.cache.redis_cache import TIMEOUT_S, RedisCache
from ringlog.kernel.values import Micros

Records = dict[str, Any]
"""Key to the decoded JSON of a record."""


class TryAgain(Exception):
    """The cache cannot answer now; read again in a moment, or read the log.

    ``reason`` is unavailable, empty or older.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"try again: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class CachedView:
    """The state at ``epoch``, of which a keeper knew ``age_s`` seconds ago that it was the latest.

    ``nodes`` by node id, ``placements`` by replication key (lists of ranges), ``keyspaces``, ``tables`` and ``types``
    by name, ``schema_version`` under ``version``, ``generations`` by id, ``prepared`` (the next one, if there is one)
    by id, ``operations`` by id, ``settings`` by name (only those that differ from the defaults), ``writers`` by name,
    ``terms`` by role, ``past_ttls`` by the epoch until which they held, ``features`` that are enabled by name,
    ``settled`` under ``verdicts``, once there is a settled time, ``tablets`` by table (with their ``chunks`` and
    ``transitions``).
    """

    cluster_id: str
    epoch: int
    state_id: str
    digest: str
    age_s: float
    nodes: Records
    placements: Records
    keyspaces: Records
    tables: Records
    types: Records
    schema_version: Records
    generations: Records
    prepared: Records
    operations: Records
    settings: Records
    writers: Records
    terms: Records
    past_ttls: Records
    features: Records
    settled: Records
    tablets: Records


_STAMPED = {"cluster_id", "epoch", "state_id", "digest", "age_s"}
assert {one.name for one in fields(CachedView)} == WHOLE_PARTS | _STAMPED, "a view has every part of a projection"


class CachedReader:
    """Reads from ``store``; ``now_us`` is the reader's wall clock, used for the age alone."""

    def __init__(self, store: CacheStore, now_us: Callable[[], Micros]) -> None:
        self._store = store
        self._now_us = now_us
        self._cluster_id = ""
        self._seen = 0

    @classmethod
    def connect(cls, url: str, cluster: str, timeout_s: float = TIMEOUT_S) -> CachedReader:
        """A reader of the cluster's cache in the Redis at ``url``; ``timeout_s`` as in ``RedisCache``."""
        return cls(RedisCache(url, cluster, timeout_s), lambda: time.time_ns() // 1_000)

    def read(self) -> CachedView:
        """One epoch, at least as high as any returned before. Raises TryAgain."""
        try:
            stored = self._store.read()
        except CacheUnavailable as error:
            raise TryAgain("unavailable", str(error)) from error
        if stored is None:
            raise TryAgain("empty", "the cache holds nothing yet")
        stamp = stored.stamp
        if stamp.cluster_id == self._cluster_id and stamp.epoch < self._seen:
            raise TryAgain("older", f"the cache is at epoch {stamp.epoch}, this reader has seen {self._seen}")
        try:
            parts = whole(
                {
                    part: {key: json.loads(text) for key, text in sorted(table.items())}
                    for part, table in stored.parts.items()
                }
            )
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise TryAgain("unavailable", f"the cache holds what no keeper writes: {error}") from error
        self._cluster_id, self._seen = stamp.cluster_id, stamp.epoch
        age_us = max(0, self._now_us() - stored.confirmation.confirmed_at)
        return CachedView(
            stamp.cluster_id, stamp.epoch, stamp.state_id, stored.confirmation.digest, age_us / 1_000_000, **parts
        )
