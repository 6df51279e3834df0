"""The cache in a real Redis keeps the promises of a cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from tests.cache.conformance import CacheConformance

from ringlog.cache.port import CacheStore, CacheUnavailable
from ringlog.cache.reader import CachedReader, TryAgain
from ringlog.cache.redis_cache import RedisCache
from ringlog.stack import StackInfo

pytestmark = pytest.mark.system


class TestRedisCache(CacheConformance):
    """The suite on the real adapter."""

    @pytest.fixture
    def cache(self, stack: StackInfo, cluster_name: str) -> Iterator[RedisCache]:
        cache = RedisCache(stack.redis_url, cluster_name)
        self._keys = (stack.redis_url, f"{{{cluster_name}}}:*")
        yield cache
        cache.close()

    def clear(self, cache: CacheStore) -> None:
        url, pattern = self._keys
        with redis.Redis.from_url(url) as connection:
            for key in connection.scan_iter(pattern):
                connection.delete(key)


def test_a_redis_that_is_not_there_is_said_to_be_unavailable() -> None:
    cache = RedisCache("redis://127.0.0.1:1/0", "nobody", timeout_s=0.5)
    with pytest.raises(CacheUnavailable):
        cache.read()
    with pytest.raises(TryAgain) as unavailable:
        CachedReader(cache, lambda: 0).read()
    assert unavailable.value.reason == "unavailable"
