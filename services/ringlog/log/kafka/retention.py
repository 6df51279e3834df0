"""How long the broker keeps the rows of the CDC log, beside how long its tables promised that they can be read.

One topic holds the rows of all tables, and the broker deletes whole segments by the age of their newest record. So the
topic's ``retention.ms`` must be at least the greatest ``ttl`` that any row in it was promised
(``ringlog.kernel.generations.expiry.log_retention``); then a row is there for at least its ``ttl``, and is gone at
most a ``segment.ms`` after the retention. Neither decides what a reader delivers: positions do.

A retention is only ever raised here. To use less disk, lower the tables' ``ttl`` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ringlog.log.errors import LogUnavailable

ANSWER_S = 5.0
FOR_EVER = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """Of a topic as it is: ``ms`` and ``bytes`` of a partition, -1: without a bound."""

    ms: int
    bytes: int

    def covers(self, seconds: int | None) -> bool:
        """True if every record is kept for this number of seconds (None: for ever), however many there are."""
        by_time = self.ms == FOR_EVER or (seconds is not None and self.ms >= seconds * 1000)
        return by_time and self.bytes == FOR_EVER


def wanted_settings(seconds: int | None) -> dict[str, str]:
    """The settings of a topic that keeps its records for this number of seconds, None: for ever."""
    ms = FOR_EVER if seconds is None else seconds * 1000
    return {"retention.ms": str(ms), "retention.bytes": str(FOR_EVER)}


def mending(bootstrap_servers: str, topic: str, found: Retention, seconds: int | None) -> str:
    """The command that makes a topic keep its records for this number of seconds."""
    added = ",".join(f"{name}={value}" for name, value in _missing(found, seconds).items())
    where = f"--bootstrap-server {bootstrap_servers} --entity-type topics --entity-name {topic}"
    return f"kafka-configs.sh {where} --alter --add-config {added}"


def retention_of(admin: AdminClient, topic: str) -> Retention:
    """What is in force. Raises LogUnavailable."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = _answer(lambda: admin.describe_configs([resource], request_timeout=ANSWER_S)[resource], topic)
    return Retention(int(found["retention.ms"].value), int(found["retention.bytes"].value))


def keep_at_least(admin: AdminClient, topic: str, seconds: int | None) -> Retention:
    """Raise the retention if it does not cover this number of seconds (None: for ever); what it was before.

    Raises LogUnavailable, also if the broker denies it.
    """
    found = retention_of(admin, topic)
    missing = _missing(found, seconds)
    if missing:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in missing.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        _answer(lambda: admin.incremental_alter_configs([resource], request_timeout=ANSWER_S)[resource], topic)
    return found


def _missing(found: Retention, seconds: int | None) -> dict[str, str]:
    settings = wanted_settings(seconds)
    if Retention(found.ms, FOR_EVER).covers(seconds):
        del settings["retention.ms"]
    if found.bytes == FOR_EVER:
        del settings["retention.bytes"]
    return settings


def _answer(ask: Any, topic: str) -> Any:
    try:
        return ask().result(timeout=ANSWER_S + 1)
    except KafkaException as error:
        raise LogUnavailable(f"the settings of {topic}: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise LogUnavailable(f"the settings of {topic}: no answer in time", "is the broker up?") from error
