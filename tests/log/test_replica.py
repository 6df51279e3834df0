"""The replica: its state is the fold of the log up to its position, and it halts at any contradiction."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.encoding.decoder import decode_state
from ringlog.kernel.encoding.encoder import command_digest, digest, encode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnknownCommand, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.log.author import Author
from ringlog.log.errors import (
    LogDamaged,
    LogReplaced,
    LogTruncated,
    LogUnavailable,
    ReplicaHalted,
    ReplicaStopped,
    TopicMissing,
    WaitTimedOut,
)
from ringlog.log.folding import Start
from ringlog.log.memory import MemoryLog
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import EntryChain
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import encode_entry
from tests.log.faulty_log import FaultyLog
from tests.node.data_world import until

ChainMaker = Callable[..., EntryChain]
WATCH_S = 0.05


def halt_of(replica: LogReplica) -> ReplicaHalted:
    with pytest.raises(ReplicaHalted) as caught:
        replica.wait_for(lambda _: None, 60, "its halt")
    assert replica.halted is not None
    return caught.value


def test_the_state_is_the_fold_of_the_log(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    log.append([encoded.data for encoded in chain_of(replica.state).entries])
    log.append([b"", b"no envelope"])
    state = replica.read_barrier()
    assert state.epoch == 4
    assert replica.position == log.end_offset() == 6
    assert replica.counts[OutcomeKind.UNREADABLE] == 2
    with LogReplica(log) as second:
        assert digest(second.read_barrier()) == digest(state)


def test_a_barrier_waits_for_a_position_alone(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    inner = log._inner
    assert isinstance(inner, MemoryLog)
    log.append([chain_of(replica.state, Noop()).entries[0].data])
    inner.gap(3)
    assert replica.read_barrier(60).epoch == 2
    assert replica.position == 5


def test_waits_name_their_condition(replica: LogReplica) -> None:
    with pytest.raises(WaitTimedOut, match=r"waited \d+\.\d s for epoch 99 \(the replica is at epoch 1") as caught:
        replica.wait_for(lambda state: state.epoch >= 99, 0.01, "epoch 99")
    assert caught.value.what == "epoch 99"


def test_a_wait_returns_the_awaited_state(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    chain = chain_of(replica.state)
    got: list[int] = []
    waiter = threading.Thread(
        target=lambda: got.append(
            replica.wait_for(lambda state: state.epoch if state.epoch > 3 else None, 60, "epoch 4")
        )
    )
    waiter.start()
    for encoded in chain.entries:
        log.append([encoded.data])
    waiter.join(60)
    assert got == [4]


def test_a_stopped_replica_ends_its_waits(log: FaultyLog, replica: LogReplica) -> None:
    errors: list[Exception] = []

    def wait() -> None:
        try:
            replica.wait_for(lambda _: None, 60, "nothing")
        except ReplicaStopped as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    replica.stop()
    waiter.join(60)
    assert len(errors) == 1
    with pytest.raises(ReplicaStopped):
        LogReplica(log).read_barrier()


def test_followers_receive_every_record_in_order(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    heard: list[tuple[int, int, OutcomeKind, int]] = []

    def follow(
        before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        assert after is fold(before, item).state or outcome.kind is OutcomeKind.APPLIED
        assert replica.state is after
        heard.append((before.epoch, after.epoch, outcome.kind, offset))

    subscription = replica.subscribe(follow)
    assert (subscription.state, subscription.offset) == (replica.state, 1)
    one, two, three = (encoded.data for encoded in chain_of(replica.state).entries)
    log.append([one, one, two])
    replica.read_barrier()
    subscription.close()
    log.append([three])
    assert replica.read_barrier().epoch == 4
    applied, duplicate = OutcomeKind.APPLIED, OutcomeKind.DUPLICATE
    assert heard == [(1, 2, applied, 1), (2, 2, duplicate, 2), (2, 3, applied, 3)]


def test_a_follower_that_raises_is_removed_alone(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    calls, heard, told = list[int](), list[int](), list[Exception]()

    def fail(*_: object) -> None:
        calls.append(1)
        raise RuntimeError("lost its way")

    first = replica.subscribe(lambda *record: heard.append(record[-1]))
    failed = replica.subscribe(fail, told.append)
    last = replica.subscribe(lambda *record: heard.append(record[-1]))
    with capture_logs() as logs:
        log.append([encoded.data for encoded in chain_of(replica.state, Noop(), Noop()).entries])
        assert replica.read_barrier().epoch == 3
    assert (heard, calls) == ([1, 1, 2, 2], [1])
    assert str(failed.failure) == "lost its way"
    assert told == [failed.failure]
    assert (first.failure, last.failure, replica.halted) == (None, None, None)
    (line,) = [one for one in logs if one["event"] == "follower_failed"]
    assert line["follower"].endswith("<locals>.fail")
    assert line["exc_info"] is failed.failure
    failed.close()
    assert replica.read_barrier().epoch == 3


def test_an_essential_follower_halts_the_replica(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("lost its way")

    replica.subscribe(fail, replica.halt_on_defect)
    log.append([chain_of(replica.state, Noop()).entries[0].data])
    error = halt_of(replica)
    assert (error.code, error.detail) == ("replica_failed", "RuntimeError: lost its way")


def test_a_waiting_caller_learns_of_a_halt_before_it_is_logged(
    log: FaultyLog, replica: LogReplica, chain_of: ChainMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renderer that shows a state in a traceback takes seconds on a busy machine."""
    halted: list[bool] = []
    written = threading.Event()

    class Slow:
        def error(self, event: str, **_details: object) -> None:
            halted.append(replica.halted is not None)
            if event == "replica_failed":
                written.set()

    monkeypatch.setattr("ringlog.log.replicas.replica.log", Slow())
    replica.subscribe(lambda *_: 1 // 0, replica.halt_on_defect)
    log.append([chain_of(replica.state, Noop()).entries[0].data])
    halt_of(replica)
    assert written.wait(60)
    assert halted == [True, True]


def test_an_entry_of_a_later_release_halts_before_it(log: FaultyLog, replica: LogReplica, author: Author) -> None:
    known = author.entry(replica.state, Noop()).entry
    payload = b"\x02"
    later = Entry(
        known.cluster_id,
        known.state_id,
        known.prev_state_id,
        known.request_id,
        known.since_epoch,
        known.submitter,
        known.at,
        "MoveMoon",
        3,
        command_digest("MoveMoon", 3, payload),
        UnknownCommand("MoveMoon", 3),
    )
    log.append([encode_entry(later, payload), author.entry(replica.state, Noop()).data])
    error = halt_of(replica)
    assert (error.code, error.offset) == ("unknown_command", 1)
    assert "MoveMoon version 3" in error.detail
    assert (replica.state.epoch, replica.position) == (1, 1)


def test_another_cluster_than_the_configured_one_halts(log: FaultyLog, replica: LogReplica) -> None:
    with LogReplica(log, cluster_id=replica.state.cluster_id) as same:
        assert same.read_barrier().epoch == 1
    with LogReplica(log, cluster_id="00000000-0000-4000-8000-000000000000") as other:
        assert halt_of(other).code == "cluster_mismatch"
        assert other.state is EMPTY_STATE


def test_the_creator_of_the_cluster_is_known(replica: LogReplica) -> None:
    assert replica.origin is not None
    assert (replica.origin.submitter, replica.origin.offset) == ("founder", 0)
    assert replica.origin.cluster_id == replica.state.cluster_id


def filled() -> tuple[MemoryLog, Author]:
    log, author = MemoryLog(), Author("me", ManualClock(), SeededDraw(b"x"))
    log.append([author.entry(EMPTY_STATE, InitializeCluster("c")).data, b"1", b"2"])
    return log, author


def test_another_topic_under_the_same_name_halts() -> None:
    log, _ = filled()
    with LogReplica(log, watch_s=WATCH_S) as replica:
        replica.read_barrier()
        log.replace()
        assert halt_of(replica).code == "log_replaced"


def test_a_shorter_log_halts() -> None:
    log, _ = filled()
    with LogReplica(log, watch_s=WATCH_S) as replica:
        replica.read_barrier()
        log.truncate(2)
        assert halt_of(replica).code == "log_truncated"
        assert replica.state.epoch == 1, "its last state is still readable"


def test_a_log_without_its_beginning_is_refused() -> None:
    log, _ = filled()
    log.delete_before(1)
    with pytest.raises(LogTruncated, match="begins at offset 1"):
        LogReplica(log).start()


def test_the_stored_view_is_compared_after_a_restart(tmp_path: Path) -> None:
    log, _ = filled()
    record = tmp_path / "deep" / "metadata.json"
    with LogReplica(log, record=record) as replica:
        replica.read_barrier()
        state = replica.state
    assert json.loads(record.read_text()) == {
        "topic_id": log.identity(),
        "position": 3,
        "epoch": 1,
        "state_id": state.state_id,
        "chain": state.chain.hex(),
        "cluster_id": state.cluster_id,
        "cluster": "c",
        "kafka": "memory",
    }
    log.truncate(2)
    with pytest.raises(LogTruncated, match="ends at offset 2, but was read up to offset 3"):
        LogReplica(log, record=record).start()
    log.append([b"3", b"4"])
    with LogReplica(log, record=record) as replica:
        replica.read_barrier()
    log.replace()
    with pytest.raises(LogReplaced):
        LogReplica(log, record=record).start()
    record.write_text("{}")
    with pytest.raises(LogDamaged, match="does not contain a topic record"):
        LogReplica(log, record=record).start()


def test_a_replica_killed_before_it_has_read_everything_keeps_its_view(tmp_path: Path) -> None:
    log, _ = filled()
    record = tmp_path / "metadata.json"
    with LogReplica(log, record=record) as replica:
        replica.read_barrier()
    known = record.read_text()

    class Silent(MemoryLog):
        """A log with records that returns none of them yet."""

        def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
            return [], position

    log.__class__ = Silent
    with LogReplica(log, record=record, watch_s=0.01) as replica:
        assert record.read_text() == known
        assert replica.position == 0
    assert record.read_text() == known
    log.truncate(2)
    with pytest.raises(LogTruncated, match="ends at offset 2, but was read up to offset 3"):
        LogReplica(log, record=record).start()


def test_a_record_after_the_halt_is_not_folded() -> None:
    gate, asked = threading.Event(), threading.Event()

    class Late(MemoryLog):
        """A log that returns its third record on command."""

        def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
            if position == 2:
                asked.set()
                assert gate.wait(60)
            return super().read(position, timeout_s, min(records_max, 2))

    log = Late()
    author = Author("me", ManualClock(), SeededDraw(b"x"))
    state = EMPTY_STATE
    for command in (InitializeCluster("c"), Noop(), Noop()):
        encoded = author.entry(state, command)
        state = fold(state, encoded.entry).state
        log.append([encoded.data])
    with LogReplica(log, watch_s=WATCH_S) as replica:
        assert asked.wait(60)
        log.replace()
        assert halt_of(replica).code == "log_replaced"
        gate.set()
        for thread in replica._threads:
            thread.join(60)
        assert replica.state.epoch == 2


def test_a_briefly_missing_topic_does_not_halt_a_replica() -> None:
    """A broker that has just started may not know its topics yet."""

    class Flickering(MemoryLog):
        looks = 0

        def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
            self.looks += 1
            if 3 <= self.looks <= 8:
                raise TopicMissing(self.name)
            return super().end_offset(timeout_s)

    log = Flickering()
    author = Author("me", ManualClock(), SeededDraw(b"x"))
    log.append([author.entry(EMPTY_STATE, InitializeCluster("c")).data])
    with LogReplica(log, watch_s=0.01) as replica:
        while log.looks <= 10:
            assert replica.read_barrier(60).epoch == 1
        assert replica.halted is None


def test_a_topic_missing_before_and_after_silence_does_not_halt_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker gave no answer in between: after an outage of any length the reader asks again."""
    monkeypatch.setattr("ringlog.log.replicas.replica.MISSING_S", 0.05)

    class Asleep(MemoryLog):
        looks = 0

        def identity(self) -> str:
            self.looks += 1
            if self.looks in (3, 24):
                raise TopicMissing(self.name)
            if 3 < self.looks < 24:
                raise LogUnavailable(f"{self.name}: no answer")
            return super().identity()

    log = Asleep()
    author = Author("me", ManualClock(), SeededDraw(b"x"))
    log.append([author.entry(EMPTY_STATE, InitializeCluster("c")).data])
    with LogReplica(log, watch_s=0.01) as replica:
        while log.looks <= 26 and replica.halted is None:
            assert replica.read_barrier(60).epoch == 1
        assert replica.halted is None


def test_a_topic_with_an_id_exists_even_without_a_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog.log.replicas.replica.MISSING_S", 0.05)

    class Endless(MemoryLog):
        started = False
        looks = 0

        def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
            self.looks += self.started
            if self.started and self.looks < 30:
                raise TopicMissing(self.name)
            return super().end_offset(timeout_s)

    log = Endless()
    author = Author("me", ManualClock(), SeededDraw(b"x"))
    log.append([author.entry(EMPTY_STATE, InitializeCluster("c")).data])
    with LogReplica(log, watch_s=0.01) as replica:
        assert replica.read_barrier(60).epoch == 1
        log.started = True
        until(lambda: log.looks >= 30 or replica.halted is not None, "looks")
        assert replica.halted is None


def test_a_replica_continues_from_a_stored_state(log: FaultyLog, replica: LogReplica, chain_of: ChainMaker) -> None:
    data = [encoded.data for encoded in chain_of(replica.state, *[Noop()] * 6).entries]
    log.append(data[:3])
    stored = Start(decode_state(encode(replica.read_barrier())), replica.position)
    log.append(data[3:])
    heard: list[int] = []
    later = LogReplica(log, start=stored, cluster_id=stored.state.cluster_id)
    later.subscribe(lambda _before, after, _item, _outcome, _offset: heard.append(after.epoch))
    with later:
        assert digest(later.read_barrier()) == digest(replica.read_barrier())
        assert later.counts == {OutcomeKind.APPLIED: 3}
        assert heard == [5, 6, 7]
        assert later.origin is None


def test_a_later_state_needs_no_beginning(log: FaultyLog, replica: LogReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Start(replica.state, replica.position)
    replica.stop()
    monkeypatch.setattr(log, "begin_offset", lambda: 1)
    with LogReplica(log, start=stored) as later:
        assert later.read_barrier() == stored.state
    with pytest.raises(LogTruncated, match="begins at offset 1"):
        LogReplica(log).start()


def test_a_stored_state_that_is_not_of_this_log_halts(log: FaultyLog, replica: LogReplica) -> None:
    stored = Start(replica.state, replica.position)
    with pytest.raises(LogTruncated, match="ends at offset 1"):
        LogReplica(log, start=Start(replica.state, 9)).start()
    with LogReplica(log, start=stored, cluster_id="another") as later:
        assert halt_of(later).code == "cluster_mismatch"
    with LogReplica(log, start=stored, seen=[KnownEpoch(1, "another", "a test")]) as later:
        assert halt_of(later).code == "log_forked"
    with LogReplica(log, start=stored, seen=[KnownEpoch(1, replica.state.state_id, "a test")]) as later:
        assert later.read_barrier() is stored.state
