"""The topics of a cluster on the broker: ends, newest append times, and the repair of missing topics or settings.

A cluster whose metadata topic is lost still has other topics with records. Nothing here creates a metadata topic, since
an empty one beside them would be another cluster. ``ringlog recover`` rebuilds the lost one from a copy.

Kafka finds the newest append time in its time index, whatever the order of the records; deleted records do not count,
and a wrong clock may have put it ahead. Only topics with ``message.timestamp.type=LogAppendTime`` have append times; in
others the times are their authors'.
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
    """The greatest time of any record of ``topic``, microseconds; None if it has none.

    Raises LogUnavailable, TopicMissing.
    """
    newest: Any = OffsetSpec
    found = _asked(admin, topic, newest.max_timestamp(), ANSWER_S)
    times = [result.timestamp for result in found.values() if result.offset >= 0]
    return append_time_us(max(times)) if times else None


def ends_of(admin: AdminClient, topic: str, timeout_s: float = ANSWER_S) -> dict[int, int]:
    """Where each partition of ``topic`` ends. Raises LogUnavailable, TopicMissing."""
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
        raise LogUnavailable(f"the offsets of {topic}: {error}", "is the broker up?") from error


def has_log(admin: AdminClient, cluster: str) -> bool:
    """Return whether the metadata topic exists and has, or had, a record. Raises LogUnavailable."""
    try:
        return any(ends_of(admin, topic_name(cluster, METADATA.suffix)).values())
    except TopicMissing:
        return False


def remains(admin: AdminClient, cluster: str) -> tuple[str, ...]:
    """Return the topics with records that a cluster without a log left; none if its log has records.

    Schemas and the status of agents do not count: both are written before there is a log, by a founding that was
    interrupted. The log is asked again at the end: another process may create the cluster at this moment.
    Raises LogUnavailable.
    """
    if has_log(admin, cluster):
        return ()
    others = tuple(spec for spec in TOPICS if spec not in (METADATA, SCHEMAS, AGENTS))
    names = [topic_name(cluster, spec.suffix) for spec in existing_topics(admin, cluster, others)]
    used = tuple(name for name in names if any(ends_of(admin, name).values()))
    return () if used and has_log(admin, cluster) else used


def repair_topics(admin: AdminClient, cluster: str, bootstrap_servers: str, profile: TopicProfile) -> dict[str, str]:
    """Make the topics that are missing and set what correctness rests on; return each topic that was changed, and how.

    The log must be there. The number of partitions stays. Raises TopicMisconfigured if a setting cannot be repaired,
    LogUnavailable.
    """
    changed = dict.fromkeys(create_topics(admin, cluster, profile), "made")
    changed |= {name: f"set {', '.join(sorted(values))}" for name, values in set_required(admin, cluster).items()}
    verify_topics(admin, cluster, bootstrap_servers, tend=True)
    return changed
