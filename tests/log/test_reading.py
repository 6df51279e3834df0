"""Reading to the end: all that is there, past gaps; nobody waits for ever for a broker that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.log.errors import LogUnavailable, ReplicaHalted
from ringlog.log.memory import MemoryLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.aio import AsyncReplica
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import EntryChain
from tests.log.faulty import FaultyLog


class Silent(MemoryLog):
    """Has an end, but gives no records after the first two."""

    def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
        return super().read(position, timeout_s, 2) if position == 0 else ([], position)


def filled(log: MemoryLog) -> MemoryLog:
    log.append([b"0", b"1", b"2"])
    log.gap()
    return log


def test_all_that_is_there() -> None:
    log = filled(MemoryLog())
    tail = log.tail(1)
    assert [record.data for record in read_to_end(log, tail)] == [b"1", b"2"]
    assert tail.position == 4
    assert list(read_to_end(log, tail)) == []


def test_silence_is_an_error() -> None:
    log = filled(Silent())
    found = read_to_end(log, log.tail(0), silence_s=0.05)
    assert [next(found).data, next(found).data] == [b"0", b"1"]
    with pytest.raises(LogUnavailable, match="at offset 2 of 4"):
        next(found)


def test_a_look_may_end_it() -> None:
    log = filled(Silent())
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        list(read_to_end(log, log.tail(0), look=look))


# A replica on an event loop: waits end as soon as the state has moved, and when it never will.


def test_waiting_for_a_newer_epoch(log: FaultyLog, replica: LogReplica, chain_of: Callable[..., EntryChain]) -> None:
    async def run() -> None:
        with closing(AsyncReplica(replica)) as waiting:
            assert (await waiting.newer_than(0)).epoch == 1
            newer = asyncio.create_task(waiting.newer_than(1))
            await asyncio.to_thread(log.append, [chain_of(replica.state, Noop()).entries[0].data])
            assert (await asyncio.wait_for(newer, 60)).epoch == 2
            assert (await waiting.read_barrier()).epoch == 2
            assert await waiting.wait_for(lambda state: state.name, 60, "a name") == "tests"

    asyncio.run(run())


def test_a_closed_loop_is_harmless(log: FaultyLog, replica: LogReplica, chain_of: Callable[..., EntryChain]) -> None:
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

        replica.subscribe(fail, replica.halt_on_defect)
        newer = asyncio.create_task(waiting.newer_than(1))
        await asyncio.to_thread(log.append, [b"anything"])
        with pytest.raises(ReplicaHalted, match="broken"):
            await asyncio.wait_for(newer, 60)

    asyncio.run(run())
