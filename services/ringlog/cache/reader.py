"""Reads of the cached state: one consistent epoch with its age, or the advice to try again.

A reader remembers the highest epoch it has returned and never returns a lower one (after FLUSHALL or a restart a cache
may hold nothing, or for a moment less than before), nor anything of another cluster of the same name. It never guesses:
what it cannot read whole it does not return. It keeps the last epoch that it has read: as long as that is the stored
one a read asks who confirmed it when, and fetches nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringlog.cache.port import CacheStore, CacheUnavailable, Confirmation
from ringlog.cache.projection import Stamp, whole
from ringlog.cache.redis_cache import TIMEOUT_S, RedisCache
from ringlog.kernel.values import Micros

Records = dict[str, Any]
"""Key to the decoded JSON of a record."""


class TryAgain(Exception):
    """The cache cannot answer now; read again in a moment, or read the log.

    ``reason`` is unavailable, empty, older or another_cluster.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"try again: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class CachedView:
    """The state at ``epoch``, of which a keeper knew ``age_s`` seconds ago that it was the latest.

    ``parts``: by its name each part of the state that caches show, item by key; each is an attribute as well.
    ``placements`` are lists of ranges by replication key, ``settings`` only those that differ from the defaults,
    ``schema_version`` is under ``version``, ``settled`` under ``verdicts`` once there is a settled time.
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
            raise AttributeError(f"caches show no part {name}")
        return found[name]


class CachedReader:
    """Reads from ``store``; ``now_us`` is the reader's wall clock, used for the age alone."""

    def __init__(self, store: CacheStore, now_us: Callable[[], Micros]) -> None:
        self._store = store
        self._now_us = now_us
        self._last: CachedView | None = None

    @classmethod
    def connect(cls, url: str, cluster: str, timeout_s: float = TIMEOUT_S) -> CachedReader:
        """A reader of the cluster's cache in the Redis at ``url``; ``timeout_s`` as in ``RedisCache``."""
        return cls(RedisCache(url, cluster, timeout_s), lambda: time.time_ns() // 1_000)

    def read(self) -> CachedView:
        """One epoch, at least as high as any returned before; its parts are those of the last view of the same epoch,
        so do not change them. Raises TryAgain.
        """
        last = self._last
        try:
            confirmed = self._store.confirmed() if last is not None else None
            if last is not None and confirmed is not None and _stamp_of(last) == confirmed[0]:
                return replace(last, age_s=self._age_s(confirmed[1]))
            stored = self._store.read()
        except CacheUnavailable as error:
            raise TryAgain("unavailable", str(error)) from error
        if stored is None:
            raise TryAgain("empty", "the cache holds nothing yet")
        stamp = stored.stamp
        if last is not None and last.cluster_id != stamp.cluster_id:
            what = f"the cache is of cluster {stamp.cluster_id}, this reader has read {last.cluster_id}"
            raise TryAgain("another_cluster", f"{what}; if that one is no more, make a new reader")
        if last is not None and stamp.epoch < last.epoch:
            raise TryAgain("older", f"the cache is at epoch {stamp.epoch}, this reader has seen {last.epoch}")
        try:
            parts = whole(
                {
                    part: {key: json.loads(text) for key, text in sorted(table.items())}
                    for part, table in stored.parts.items()
                }
            )
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise TryAgain("unavailable", f"the cache holds what no keeper writes: {error}") from error
        digest, age_s = stored.confirmation.digest, self._age_s(stored.confirmation)
        self._last = CachedView(stamp.cluster_id, stamp.epoch, stamp.state_id, digest, age_s, parts)
        return self._last

    def _age_s(self, confirmation: Confirmation) -> float:
        return max(0, self._now_us() - confirmation.confirmed_at) / 1_000_000


def _stamp_of(view: CachedView) -> Stamp:
    return Stamp(view.cluster_id, view.epoch, view.state_id)
