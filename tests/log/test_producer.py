"""The producer without a broker: every record gets an answer."""

from __future__ import annotations

import pytest

from ringlog.log.errors import LogUnavailable, RecordTooLarge
from ringlog.log.kafka.producer import AckedProducer, too_large
from ringlog.log.kafka.topics import RECORD_BYTES_MAX

NOBODY = "127.0.0.1:1"
DEADLINE_S = 60.0


def test_a_closed_producer_refuses_at_once() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    producer.close(0.1)
    with pytest.raises(LogUnavailable, match="closed"):
        producer.send("topic", b"late", partition=0)


def test_closing_answers_earlier_records() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=30.0)
    future = producer.send("topic", b"early", partition=0)
    producer.close(0.1)
    with pytest.raises(LogUnavailable, match="not acknowledged"):
        future.result(DEADLINE_S)


def test_a_cancelled_call_affects_no_other() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    futures = [producer.send("topic", b"x", partition=0)]
    assert not futures[0].cancel()
    futures.append(producer.send("topic", b"y", partition=0))
    for future in futures:
        with pytest.raises(LogUnavailable, match="not acknowledged"):
            future.result(DEADLINE_S)
    producer.close(0.1)


def test_the_error_of_a_too_large_record_names_the_remedy() -> None:
    """The limit of some topics is fixed: a higher limit would prevent every start."""
    lowered = too_large("c.schema", b"table/ks.t", 5_000)
    assert lowered.hint.endswith(f"--entity-name c.schema --add-config max.message.bytes={RECORD_BYTES_MAX}")
    beyond = too_large("c.schema", b"table/ks.t", 3_000_000)
    assert beyond.hint.endswith("max.message.bytes=3001024")
    assert str(beyond).startswith("topic c.schema rejects the record 'table/ks.t': 3,000,000 bytes exceed its limit (")
    assert too_large("c.metadata", None, 3_000_000).hint == "a record of this topic has at most 2,097,152 bytes"
    assert "max.message.bytes=2097152" in too_large("c.metadata", None, 5_000).hint


def test_records_sent_together_share_the_answer_of_the_impossible_one() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    future = producer.send_all("topic", [b"a", b"x" * (2 * RECORD_BYTES_MAX + 1), b"c"])
    with pytest.raises(RecordTooLarge, match="topic"):
        future.result(DEADLINE_S)
    producer.close(0.1)


@pytest.mark.parametrize("more", [(1, 500), (500, 1)])
def test_the_smallest_of_several_impossible_records_is_reported(more: tuple[int, int]) -> None:
    """The author splits all records of at least that size."""
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    future = producer.send_all("topic", [b"a", *(b"x" * (2 * RECORD_BYTES_MAX + size) for size in more)])
    with pytest.raises(RecordTooLarge) as raised:
        future.result(DEADLINE_S)
    assert raised.value.size == 2 * RECORD_BYTES_MAX + 1
    producer.close(0.1)


def test_unacknowledged_records_are_unknown() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    future = producer.send_all("topic", [b"a", b"b"])
    with pytest.raises(LogUnavailable, match="not acknowledged"):
        future.result(DEADLINE_S)
    assert producer.send_all("topic", []).result(DEADLINE_S) is None
    producer.close(0.1)


def test_records_for_a_closed_producer_are_not_sent() -> None:
    producer = AckedProducer(NOBODY, delivery_timeout_s=0.2)
    producer.close(0.1)
    with pytest.raises(LogUnavailable, match="closed"):
        producer.send_all("topic", [b"a", b"b"]).result(DEADLINE_S)
