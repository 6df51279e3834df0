"""The log on a real broker: gaps, transactions, a replaced or truncated topic, a broker that stops responding."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from tests.ending import taking_down
from tests.log.commit_driver import FateOpen, commit, settle
from tests.plain_stack import plain_stack
from tests.refusals import raises_code
from tests.stopping import stop
from tests.system.agents_world import until

from ringlog.client.creation.creation import found
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.log.author import Author
from ringlog.log.errors import LogReplaced, LogTruncated, LogUnavailable, RecordTooLarge, ReplicaHalted, TopicMissing
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import METADATA, RESULTS, TopicSpec, admin_client, create_topics, topic_name
from ringlog.log.port import LogRecord
from ringlog.log.replicas import replica as replicas
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import CommitOutcome, EntryChain, commit_outcomes
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.entries import EncodedEntry

pytestmark = pytest.mark.system
DEADLINE_S = 60.0
AUTHOR = Author("me", SystemClock(), SystemDraw())


@pytest.fixture
def log(stack: StackInfo, cluster_name: str) -> Iterator[KafkaLog]:
    create_topics(admin_client(stack.bootstrap_servers), cluster_name, specs=[METADATA, RESULTS])
    log = KafkaLog(stack.bootstrap_servers, cluster_name)
    yield log
    log.close()


def test_positions_pass_control_records_and_aborted_ones(stack: StackInfo, cluster_name: str, log: KafkaLog) -> None:
    results = KafkaLog(stack.bootstrap_servers, cluster_name, RESULTS, isolation="read_committed")
    producer = Producer({**QUIET, "bootstrap.servers": stack.bootstrap_servers, "transactional.id": cluster_name})
    producer.init_transactions(DEADLINE_S)
    for data, kept in ((b"kept", True), (b"dropped", False), (b"last", True)):
        producer.begin_transaction()
        producer.produce(results.name, data, partition=0)
        producer.flush(DEADLINE_S)
        (producer.commit_transaction if kept else producer.abort_transaction)(DEADLINE_S)
    tail = results.tail(0)
    seen: list[LogRecord] = []
    deadline = time.monotonic() + DEADLINE_S
    while tail.position < 6:
        assert time.monotonic() < deadline, f"position {tail.position}"
        seen.extend(tail.poll(0.5))
    assert [record.data for record in seen] == [b"kept", b"last"]
    assert results.end_offset() == 6
    tail.close()
    results.close()


def test_a_replica_reads_past_a_gap_at_the_end(stack: StackInfo, log: KafkaLog) -> None:
    """A stray transaction on the metadata topic leaves control records: barriers and a commit pass them."""
    with LogReplica(log) as replica:
        found(log, replica, "c")
        producer = Producer({**QUIET, "bootstrap.servers": stack.bootstrap_servers, "transactional.id": log.name})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(log.name, b"stray", partition=0)
        producer.flush(DEADLINE_S)
        producer.abort_transaction(DEADLINE_S)
        state = replica.read_barrier()
        assert state.epoch == 1
        assert commit(log, replica, EntryChain(1, (AUTHOR.entry(state, Noop()),))).commit_outcomes == (
            CommitOutcome.APPLIED,
        )
        assert replica.counts[OutcomeKind.UNREADABLE] == 1
        with LogReplica(log) as second:
            assert digest(second.read_barrier()) == digest(replica.read_barrier())


def test_a_competing_author_inside_a_batch(log: KafkaLog) -> None:
    with LogReplica(log) as replica:
        found(log, replica, "c")
        state = replica.state
        one, two, three = _three(replica)
        rival = AUTHOR.entry(_after(replica, one), Noop())
        log.append([one.data, rival.data])
        assert commit(log, replica, EntryChain(state.epoch, (one, two, three))).commit_outcomes == (
            CommitOutcome.APPLIED,
            CommitOutcome.LOST,
            CommitOutcome.LOST,
        )
        assert replica.state.state_id == rival.entry.state_id


def test_a_new_topic_halts(stack: StackInfo, log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MISSING_S", DEADLINE_S)  # the topic is away for as long as the broker takes
    admin = admin_client(stack.bootstrap_servers)
    record = tmp_path / "metadata.json"
    with LogReplica(log, watch_s=0.2, record=record) as replica:
        found(log, replica, "c")
        first = replica.identity
        for future in admin.delete_topics([log.name]).values():
            future.result(DEADLINE_S)
        cluster = log.name.removesuffix(".metadata")
        until(lambda: create_topics(admin, cluster, specs=[METADATA]), "the topic to be created again")
        until(lambda: identity_of(log) not in (first, ""), "the broker to list the topic")
        with pytest.raises(ReplicaHalted) as caught:
            replica.wait_for(lambda _: None, DEADLINE_S, "the halt")
        assert caught.value.code in ("log_replaced", "log_truncated"), "whichever error is first"
        assert replica.state.epoch == 1
    with pytest.raises(LogReplaced):
        LogReplica(log, record=record).start()


def identity_of(log: KafkaLog) -> str:
    """Return the id of the topic with the name; empty while the broker knows none."""
    try:
        return log.identity()
    except TopicMissing:
        return ""


def test_a_log_without_its_beginning_is_refused(stack: StackInfo, log: KafkaLog) -> None:
    log.append([b"1", b"2", b"3"])
    admin = admin_client(stack.bootstrap_servers)
    for future in admin.delete_records([TopicPartition(topic_name(log.name.split(".")[0], "metadata"), 0, 2)]).values():
        future.result(DEADLINE_S)
    with pytest.raises(LogTruncated, match="begins at offset 2"):
        LogReplica(log).start()
    tail = log.tail(0)

    def poll() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            tail.poll(0.2)

    with pytest.raises(LogTruncated, match="offset 0"):
        poll()
    tail.close()


def test_a_running_replica_halts_when_the_log_loses_its_beginning(stack: StackInfo, log: KafkaLog) -> None:
    with LogReplica(log, watch_s=0.2) as replica:
        found(log, replica, "c")
        log.append([encoded.data for encoded in _three(replica)])
        replica.read_barrier()
        admin = admin_client(stack.bootstrap_servers)
        for future in admin.delete_records([TopicPartition(log.name, 0, 2)]).values():
            future.result(DEADLINE_S)
        with raises_code(ReplicaHalted, "log_truncated", match="begins at offset 2"):
            replica.wait_for(lambda _: None, DEADLINE_S, "the halt")
        assert replica.state.epoch == 4


def test_a_log_that_lost_its_end_and_grew_again_halts(tmp_path: Path, cluster_name: str) -> None:
    """Records in the page cache are lost, and other clients append before the reader returns."""
    own, record = plain_stack(tmp_path / "stack"), tmp_path / "metadata.json"
    try:
        info = own.up("quick")
        create_topics(admin_client(info.bootstrap_servers), cluster_name, specs=[METADATA])
        log = KafkaLog(info.bootstrap_servers, cluster_name)
        with LogReplica(log, record=record) as replica:
            found(log, replica, "c")
            for _ in range(4):
                assert (
                    commit(log, replica, EntryChain(replica.state.epoch, _three(replica))).commit_outcomes
                    == (CommitOutcome.APPLIED,) * 3
                )
        log.close()
        own.down()
        (segment,) = (tmp_path / "stack").rglob(f"{log.name}-0/*.log")
        segment.write_bytes(b"".join(batches_of(segment.read_bytes())[:-2]))
        for path in [*segment.parent.glob("*.snapshot"), *(tmp_path / "stack").rglob(".kafka_cleanshutdown")]:
            path.unlink()

        info = own.up("quick")
        log = KafkaLog(info.bootstrap_servers, cluster_name)
        with LogReplica(log) as first:
            left = first.read_barrier().epoch
            assert left < 13, "the log has lost entries"
            for _ in range(4):
                assert (
                    commit(log, first, EntryChain(first.state.epoch, _three(first))).commit_outcomes
                    == (CommitOutcome.APPLIED,) * 3
                )
            assert first.state.epoch > 13, "and it is longer than before"
        with LogReplica(log, record=record) as replica, raises_code(ReplicaHalted, "log_forked", match="epoch 13 had"):
            replica.wait_for(lambda state: state.epoch > 13, DEADLINE_S, "the halt")
        log.close()
    finally:
        own.down()


def batches_of(segment: bytes) -> list[bytes]:
    """Return the record batches of a segment file: eight bytes of offset, four bytes of length, and the content."""
    found, at = [], 0
    while at + 12 <= len(segment) and (size := int.from_bytes(segment[at + 8 : at + 12], "big")):
        found.append(segment[at : at + 12 + size])
        at += 12 + size
    return found


def test_a_stopped_broker_leaves_outcomes_open_until_it_returns(tmp_path: Path, cluster_name: str) -> None:
    """The broker stops during a request: the answer is lost, the entry may be in the log. It is applied once."""
    with taking_down(plain_stack(tmp_path / "stack")) as own:
        info = own.up("quick")
        create_topics(admin_client(info.bootstrap_servers), cluster_name, specs=[METADATA])
        log = KafkaLog(info.bootstrap_servers, cluster_name, delivery_timeout_s=1.0)
        with LogReplica(log) as replica:
            found(log, replica, "c")
            state = replica.state
            chain = EntryChain(state.epoch, _three(replica))
            stop(info.broker_pid)
            try:
                with pytest.raises(LogUnavailable):
                    log.append([encoded.data for encoded in chain.entries])
                with pytest.raises(FateOpen):
                    commit(log, replica, chain, timeout_s=0.5)
                assert commit_outcomes(replica.state, chain) == (CommitOutcome.OPEN,) * 3
            finally:
                os.kill(info.broker_pid, signal.SIGCONT)
            assert commit(log, replica, chain, timeout_s=DEADLINE_S).commit_outcomes == (CommitOutcome.APPLIED,) * 3
            assert replica.read_barrier().epoch == state.epoch + 3
            assert replica.halted is None
            given_up = EntryChain(replica.state.epoch, _three(replica))
            assert settle(log, replica, AUTHOR, given_up).commit_outcomes == (CommitOutcome.LOST,) * 3
            # The caller submits them again with a longer deadline.
            late = KafkaLog(info.bootstrap_servers, cluster_name, delivery_timeout_s=DEADLINE_S)
            late.append([encoded.data for encoded in given_up.entries])
            late.close()
            assert replica.read_barrier().epoch == state.epoch + 4, "too late to have an effect"
        log.close()


def _three(replica: LogReplica) -> tuple[EncodedEntry, ...]:
    state = replica.state
    since = state.epoch
    entries = []
    for _ in range(3):
        entries.append(AUTHOR.entry(state, Noop(), since_epoch=since))
        state = fold(state, entries[-1].entry).state
    return tuple(entries)


def _after(replica: LogReplica, encoded: EncodedEntry) -> ClusterState:
    return fold(replica.state, encoded.entry).state


def test_a_producer_survives_a_fatal_error(stack: StackInfo, cluster_name: str) -> None:
    """One record that the broker rejects permanently breaks a client that must not leave gaps."""
    small = TopicSpec("small", 1, {"max.message.bytes": "1000"})
    create_topics(admin_client(stack.bootstrap_servers), cluster_name, specs=[small])
    topic = topic_name(cluster_name, "small")
    producer = AckedProducer(stack.bootstrap_servers)
    first = Producer(producer._config | {"enable.gapless.guarantee": True})
    producer._producer = first
    refused = producer.send(topic, bytes(5_000), partition=0)
    with pytest.raises(RecordTooLarge):
        refused.result(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while producer._producer is first:
        assert time.monotonic() < deadline, "the broken client is still there"
        with suppress(LogUnavailable):
            producer.send(topic, b"while it is broken", partition=0)
    assert producer.send(topic, b"good", partition=0).result(DEADLINE_S).topic == topic
    assert producer._poller.is_alive()
    producer.close()
