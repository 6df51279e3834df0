"""The fence of a role and the validator's retention of results, without agents."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.agents.exits import Superseded
from ringlog.agents.fenced_producer import RECORD_BYTES_MOST, FencedProducer, TransactionRecord
from ringlog.agents.roles.results import ResultsLog
from ringlog.log.errors import LogTruncated, RecordTooLarge
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, RECORD_BYTES_MAX, RESULTS, admin_client, create_topics
from ringlog.protocol.validator.validator import is_needed
from ringlog.runtime.settings import ProcessSettings
from ringlog.stack import StackInfo
from ringlog.wire.records import APPLIED, REJECTED, Result, encode_result

from .agents_world import until
from .topic_settings import alter

pytestmark = pytest.mark.system
DEADLINE_S = 60.0


@pytest.fixture
def results(stack: StackInfo, cluster_name: str) -> Iterator[KafkaLog]:
    create_topics(admin_client(stack.bootstrap_servers), cluster_name, specs=[METADATA, RESULTS])
    log = KafkaLog(stack.bootstrap_servers, cluster_name, RESULTS, isolation="read_committed")
    yield log
    log.close()


def committed(results: KafkaLog) -> list[bytes]:
    end, tail = results.end_offset(), results.tail(results.begin_offset())
    found: list[bytes] = []
    while tail.position < end:
        found += [record.data for record in tail.poll(DEADLINE_S)]
    tail.close()
    return found


def await_committed(results: KafkaLog, *wanted: bytes) -> None:
    """Wait for the records: a broker may confirm a commit before its marker is in the partition."""
    until(lambda: len(committed(results)) >= len(wanted), f"{len(wanted)} committed records")
    assert committed(results) == list(wanted)


def fenced(stack: StackInfo, results: KafkaLog) -> FencedProducer:
    producer = FencedProducer(stack.bootstrap_servers, f"{results.name}.role")
    producer.initialise()
    return producer


def test_a_replaced_producer_commits_nothing(stack: StackInfo, results: KafkaLog) -> None:
    first = fenced(stack, results)
    first.commit([TransactionRecord(results.name, None, b"before")])
    second = fenced(stack, results)
    with pytest.raises(Superseded):
        first.commit([TransactionRecord(results.name, None, b"zombie")])
    second.commit([TransactionRecord(results.name, None, b"after")])
    await_committed(results, b"before", b"after")


def test_a_producer_replaced_in_a_transaction_leaves_nothing(stack: StackInfo, results: KafkaLog) -> None:
    """The old instance slept with records at the broker. Its successor aborts that transaction, so readers continue."""
    first = fenced(stack, results)
    first._producer.begin_transaction()
    first._producer.produce(results.name, b"half", partition=0)
    first._producer.flush(DEADLINE_S)
    second = fenced(stack, results)
    second.commit([TransactionRecord(results.name, None, b"whole")])
    await_committed(results, b"whole")
    with pytest.raises(Superseded):
        first._retry(lambda: first._producer.commit_transaction(DEADLINE_S))
    assert committed(results) == [b"whole"]


def test_aborted_rejections_are_lost(stack: StackInfo, cluster_name: str, results: KafkaLog, tmp_path: Path) -> None:
    first = fenced(stack, results)
    first.commit([TransactionRecord(results.name, None, encode_result(result("committed", 5)))])
    first._producer.begin_transaction()
    first._producer.produce(results.name, encode_result(result("open", 5)), partition=0)
    first._producer.flush(DEADLINE_S)
    fenced(stack, results)
    settings = ProcessSettings(bootstrap_servers=stack.bootstrap_servers, cluster=cluster_name, data_dir=tmp_path)
    kept = ResultsLog(settings, lambda: None)
    assert [found.detail for found in kept.published()] == ["committed"]
    kept.close()


def test_a_transaction_may_exceed_the_buffer_of_the_client(stack: StackInfo, results: KafkaLog) -> None:
    producer = fenced(stack, results)
    producer.commit([TransactionRecord(results.name, None, b"%d" % number) for number in range(100_001)])
    until(lambda: results.end_offset() > 100_001, "the end of the transaction")
    found = committed(results)
    assert (len(found), found[0], found[-1]) == (100_001, b"0", b"100000")


def test_a_record_that_the_topic_rejects_is_named(stack: StackInfo, results: KafkaLog) -> None:
    producer = fenced(stack, results)
    refused = TransactionRecord(results.name, b"key", bytes(RECORD_BYTES_MAX))
    small = TransactionRecord(results.name, None, b"small")
    with pytest.raises(RecordTooLarge, match=f"topic {results.name} rejects the record 'key': 2,097,155 bytes"):
        producer.commit([small, refused, *([small] * 20_000)])
    beyond = TransactionRecord(results.name, b"far", bytes(RECORD_BYTES_MOST + 1))
    with pytest.raises(RecordTooLarge, match="'far': 33,554,436 bytes") as error:
        producer.commit([small, beyond])
    assert "max.message.bytes=33555460" in error.value.hint
    producer.commit([TransactionRecord(results.name, None, b"after")])
    await_committed(results, b"after")


def test_a_batch_above_a_lowered_limit_names_its_largest(stack: StackInfo, results: KafkaLog) -> None:
    alter(admin_client(stack.bootstrap_servers), results.name, "max.message.bytes", "1000")
    producer = fenced(stack, results)
    records = [TransactionRecord(results.name, b"%d" % size, bytes(size)) for size in (100, 700, 300, 200)]
    with pytest.raises(RecordTooLarge, match="'700': 703 bytes"):
        producer.commit(records)


def test_an_error_inside_a_transaction_leaves_nothing(stack: StackInfo, results: KafkaLog) -> None:
    class Broken:
        def __iter__(self) -> Iterator[TransactionRecord]:
            yield TransactionRecord(results.name, None, b"half")
            raise Superseded("meanwhile")

    producer = fenced(stack, results)
    with pytest.raises(Superseded, match="meanwhile"):
        producer.commit(Broken())
    producer.commit([TransactionRecord(results.name, None, b"whole")])
    await_committed(results, b"whole")


def test_a_permanently_rejected_append_is_no_outage(results: KafkaLog) -> None:
    for size in (RECORD_BYTES_MAX, 2 * RECORD_BYTES_MAX + 1):
        with pytest.raises(RecordTooLarge, match=f"{size:,} bytes"):
            results.append([bytes(size)])
    results.append([b"after"])
    assert committed(results) == [b"after"]


def test_unneeded_results_are_deleted(stack: StackInfo, cluster_name: str, results: KafkaLog, tmp_path: Path) -> None:
    said = [("a", 1, REJECTED), ("b", 2, APPLIED), ("c", 3, REJECTED), ("d", 9, APPLIED), ("e", 2, REJECTED)]
    results.append([encode_result(result(*one)) for one in said])
    settings = ProcessSettings(bootstrap_servers=stack.bootstrap_servers, cluster=cluster_name, data_dir=tmp_path)
    kept = ResultsLog(settings, lambda: None)

    def after_trimming(oldest: int) -> tuple[list[str], int]:
        kept.trim(oldest)
        needed = [found.detail for found in kept.published() if is_needed(found, oldest)]
        return needed, results.begin_offset()

    assert after_trimming(0) == (["a", "c", "e"], 0)
    assert after_trimming(2) == (["c", "e"], 2)
    assert after_trimming(2) == (["c", "e"], 2)
    assert after_trimming(3) == (["c"], 2)
    assert after_trimming(4) == ([], 5)
    with pytest.raises(LogTruncated):
        results.tail(0).poll(DEADLINE_S)
    kept.close()
    with pytest.raises(ValueError, match="never deletes records"):
        KafkaLog(stack.bootstrap_servers, cluster_name).delete_before(1)


def result(name: str, since_epoch: int, outcome: str = REJECTED) -> Result:
    return Result(str(uuid.uuid4()), "ab" * 32, outcome, 9, "code", name, 1, str(uuid.uuid4()), since_epoch)
