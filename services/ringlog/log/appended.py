"""What brokers say of a topic's records: where they end, and when the last came in, which a wrong clock may have put
ahead.

Kafka finds it in its index of times, whatever the order of the records; what retention has deleted does not count.
Only topics with ``message.timestamp.type=LogAppendTime`` have append times; in others the times are their authors'.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable
from ringlog.log.topics import describe

ANSWER_S = 10.0


def newest_append(admin: AdminClient, topic: str) -> Micros | None:
    """The greatest time of any record of ``topic``, microseconds; None if it has none.

    Raises LogUnavailable, TopicMissing.
    """
    newest: Any = OffsetSpec
    found = _asked(admin, topic, newest.max_timestamp(), ANSWER_S)
    times = [result.timestamp for result in found.values() if result.offset >= 0]
    return append_time_us(max(times)) if times else None


def ends_of(admin: AdminClient, topic: str, patience_s: float = ANSWER_S) -> dict[int, int]:
    """Where each partition of ``topic`` ends. Raises LogUnavailable, TopicMissing."""
    newest: Any = OffsetSpec
    found = _asked(admin, topic, newest.latest(), patience_s)
    return {partition: result.offset for partition, result in found.items()}


def _asked(admin: AdminClient, topic: str, spec: Any, patience_s: float) -> dict[int, Any]:
    partitions = describe(admin, [topic])[topic].partitions
    wanted = {TopicPartition(topic, number): spec for number in range(partitions)}
    try:
        futures: dict[Any, Future[Any]] = admin.list_offsets(wanted, request_timeout=patience_s)
        return {place.partition: future.result(timeout=patience_s + 5) for place, future in futures.items()}
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"the offsets of {topic}: {error}", "is the broker up?") from error
