"""The cache in memory keeps the promises of a cache."""

from __future__ import annotations

import pytest

from ringlog.cache.memory import MemoryCache
from ringlog.cache.port import CacheStore

from .conformance import CacheConformance


class TestMemoryCache(CacheConformance):
    """The suite on the adapter in memory."""

    @pytest.fixture
    def cache(self) -> MemoryCache:
        return MemoryCache()

    def clear(self, cache: CacheStore) -> None:
        assert isinstance(cache, MemoryCache)
        cache.clear()
