"""The retention of the CDC topic, compared with the ``ttl`` that its tables promise to readers.

One topic contains the rows of all tables. The broker deletes whole segments by the age of their newest record. So
``retention.ms`` must be at least the greatest ``ttl`` of any row in the topic
(``ringlog.kernel.generations.expiry.log_retention``). Then a row is readable for at least its ``ttl``, and it is
deleted at most one ``segment.ms`` after the retention. Positions, not the retention, decide which rows a reader
returns.

Invariant: this module only raises a retention. To use less disk space, first lower the ``ttl`` of the tables.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ringlog.kernel.values import Value
from ringlog.log.errors import LogUnavailable

ANSWER_S = 5.0
UNLIMITED = -1


class Retention(Value):
    """The retention settings of a topic. -1: no limit."""

    ms: int
    bytes: int

    def covers(self, seconds: int | None) -> bool:
        """Return True if every record is kept for this number of seconds (None: permanently), at any volume."""
        by_time = self.ms == UNLIMITED or (seconds is not None and self.ms >= seconds * 1000)
        return by_time and self.bytes == UNLIMITED


def wanted_settings(seconds: int | None) -> dict[str, str]:
    """Return the topic settings that keep records for this number of seconds. None: permanently."""
    ms = UNLIMITED if seconds is None else seconds * 1000
    return {"retention.ms": str(ms), "retention.bytes": str(UNLIMITED)}


def retention_command(bootstrap_servers: str, topic: str, found: Retention, seconds: int | None) -> str:
    """Return the command that makes a topic keep its records for this number of seconds."""
    added = ",".join(f"{name}={value}" for name, value in _missing(found, seconds).items())
    where = f"--bootstrap-server {bootstrap_servers} --entity-type topics --entity-name {topic}"
    return f"kafka-configs.sh {where} --alter --add-config {added}"


def retention_of(admin: AdminClient, topic: str) -> Retention:
    """Return the settings in force. Raises LogUnavailable."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = _answer(lambda: admin.describe_configs([resource], request_timeout=ANSWER_S)[resource], topic)
    return Retention(int(found["retention.ms"].value), int(found["retention.bytes"].value))


def keep_at_least(admin: AdminClient, topic: str, seconds: int | None) -> Retention:
    """Raise the retention if it does not cover this number of seconds (None: permanently). Return the previous one.

    Raises LogUnavailable, also if the broker denies the change.
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
    if Retention(found.ms, UNLIMITED).covers(seconds):
        del settings["retention.ms"]
    if found.bytes == UNLIMITED:
        del settings["retention.bytes"]
    return settings


def _answer(ask: Any, topic: str) -> Any:
    try:
        return ask().result(timeout=ANSWER_S + 1)
    except KafkaException as error:
        raise LogUnavailable(f"cannot read the settings of {topic}: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise LogUnavailable(
            f"cannot read the settings of {topic}: no answer in time", "check that the broker is up"
        ) from error
