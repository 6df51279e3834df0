"""When brokers say that records came in: the greatest append time of a topic, which a wrong clock may have put ahead.

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
    partitions = describe(admin, [topic])[topic].partitions
    newest: Any = OffsetSpec
    wanted = {TopicPartition(topic, number): newest.max_timestamp() for number in range(partitions)}
    try:
        futures: dict[Any, Future[Any]] = admin.list_offsets(wanted, request_timeout=ANSWER_S)
        found = [future.result(timeout=ANSWER_S + 5) for future in futures.values()]
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"the times of {topic}: {error}", "is the broker up?") from error
    times = [result.timestamp for result in found if result.offset >= 0]
    return append_time_us(max(times)) if times else None
