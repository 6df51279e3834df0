"""A replica on an event loop: waits end as soon as the state has moved, and when it never will."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ringlog.kernel.commands.cluster import Noop
from ringlog.log.aio import AsyncReplica
from ringlog.log.errors import ReplicaHalted
from ringlog.log.replica import LogReplica
from ringlog.protocol.fates import EntryChain
from tests.log.faulty import FaultyLog


def test_waiting_for_a_newer_epoch(log: FaultyLog, replica: LogReplica, chain_of: Callable[..., EntryChain]) -> None:
    async def run() -> None:
        waiting = AsyncReplica(replica)
        try:
            assert (await waiting.newer_than(0)).epoch == 1
            newer = asyncio.create_task(waiting.newer_than(1))
            await asyncio.to_thread(log.append, [chain_of(replica.state, Noop()).entries[0].data])
            assert (await asyncio.wait_for(newer, 60)).epoch == 2
            assert (await waiting.read_barrier()).epoch == 2
            assert await waiting.wait_for(lambda state: state.name, 60, "a name") == "tests"
        finally:
            waiting.close()

    asyncio.run(run())


def test_a_closed_loop_does_not_disturb_the_replica(
    log: FaultyLog, replica: LogReplica, chain_of: Callable[..., EntryChain]
) -> None:
    async def forget() -> None:
        AsyncReplica(replica)

    asyncio.run(forget())
    log.append([chain_of(replica.state, Noop()).entries[0].data])
    assert replica.read_barrier().epoch == 2
    assert replica.halted is None


def test_a_halt_ends_the_wait(log: FaultyLog, replica: LogReplica) -> None:
    async def run() -> None:
        waiting = AsyncReplica(replica)

        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        replica.subscribe(fail)
        newer = asyncio.create_task(waiting.newer_than(1))
        await asyncio.to_thread(log.append, [b"anything"])
        with pytest.raises(ReplicaHalted, match="broken"):
            await asyncio.wait_for(newer, 60)

    asyncio.run(run())
