"""In a stream of epochs that change nothing a node's registers adopt now and then; what counts they adopt at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.client.direct import DirectAuthor
from ringlog.client.founding import found
from ringlog.kernel.commands.cluster import Noop
from ringlog.log.memory import MemoryLog
from ringlog.log.pace import LOOKS, Pace
from ringlog.log.replica import LogReplica
from ringlog.node import data_side
from ringlog.node.data_side import DataSide
from ringlog.node.disk_rows import ROWS, DiskRows
from ringlog.node.holder import Holder
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.runtime.clock import ManualClock
from tests.kernel.entries import node as register
from tests.node.data_world import until

HOUR = 3_600_000_000


class Watched(threading.Event):
    """An event that says whether somebody waits for it."""

    is_awaited = False

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited = True
        try:
            return super().wait(timeout)
        finally:
            self.is_awaited = False


class Stream:
    """A node's registers on a log in memory, and who writes to it. They rest for an hour, where they do."""

    def __init__(self, data: DataSide, replica: LogReplica, author: DirectAuthor) -> None:
        self.data, self.replica, self.author = data, replica, author
        data._goes_on = self.rest = Watched()

    @property
    def adopted(self) -> int:
        return self.data.status().epoch

    def goes_on(self) -> None:
        """Entries that change nothing, one after the other, until there is nothing to spare any more."""
        for _ in range(10 * LOOKS):
            self.author.submit(Noop())
            until(lambda: self.adopted == self.replica.state.epoch or self.rest.is_awaited, "an epoch to be adopted")
            if self.adopted < self.replica.state.epoch:
                return
        raise AssertionError("it never rests")


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setattr(data_side, "ADOPT_PAUSE", HOUR)
    log = MemoryLog()
    replica = LogReplica(log)
    replica.pace = Pace(is_at_ease=True)
    options = NodeOptions("n1", "127.0.0.1", 0, "dc1", "r1", 1, tmp_path / "n1")
    folder = NodeFolder(options)
    rows = DiskRows(options.folder / ROWS, folder.node)
    data = DataSide(
        folder, options, Holder(folder.node, rows), ManualClock(1), replica, lambda: None, threading.Event()
    )
    with replica:
        found(log, replica, "c")
        author = DirectAuthor(log, replica, "tester")
        author.submit(register(1, id=folder.node, name="n1"))
        watched = Stream(data, replica, author)
        data.start(threading.Event())
        yield watched
        data.stop()
    rows.close()
    folder.socket.close()
    folder.close()


def test_an_epoch_that_changes_something_is_adopted_at_once(stream: Stream) -> None:
    stream.goes_on()
    stream.author.submit(register(2))
    until(lambda: stream.adopted == stream.replica.state.epoch, "the epoch with the second node")


def test_a_request_that_names_a_later_epoch_does_not_wait(stream: Stream) -> None:
    stream.goes_on()
    with stream.data._hurry():
        until(lambda: stream.adopted == stream.replica.state.epoch, "the epoch that the request names")
        stream.author.submit(Noop())
        until(lambda: stream.adopted == stream.replica.state.epoch, "the next one, while it waits")
