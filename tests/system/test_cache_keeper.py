"""The cache keeper with a real Redis that is emptied, killed and started again."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator

import pytest
import redis

from ringlog.cache.reader import CachedReader, CachedView, TryAgain
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.log.kafka.topics import METADATA
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import Stack, StackInfo

from .agents_world import AgentsWorld, until

pytestmark = pytest.mark.system
NEWER_S = 0.1
"""How much later a second confirmation is at the least, beyond what reading the clock twice may differ."""


@pytest.fixture(scope="module")
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsWorld]:
    """One cluster with a keeper for all tests of this file."""
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
    except TryAgain:
        return None


def change(world: AgentsWorld) -> int:
    """One more epoch."""
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


def test_an_epoch_that_the_log_never_had_is_replaced(world: AgentsWorld, reader: CachedReader) -> None:
    """As of a log that was made anew from a shorter copy, or by who writes into Redis."""
    seen = await_epoch(reader, change(world)).epoch
    with redis.Redis.from_url(world.stack.redis_url) as connection:
        connection.hset(f"{{{world.cluster}}}:meta", mapping={"epoch": str(seen + 1_000), "state_id": "never"})

    def right_again() -> bool:
        view = read(CachedReader.connect(world.stack.redis_url, world.cluster))
        return view is not None and view.epoch == seen

    until(right_again, "the epoch that the log has")
    assert reader.read().epoch == seen
    assert await_epoch(reader, change(world)).epoch == seen + 1


def test_what_the_keeper_has_done_is_acknowledged_although_faust_rests(world: AgentsWorld) -> None:
    """The topic of its role is the log, which its replica reads."""
    for _ in range(2):
        for _ in range(30):
            change(world)
        world.await_acknowledged("keeper", METADATA)


def test_a_killed_redis_stops_nothing_else_and_is_filled_again(world: AgentsWorld, reader: CachedReader) -> None:
    await_epoch(reader, change(world))
    pid = Stack(world.stack.data_dir).status().redis.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: read(reader) is None, "the cache to be gone")
    epoch = change(world)
    with pytest.raises(TryAgain):
        reader.read()
    assert Stack(world.stack.data_dir).up("quick").redis_url == world.stack.redis_url
    assert await_epoch(reader, epoch).epoch == epoch
