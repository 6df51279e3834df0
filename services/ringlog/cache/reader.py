"""Reads of the cached state: one consistent epoch and its age, or the error ``CacheNotReady``.

A cache may be empty after FLUSHALL, or contain an older epoch for a moment after a restart.

Invariants: a reader never returns a lower epoch than before, nor data of another cluster with the same name. It returns
an epoch only if it can read all of it.

A reader stores the last epoch that it has read. While the cache contains the same epoch, a read only fetches its
confirmation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ringlog.cache.port import TIMEOUT_S, CacheStore, CacheUnavailable, Confirmation
from ringlog.cache.projection import Stamp, join_parts
from ringlog.errors import RinglogError
from ringlog.extras import explained
from ringlog.kernel.values import Micros, Value, replace

Records = dict[str, Any]
"""Record key to decoded JSON."""


class CacheNotReady(RinglogError):
    """The cache cannot answer now. Read again later, or read the log.

    ``reason`` is unavailable, empty, older or another_cluster.
    """

    code = "try_again"
    retriable = True

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"try again: {detail}")
        self.reason = reason
        self.detail = detail


class CachedView(Value):
    """The state at ``epoch``. ``age_s`` seconds ago a cache writer knew that it was the latest.

    ``parts`` maps the name of each section to its items by key; each section is also an attribute. ``placements`` are
    lists of ranges by replication key. ``settings`` contains only values that differ from the defaults.
    ``schema_version`` is under ``version``, and ``settled`` under ``verdicts`` if there is a validation watermark.
    """

    cluster_id: str
    epoch: int
    state_id: str
    digest: str
    age_s: float
    parts: Mapping[str, Records]

    def __getattr__(self, name: str) -> Records:
        found: Mapping[str, Records] = object.__getattribute__(self, "parts")
        if name not in found:
            raise AttributeError(f"the cache has no section {name}")
        return found[name]


class CachedReader:
    """A reader of ``store``. ``now_us`` is its wall clock, used only for the age."""

    def __init__(self, store: CacheStore, now_us: Callable[[], Micros]) -> None:
        self._store = store
        self._now_us = now_us
        self._last: CachedView | None = None

    @classmethod
    def connect(cls, url: str, cluster: str, timeout_s: float = TIMEOUT_S) -> CachedReader:
        """Return a reader of the cluster's cache in the Redis at ``url``. ``timeout_s``: see ``RedisCache``."""
        # A reader of another store works without the package redis.
        with explained():
            from ringlog.cache.redis_cache import RedisCache

        return cls(RedisCache(url, cluster, timeout_s), lambda: time.time_ns() // 1_000)

    def read(self) -> CachedView:
        """Return an epoch that is not lower than any epoch returned before. Raises CacheNotReady.

        Views of the same epoch share their ``parts``, so do not modify them.
        """
        last = self._last
        try:
            confirmed = self._store.confirmed() if last is not None else None
            if last is not None and confirmed is not None and _stamp_of(last) == confirmed[0]:
                return replace(last, age_s=self._age_s(confirmed[1]))
            stored = self._store.read()
        except CacheUnavailable as error:
            raise CacheNotReady("unavailable", str(error)) from error
        if stored is None:
            raise CacheNotReady("empty", "the cache is empty; start the cache writer")
        stamp = stored.stamp
        if last is not None and last.cluster_id != stamp.cluster_id:
            what = f"the cache contains cluster {stamp.cluster_id}, but this reader has read cluster {last.cluster_id}"
            raise CacheNotReady("another_cluster", f"{what}; if the earlier cluster was deleted, create a new reader")
        if last is not None and stamp.epoch < last.epoch:
            raise CacheNotReady(
                "older", f"the cache is at epoch {stamp.epoch}, but this reader has read epoch {last.epoch}"
            )
        try:
            parts = join_parts(
                {
                    part: {key: json.loads(text) for key, text in sorted(table.items())}
                    for part, table in stored.parts.items()
                }
            )
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise CacheNotReady(
                "unavailable", f"a program other than the cache writer has written to the cache: {error}"
            ) from error
        digest, age_s = stored.confirmation.digest, self._age_s(stored.confirmation)
        self._last = CachedView(stamp.cluster_id, stamp.epoch, stamp.state_id, digest, age_s, parts)
        return self._last

    def _age_s(self, confirmation: Confirmation) -> float:
        return max(0, self._now_us() - confirmation.confirmed_at) / 1_000_000


def _stamp_of(view: CachedView) -> Stamp:
    return Stamp(view.cluster_id, view.epoch, view.state_id)
