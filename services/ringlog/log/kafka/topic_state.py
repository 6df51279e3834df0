"""The topics of a cluster at the broker: end offsets, newest append times, and the repair of topics and settings.

A cluster that has lost its metadata topic still has other topics with records. This module never creates a metadata
topic, because an empty one among them would be another cluster. ``ringlog recover`` rebuilds the lost topic from a
copy.

Kafka finds the newest append time in its time index, independent of the order of the records. Deleted records do not
count. A wrong clock may have set a time in the future. Append times exist only in topics with
``message.timestamp.type=LogAppendTime``; in other topics the times are the authors' times.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.topics import (
    AGENTS,
    METADATA,
    SCHEMAS,
    TOPICS,
    TopicProfile,
    create_topics,
    describe,
    existing_topics,
    set_required,
    topic_name,
    verify_topics,
)

ANSWER_S = 10.0


def newest_append(admin: AdminClient, topic: str) -> Micros | None:
    """Return the greatest time of any record of ``topic``, or None if the topic has no records.

    Raises LogUnavailable, TopicMissing.
    """
    newest: Any = OffsetSpec
    found = _asked(admin, topic, newest.max_timestamp(), ANSWER_S)
    times = [result.timestamp for result in found.values() if result.offset >= 0]
    return append_time_us(max(times)) if times else None


def ends_of(admin: AdminClient, topic: str, timeout_s: float = ANSWER_S) -> dict[int, int]:
    """Return the end offset of each partition. Raises LogUnavailable, TopicMissing."""
    newest: Any = OffsetSpec
    found = _asked(admin, topic, newest.latest(), timeout_s)
    return {partition: result.offset for partition, result in found.items()}


def _asked(admin: AdminClient, topic: str, spec: Any, timeout_s: float) -> dict[int, Any]:
    partitions = describe(admin, [topic])[topic].partitions
    wanted = {TopicPartition(topic, number): spec for number in range(partitions)}
    try:
        futures: dict[Any, Future[Any]] = admin.list_offsets(wanted, request_timeout=timeout_s)
        return {place.partition: future.result(timeout=timeout_s + 5) for place, future in futures.items()}
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"cannot read the offsets of {topic}: {error}", "check that the broker is up") from error


def has_log(admin: AdminClient, cluster: str) -> bool:
    """Return whether the metadata topic exists and has, or had, a record. Raises LogUnavailable."""
    try:
        return any(ends_of(admin, topic_name(cluster, METADATA.suffix)).values())
    except TopicMissing:
        return False


def leftover_topics(admin: AdminClient, cluster: str) -> tuple[str, ...]:
    """Return the topics with records that a cluster without a log left behind. Empty if the log has records.

    Schemas and the status of agents do not count: an interrupted creation of a cluster writes both before the log.
    Raises LogUnavailable.
    """
    if has_log(admin, cluster):
        return ()
    others = tuple(spec for spec in TOPICS if spec not in (METADATA, SCHEMAS, AGENTS))
    names = [topic_name(cluster, spec.suffix) for spec in existing_topics(admin, cluster, others)]
    used = tuple(name for name in names if any(ends_of(admin, name).values()))
    # Check the log again: another process may have created the cluster in the meantime.
    return () if used and has_log(admin, cluster) else used


def repair_topics(admin: AdminClient, cluster: str, bootstrap_servers: str, profile: TopicProfile) -> dict[str, str]:
    """Create missing topics and set required settings. Return each changed topic with a description of the change.

    The metadata topic must exist. The number of partitions does not change.

    Raises:
        TopicMisconfigured: A setting cannot be repaired.
        LogUnavailable: The broker does not answer.
    """
    changed = dict.fromkeys(create_topics(admin, cluster, profile), "made")
    changed |= {name: f"set {', '.join(sorted(values))}" for name, values in set_required(admin, cluster).items()}
    verify_topics(admin, cluster, bootstrap_servers, tend=True)
    return changed
