"""The CDC topic as the job's output: fixed options of its producers, and its retention.

Rows of a source partition go to a partition of the CDC topic in the order of the source, and a reader treats a row
behind a later one as a repetition. So a producer must not drop a record and then send the next one. Kafka's producers
do just that, idempotent or not: a record that waits for a broker longer than ``delivery.timeout.ms`` fails, and the
following ones may still arrive. With ``ORDER`` a producer waits as long as it takes; stopping the job interrupts it.

The topic keeps rows as long as their tables promise. When a ``ttl`` is raised, the job raises the topic's retention
within moments, and the broker deletes nothing younger than the previous retention. A job that may not change the
settings reports which one is missing and continues: readers notice a deleted row and never skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka.admin import AdminClient

from ringlog.kernel.generations.expiry import log_retention
from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import LogError
from ringlog.log.kafka.retention import keep_at_least
from ringlog.runtime.kafka.config import spark_options

_NEVER = str(2**31 - 1)

ORDER: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    "retries": _NEVER,
    "delivery.timeout.ms": _NEVER,
}
"""Producer options that users cannot change. Each is needed to keep rows complete and in order."""

PACE: Mapping[str, str] = {
    "linger.ms": "100",  # a task flushes when it ends: nothing waits that long, and requests are full
    "batch.size": "131072",
    "max.request.size": str(4 * 1024 * 1024),
}
"""Producer options that users can change."""


def unfit(name: str, value: str) -> bool:
    """Return True if a user's option conflicts with the job's."""
    return name in ORDER and value != ORDER[name]


def sink_options(bootstrap_servers: str, given: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the options of Spark's Kafka sink.

    Args:
        bootstrap_servers: The brokers.
        given: The user's options, by Kafka's names.

    Raises:
        BadKafkaConfig: The login cannot be expressed for Java clients.
    """
    options = {**PACE, **dict(given), **ORDER}
    return {**spark_options(bootstrap_servers), **{f"kafka.{name}": value for name, value in options.items()}}


Emit = Callable[..., None]


class RetentionKeeper:
    """Raises a topic's retention to the promise of a state. Asks the broker only after that has changed."""

    def __init__(self, admin: AdminClient, topic: str, emit: Emit) -> None:
        self._admin = admin
        self._topic = topic
        self._emit = emit
        self._seen: tuple[Any, ...] = ()
        self._kept: tuple[int | None, ...] = ()

    def keep(self, state: ClusterState) -> None:
        """Raise the retention if needed. A broker error is reported as a progress line, not raised."""
        seen = (state.tables, state.past_ttls, state.generations)
        # Identity suffices: a state shares the parts that did not change with its predecessor.
        if len(self._seen) == len(seen) and all(old is new for old, new in zip(self._seen, seen, strict=True)):
            return
        self._seen = seen
        seconds = log_retention(state)
        if self._kept == (seconds,):
            return
        try:
            before = keep_at_least(self._admin, self._topic, seconds)
        except LogError as error:
            self._emit("retention", topic=self._topic, seconds=seconds, kept=False, error=str(error))
            return
        self._kept = (seconds,)
        if not before.covers(seconds):
            self._emit("retention", topic=self._topic, seconds=seconds, kept=True, before_ms=before.ms)
