"""The pace of a node's registers: they adopt relevant epochs at once and other epochs in batches."""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.client.creation.creation import found
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.settings import setting
from ringlog.kernel.values import Micros, replace
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.poll_policy import POLLS_MAX, PollPolicy
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.rows.disk_rows import ROWS, DiskRows
from ringlog.node.rows.replica import RowReplica
from ringlog.node.rows.watermark_requests import next_watermark_request
from ringlog.node.servers import data_service
from ringlog.node.servers.data_service import DataService
from ringlog.runtime.clock import ManualClock
from tests.kernel.entries import entry, founded, uuid
from tests.kernel.entries import node as register
from tests.node.data_world import until

HOUR = 3_600_000_000


class CountedWaits(threading.Event):
    """An event that records whether a thread waits for it."""

    is_awaited = False

    def wait(self, timeout: float | None = None) -> bool:
        self.is_awaited = True
        try:
            return super().wait(timeout)
        finally:
            self.is_awaited = False


class Stream:
    """A node's registers on a log in memory, and its writer. The registers pause for an hour between unimportant
    epochs.
    """

    def __init__(self, data: DataService, replica: LogReplica, author: DirectAuthor) -> None:
        self.data, self.replica, self.author = data, replica, author
        data._goes_on = self.rest = CountedWaits()

    @property
    def adopted(self) -> int:
        return self.data.status().epoch

    def goes_on(self) -> None:
        """Append entries that change nothing until the registers pause."""
        for _ in range(10 * POLLS_MAX):
            self.author.submit(Noop())
            until(lambda: self.adopted == self.replica.state.epoch or self.rest.is_awaited, "an epoch to be adopted")
            if self.adopted < self.replica.state.epoch:
                return
        raise AssertionError("it never rests")


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setattr(data_service, "ADOPT_PAUSE", HOUR)
    log = MemoryLog()
    replica = LogReplica(log)
    replica.poll_policy = PollPolicy(is_relaxed=True)
    options = NodeOptions("n1", "127.0.0.1", 0, "dc1", "r1", 1, tmp_path / "n1")
    folder = NodeFolder(options)
    rows = DiskRows(options.folder / ROWS, folder.node)
    data = DataService(
        folder, options, RowReplica(folder.node, rows), ManualClock(1), replica, lambda: None, threading.Event()
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
    with stream.data._poll_urgently():
        until(lambda: stream.adopted == stream.replica.state.epoch, "the epoch that the request names")
        stream.author.submit(Noop())
        until(lambda: stream.adopted == stream.replica.state.epoch, "the next epoch during the wait")


# The log cost of requests for a later validation watermark does not depend on the number of nodes.


START: Micros = 1_700_000_000_000_000
LEADS = 12
TURN: Micros = 100_000
"""Interval between two checks of a node."""
LATENCY: Micros = 30_000
"""Time from a request until all nodes know its entry."""


@pytest.mark.parametrize("nodes", [1, 3, 30, 100])
@pytest.mark.parametrize("seed", range(3))
def test_all_nodes_together_append_about_two_entries_per_lead(nodes: int, seed: int) -> None:
    draw, state = random.Random(seed), founded()
    lead = setting(state, "verdicts_lead_us")
    looks = [(START + draw.randrange(TURN), f"look {uuid(number, space=7)}") for number in range(nodes)]
    heapq.heapify(looks)
    coming: list[tuple[Micros, int]] = []
    asking: dict[str, Micros] = {}
    applied = asked = 0
    began: Micros | None = None
    while looks[0][0] < START + LEADS * lead:
        now, node = heapq.heappop(looks)
        while coming and coming[0][0] <= now:
            _, until = heapq.heappop(coming)
            folded = fold(state, entry(state, SettleVerdicts(until)))
            applied += folded.outcome.kind is OutcomeKind.APPLIED
            state = folded.state
        if began is not None and now > began + LATENCY + 1:
            assert state.settled.until > now, "no record that arrives in time has to wait"
        wanted = next_watermark_request(state, now, None, True, node)
        if wanted is not None and asking.get(node, 0) <= now:
            began, asked = began or now, asked + 1
            asking[node] = now + LATENCY
            heapq.heappush(coming, (now + LATENCY, wanted.until))
        heapq.heappush(looks, (now + TURN + draw.randrange(TURN // 4), node))
    assert LEADS <= applied <= 3 * LEADS
    assert asked <= 2 * (applied + nodes)


def test_a_record_requests_its_watermark_independent_of_the_clock() -> None:
    state = founded()
    far = START + 10 * setting(state, "verdicts_lead_us")
    assert next_watermark_request(state, START, far, False, "n") == SettleVerdicts(far + 1)
    later = replace(state, settled=replace(state.settled, until=far + 1))
    assert next_watermark_request(later, START, far, False, "n") is None
    assert next_watermark_request(state, START, None, False, "n") is None
