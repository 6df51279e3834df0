"""The conformance suite of all logs: memory, Kafka, the delayable log around each, and the simulator's broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.sim.simulated_log import SimulatedLog
from tests.waiting import at_once

from ringlog.log.delays.control import MemoryDelays
from ringlog.log.delays.delayable import DelayableLog
from ringlog.log.delays.rules import HOLD, PLACES, Match, Rule
from ringlog.log.errors import LogTruncated
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, admin_client, create_topics
from ringlog.log.memory import MemoryLog
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.stack import StackInfo
from ringlog_sim.devices.broker import METADATA as SIMULATED_METADATA
from ringlog_sim.devices.broker import SimBroker
from ringlog_sim.devices.world import SimWorld

DEADLINE_S = 60.0
MakeLog = Callable[[], MetadataLog]


TOPICS = [
    "memory",
    "delayable memory",
    *(pytest.param(k, marks=pytest.mark.system) for k in ("kafka", "at ease kafka", "delayable kafka")),
]
KINDS = ["simulated", *TOPICS]


@pytest.fixture(params=KINDS)
def make_log(request: pytest.FixtureRequest) -> Iterator[MakeLog]:
    """Opens the same log repeatedly: a new connection each time, but the same object in memory."""
    opened: list[MetadataLog] = []
    memory = MemoryLog()
    broker, lock = SimBroker(SimWorld(1), {SIMULATED_METADATA: 1}), threading.Lock()
    kind = request.param.split()[-1]
    if kind == "kafka":
        info: StackInfo = request.getfixturevalue("stack")
        name = f"t{uuid.uuid4().hex[:10]}"
        create_topics(admin_client(info.bootstrap_servers), name, specs=[METADATA])
    # A rule that matches no record sends each record through the delaying code.
    control = MemoryDelays([Rule(where, HOLD, where, match=Match(kind="Noop")) for where in PLACES])

    def make() -> MetadataLog:
        log: MetadataLog = memory
        if kind == "kafka":
            log = KafkaLog(info.bootstrap_servers, name, is_relaxed=request.param.startswith("at ease"))
        if kind == "simulated":
            log = SimulatedLog(broker, f"h{len(opened)}", lock)
        opened.append(DelayableLog(log, control, "tester") if request.param.startswith("delayable") else log)
        return opened[-1]

    yield make
    for log in opened:
        log.close()


def read(tail: LogTail, end: int) -> list[LogRecord]:
    """Return all records up to the position ``end``."""
    records: list[LogRecord] = []
    deadline = time.monotonic() + DEADLINE_S
    while tail.position < end:
        assert time.monotonic() < deadline, f"position {tail.position} of {end}"
        records.extend(tail.poll(0.5))
    return records


def test_records_come_back_in_order_with_their_offsets(make_log: MakeLog) -> None:
    log = make_log()
    assert (log.begin_offset(), log.end_offset()) == (0, 0)
    log.append([b"a", b"", b"c"])
    log.append([b"d"])
    assert log.end_offset() == 4
    tail = log.tail(0)
    assert read(tail, 4) == [LogRecord(0, b"a"), LogRecord(1, b""), LogRecord(2, b"c"), LogRecord(3, b"d")]
    tail.close()


def test_an_empty_append_adds_nothing(make_log: MakeLog) -> None:
    log = make_log()
    log.append([])
    assert log.end_offset() == 0


def test_a_tail_begins_at_its_position(make_log: MakeLog) -> None:
    log = make_log()
    log.append([bytes([number]) for number in range(10)])
    tail = log.tail(7)
    assert tail.position == 7
    assert [record.offset for record in read(tail, 10)] == [7, 8, 9]
    assert list(tail.poll(0)) == []
    log.append([b"new"])
    assert read(tail, 11) == [LogRecord(10, b"new")]
    tail.close()


def test_a_poll_respects_its_limit(make_log: MakeLog) -> None:
    log = make_log()
    log.append([b"%d" % number for number in range(50)])
    tail = log.tail(0)
    seen: list[LogRecord] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < 50:
        assert time.monotonic() < deadline
        found = tail.poll(0.5, records_max=7)
        assert len(found) <= 7
        seen.extend(found)
    assert [record.data for record in seen] == [b"%d" % number for number in range(50)]
    tail.close()


def test_all_readers_see_the_same_order_of_all_writers(make_log: MakeLog) -> None:
    logs = [make_log() for _ in range(3)]

    def write(number: int) -> None:
        for place in range(20):
            logs[number].append([b"%d:%d:%d" % (number, place, part) for part in range(3)])

    at_once(write, range(3))
    end = logs[0].end_offset()
    tails = [log.tail(0) for log in logs]
    first, second, third = (read(tail, end) for tail in tails)
    assert first == second == third
    assert len(first) == 180
    for number in range(3):
        own = [record.data for record in first if record.data.startswith(b"%d:" % number)]
        assert own == [b"%d:%d:%d" % (number, place, part) for place in range(20) for part in range(3)]
    for tail in tails:
        tail.close()


def test_a_waiting_reader_gets_an_append(make_log: MakeLog) -> None:
    log = make_log()
    tail = log.tail(0)
    got: list[LogRecord] = []
    reader = threading.Thread(target=lambda: got.extend(read(tail, 1)))
    reader.start()
    log.append([b"x"])
    reader.join(DEADLINE_S)
    assert got == [LogRecord(0, b"x")]
    tail.close()


# the simulated broker never loses a record that a reader has seen
@pytest.mark.parametrize("make_log", TOPICS, indirect=True)
def test_a_position_beyond_the_end_is_an_error(make_log: MakeLog) -> None:
    log = make_log()
    log.append([b"a"])
    tail = log.tail(5)

    def poll_to_the_end() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            tail.poll(0.2)

    with pytest.raises(LogTruncated, match=r"(offset|position) 5"):
        poll_to_the_end()
    tail.close()


@pytest.mark.parametrize("make_log", TOPICS, indirect=True)  # the simulated broker never recreates a topic
def test_the_identity_is_the_topics_own(make_log: MakeLog) -> None:
    assert make_log().identity() == make_log().identity()
    assert make_log().kafka_id() == make_log().kafka_id() != ""
    make_log().verify()


def test_a_record_of_two_mebibytes_fits_with_its_envelope(make_log: MakeLog) -> None:
    log = make_log()
    large = bytes(2 * 1024 * 1024 - 1024)
    log.append([large])
    tail = log.tail(0)
    (record,) = read(tail, 1)
    assert record.data == large
    tail.close()
