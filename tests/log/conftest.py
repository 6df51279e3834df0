"""A new cluster on a log in memory, and a helper that writes any entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import EntryChain
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import EncodedEntry
from tests.log.exactly_once import founded
from tests.log.faulty_log import FaultyLog

ChainMaker = Callable[..., EntryChain]


@pytest.fixture
def author() -> Author:
    """Return an author with repeatable ids."""
    return Author("tester", ManualClock(), SeededDraw(b"author"))


@pytest.fixture
def log() -> FaultyLog:
    """Return a log in memory with scripted faults."""
    return FaultyLog(MemoryLog())


@pytest.fixture
def replica(log: FaultyLog) -> Iterator[LogReplica]:
    """Return a replica of the new cluster."""
    founded(log, "tests", draw=SeededDraw(b"founder"))
    log.appends.clear()
    with LogReplica(log) as replica:
        replica.read_barrier()
        yield replica


@pytest.fixture
def chain_of(author: Author) -> ChainMaker:
    """Return a function that makes a chain of commands (default: three Noops) on a state."""

    def make(state: ClusterState, *commands: Command) -> EntryChain:
        entries: list[EncodedEntry] = []
        base = state.epoch
        for command in commands or (Noop(), Noop(), Noop()):
            encoded = author.entry(state, command, since_epoch=base)
            state = fold(state, encoded.entry).state
            entries.append(encoded)
        return EntryChain(base, tuple(entries))

    return make
