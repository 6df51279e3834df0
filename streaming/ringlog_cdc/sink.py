"""The producers that write rows and dead letters: which of their options are the job's.

Rows of a source partition go to a partition of the CDC topic in the order of the source, and a reader takes a row that
comes behind a later one for a repetition. So a producer must not give a record up and then send the next one. Kafka's
does just that, idempotent or not: what has waited for a broker longer than ``delivery.timeout.ms`` fails, what came in
behind it may still arrive. ``ORDER`` lets it wait as long as it takes; who stops the job interrupts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringlog.runtime.kafka_config import spark_options

_NEVER = str(2**31 - 1)

ORDER: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    "retries": _NEVER,
    "delivery.timeout.ms": _NEVER,
}
"""What no user may set otherwise: each keeps rows in order, and whole."""

PACE: Mapping[str, str] = {
    "linger.ms": "100",  # a task flushes when it ends: nothing waits that long, and requests are full
    "batch.size": "131072",
    "max.request.size": str(4 * 1024 * 1024),
}


def unfit(name: str, value: str) -> bool:
    """True for an option of the user's that would put another value in the place of the job's."""
    return name in ORDER and value != ORDER[name]


def sink_options(bootstrap_servers: str, given: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Options of Spark's Kafka sink; ``given``: the user's, by Kafka's names. Raises BadKafkaConfig."""
    options = {**PACE, **dict(given), **ORDER}
    return {**spark_options(bootstrap_servers), **{f"kafka.{name}": value for name, value in options.items()}}
