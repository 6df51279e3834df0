"""The cache in a real Redis passes the conformance suite of all caches."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from tests.cache.conformance import CacheConformance
from tests.cache.states import another_cluster, history

from ringlog.cache import redis_cache
from ringlog.cache.port import FOREIGN_ACTIVE_US, CacheStore, CacheUnavailable, Confirmation, WriteOutcome
from ringlog.cache.projection import Stamp, delta, full_projection, project, stamp_of
from ringlog.cache.reader import CachedReader, CacheNotReady
from ringlog.cache.redis_cache import RedisCache
from ringlog.cli.completion import _ask
from ringlog.cli.reference_pages import META_FIELDS
from ringlog.kernel.values import replace
from ringlog.runtime.context import ClusterContext
from ringlog.stack import StackInfo
from ringlog.stack.processes import wait_until
from ringlog.stack.redis_server import find_redis

pytestmark = pytest.mark.system

AT_ONCE = Confirmation("digest", 7, 1)
READS = 400
READS_MAX = 1_000 * READS
DEADLINE_S = 60.0


class TestRedisCache(CacheConformance):
    """The suite on the real adapter."""

    @pytest.fixture(params=[redis_cache.COMMAND_ROWS_MAX, 3])
    def cache(
        self, stack: StackInfo, cluster_name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[RedisCache]:
        """Return the cache; it writes all rows at once, or in pieces of three rows."""
        monkeypatch.setattr(redis_cache, "COMMAND_ROWS_MAX", request.param)
        cache = RedisCache(stack.redis_url, cluster_name)
        self._keys = (stack.redis_url, f"{{{cluster_name}}}:*")
        yield cache
        cache.close()
        with redis.Redis.from_url(stack.redis_url) as connection:
            assert list(connection.scan_iter(f"{{{cluster_name}}}:staged:*")) == []
            for key in connection.scan_iter(f"{{{cluster_name}}}:*"):
                assert connection.ttl(key) == -1, "stored keys do not expire"

    def clear(self, cache: CacheStore) -> None:
        url, pattern = self._keys
        with redis.Redis.from_url(url) as connection:
            for key in connection.scan_iter(pattern):
                connection.delete(key)

    @pytest.mark.parametrize(
        "damage",
        ["lost", "lost_field", "junk", "junk_meta", "junk_epoch", "no_text", "no_number", "no_state", "empty_meta"],
    )
    def test_damage_is_not_read(self, stack: StackInfo, cluster_name: str, cache: RedisCache, damage: str) -> None:
        before, after = history()[-2:]
        reader = CachedReader(cache, lambda: 0)
        cache.apply(full_projection(before), AT_ONCE)
        part, meta = f"{{{cluster_name}}}:nodes", f"{{{cluster_name}}}:meta"
        with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
            match damage:
                case "lost":
                    assert connection.delete(part) == 1
                case "lost_field":
                    connection.hdel(part, next(iter(connection.hgetall(part))))
                case "junk":
                    connection.delete(part)
                    connection.set(part, "junk")
                case "junk_meta":
                    connection.delete(meta)
                    connection.set(meta, "junk")
                case "junk_epoch":
                    connection.hset(meta, "epoch", "junk")
                case "no_number":
                    connection.hset(meta, "epoch", "1e999")
                case "no_state":
                    connection.hset(meta, "epoch", "999999999")
                    connection.hdel(meta, "state_id")
                case "no_text":
                    connection.hset(meta, "epoch", b"\xff")
                case _:
                    connection.delete(meta)
        with pytest.raises(CacheNotReady):
            reader.read()
        assert cache.apply(delta(before, before), AT_ONCE) is WriteOutcome.BASE_MISSING
        assert cache.apply(delta(before, after), AT_ONCE) is WriteOutcome.BASE_MISSING
        assert cache.apply(full_projection(before), AT_ONCE) is WriteOutcome.APPLIED
        assert sorted(reader.read().nodes) == sorted(before.nodes)
        assert cache.apply(delta(before, after), AT_ONCE) is WriteOutcome.APPLIED
        stored = cache.read()
        assert stored is not None
        assert stored.parts == project(after)

    def test_only_the_named_cluster_is_deleted_or_completed(
        self, stack: StackInfo, cluster_name: str, cache: RedisCache
    ) -> None:
        state = history()[-1]
        cache.apply(full_projection(state), AT_ONCE)
        here = ClusterContext("", cluster_name, stack.redis_url, cluster_id=state.cluster_id)
        for kind, names in (("node", {"n1", "n2"}), ("operation", {*state.operations})):
            assert {*_ask(stack.redis_url, here, kind)} == names
        assert _ask(stack.redis_url, replace(here, cluster_id="another"), "node") == []
        assert (cache.delete("another"), cache.read() is None) == (0, False)
        assert (cache.delete(state.cluster_id) > 0, cache.read()) == (True, None)
        assert cache.delete(state.cluster_id) == 0

    def test_a_plain_client_reads_by_the_page_of_the_layout(
        self, stack: StackInfo, cluster_name: str, cache: RedisCache
    ) -> None:
        state = history()[-1]
        cache.apply(full_projection(state), AT_ONCE)
        with redis.Redis.from_url(stack.redis_url, decode_responses=True) as connection:
            meta = connection.hgetall(f"{{{cluster_name}}}:meta")
            nodes = connection.hgetall(f"{{{cluster_name}}}:nodes")
        assert meta.keys() == META_FIELDS.keys()
        assert {id: json.loads(text)["name"] for id, text in nodes.items()} == {
            node.id: node.name for node in state.nodes.values()
        }
        assert meta["counts"].split() == [str(len(fields)) for _, fields in sorted(project(state).items())]

    def test_a_redis_without_memory_changes_nothing(self, tmp_path: Path, cluster_name: str) -> None:
        """This test has its own Redis, because clients cannot configure that of the stack."""
        socket = tmp_path / "s"
        server = subprocess.Popen([find_redis(), "--port", "0", "--unixsocket", str(socket), "--save", ""])
        url = f"unix://{socket}"
        cache = RedisCache(url, cluster_name)
        try:
            assert wait_until(socket.exists, DEADLINE_S)
            self._check_without_memory(cache, url)
        finally:
            cache.close()
            server.terminate()
            server.wait(DEADLINE_S)

    def _check_without_memory(self, cache: RedisCache, url: str) -> None:
        states = history()
        with_keyspace = max(number for number, state in enumerate(states[:-1]) if len(state.keyspaces))
        before, after = states[with_keyspace : with_keyspace + 2]
        cache.apply(full_projection(before), AT_ONCE)
        with redis.Redis.from_url(url) as connection:
            connection.config_set("maxmemory", "1")
            try:
                with pytest.raises(CacheUnavailable):
                    cache.apply(delta(before, after), AT_ONCE)
            finally:
                connection.config_set("maxmemory", "0")
        stored = cache.read()
        assert stored is not None
        assert (stored.stamp, stored.parts) == (stamp_of(before), project(before))
        assert cache.apply(delta(before, after), AT_ONCE) is WriteOutcome.APPLIED

    def test_lost_pieces_are_never_activated(
        self, stack: StackInfo, cluster_name: str, cache: RedisCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, after = history()[0], history()[-1]
        cache.apply(full_projection(before), AT_ONCE)

        class Forgetful(RedisCache):
            """A Redis that evicts each new key immediately."""

            def _stage(self, staged: Sequence[str], piece: Sequence[tuple[int, str, str]]) -> None:
                super()._stage(staged, piece)
                with redis.Redis.from_url(stack.redis_url) as connection:
                    connection.delete(*staged)

        forgetful = Forgetful(stack.redis_url, cluster_name)
        monkeypatch.setattr(redis_cache, "COMMAND_ROWS_MAX", 1)
        for write in (full_projection(after), delta(before, after)):
            with pytest.raises(CacheUnavailable, match="Redis has lost"):
                forgetful.apply(write, AT_ONCE)
        forgetful.close()
        stored = cache.read()
        assert stored is not None
        assert (stored.stamp, stored.parts) == (stamp_of(before), project(before))

    def test_readers_race_switching_writers(self, stack: StackInfo, cluster_name: str, cache: RedisCache) -> None:
        states = history()
        whole = {stamp_of(state): project(state) for state in (*states, another_cluster())}
        cache.apply(full_projection(states[0]), Confirmation("digest", 7, 0))
        stop = threading.Event()

        # Each confirmation is so late that the previous one, also of another cluster, belongs to a dead cache writer.
        clock = itertools.count(FOREIGN_ACTIVE_US, FOREIGN_ACTIVE_US)
        writes = [
            full_projection(another_cluster()),
            full_projection(states[0]),
            *itertools.starmap(delta, itertools.pairwise(states)),
        ]

        def switch() -> None:
            writer = RedisCache(stack.redis_url, cluster_name, timeout_s=DEADLINE_S)
            while not stop.is_set():
                outcomes = [writer.apply(write, Confirmation("digest", 7, next(clock))) for write in writes]
                assert set(outcomes) == {WriteOutcome.APPLIED}
            writer.close()

        # A disk that is busy for two seconds must not fail this test.
        reader = RedisCache(stack.redis_url, cluster_name, timeout_s=DEADLINE_S)
        seen: set[Stamp] = set()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(switch)
            try:
                for number in itertools.count():
                    if number >= READS and len(seen) > 3:
                        break
                    if writing.done():
                        writing.result()
                    assert number < READS_MAX, "the writer continues"
                    stored = reader.read()
                    assert stored is not None
                    assert stored.parts == whole[stored.stamp]
                    seen.add(stored.stamp)
            finally:
                stop.set()
            writing.result()
        reader.close()


def test_a_missing_redis_is_reported_as_unavailable() -> None:
    cache = RedisCache("redis://127.0.0.1:1/0", "nobody", timeout_s=0.5)
    with pytest.raises(CacheUnavailable):
        cache.read()
    with pytest.raises(CacheNotReady) as unavailable:
        CachedReader(cache, lambda: 0).read()
    assert unavailable.value.reason == "unavailable"
