"""Readers of whole topics. They use only a Kafka client and the schemas that the cluster publishes."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import fastavro
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from ringlog.runtime.kafka.config import READER_GROUP, connection
from ringlog.wire.avro.codec import decode
from ringlog.wire.errors import WireError

HEADER = 10
MARKER = b"\xc3\x01"
RECORDS_PER_POLL = 2_000
POLL_S = 0.01
"""Seconds that a call waits for more records, also at the end. An audit makes one or two such calls per partition."""
ANSWER_S = 10.0
SILENCE_S = 30.0


class AuditError(Exception):
    """The audit could not run. The text says why."""


class Record(Protocol):
    """A record of a topic, as in ``confluent_kafka.Message``."""

    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class AuditTopics(Protocol):
    """The topics of one cluster: a port for Kafka and the simulator."""

    def name(self, suffix: str) -> str:
        """Return the name of the cluster's topic with this suffix."""
        ...

    def records(self, suffix: str, since: Mapping[int, int] | None = None) -> Iterator[Record]:
        """Yield every committed record of a topic, partition by partition, up to its current end.

        ``since``: partition to the offset to start at. Raises AuditError.
        """
        ...


class KafkaTopics:
    """The topics of a cluster on a broker."""

    def __init__(self, bootstrap: str, cluster: str) -> None:
        self._bootstrap = bootstrap
        self._cluster = cluster

    def name(self, suffix: str) -> str:
        """Return the name of the cluster's topic with this suffix."""
        return f"{self._cluster}.{suffix}"

    def records(self, suffix: str, since: Mapping[int, int] | None = None) -> Iterator[Record]:
        """Yield every committed record of a topic, up to its current end."""
        return records(self._bootstrap, self.name(suffix), since)


def records(bootstrap: str, topic: str, since: Mapping[int, int] | None = None) -> Iterator[Message]:
    """Yield every committed record of a topic, partition by partition, from its first to its end at the time of the
    call.

    ``since``: partition to the offset to start at. Raises AuditError, also if no broker answers.
    """
    consumer = Consumer(
        {
            **connection(bootstrap),
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        metadata = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        if metadata.error is not None:
            raise AuditError(f"topic {topic}: {metadata.error}")
        for partition in sorted(metadata.partitions):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
            low = max(low, (since or {}).get(partition, 0))
            if low < high:
                consumer.assign([TopicPartition(topic, partition, low)])
                yield from _until(consumer, high)
    except KafkaException as error:
        raise AuditError(f"topic {topic}: {error.args[0].str()} (check that the broker is up)") from error
    finally:
        consumer.close()


def _until(consumer: Consumer, high: int) -> Iterator[Message]:
    """Yield the records below ``high``. Transaction markers leave gaps, so the end of the partition also stops it."""
    last_answer = time.monotonic()
    while True:
        batch = consumer.consume(RECORDS_PER_POLL, POLL_S)
        if batch:
            last_answer = time.monotonic()
        elif time.monotonic() - last_answer > SILENCE_S:
            raise AuditError(f"the broker did not answer for {SILENCE_S:.0f} s (check that it is up)")
        for message in batch:
            error = message.error()
            if error is not None:
                if error.name() == "_PARTITION_EOF":
                    return
                raise AuditError(f"{message.topic()}: {error}")
            offset = message.offset()
            assert offset is not None
            if offset < high:
                yield message
            if offset >= high - 1:
                return


class Decoder:
    """A decoder of single-object encoded values with the schemas of ``<cluster>.schemas`` (key: fingerprint in hex)."""

    def __init__(self, topics: AuditTopics) -> None:
        self._schemas: dict[bytes, Any] = {}
        for message in topics.records("schemas"):
            key, value = message.key(), message.value()
            if key is not None and value is not None:
                fingerprint = int(key.decode(), 16).to_bytes(8, "little")
                self._schemas[fingerprint] = fastavro.parse_schema(json.loads(value), _write_hint=False)

    def name(self, value: bytes) -> str:
        """Return the full name of the record's schema."""
        return str(self.schema(value)["name"])

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return the record. Raise AuditError for bytes that are not a record of the cluster, or for trailing bytes."""
        schema, body = self.schema(value), io.BytesIO(value[HEADER:])
        try:
            found = fastavro.schemaless_reader(body, schema, None)
        except Exception as broken:  # for any error that invalid bytes cause
            raise AuditError(f"undecodable record: {type(broken).__name__}: {broken}") from broken
        if body.tell() != len(value) - HEADER:
            raise AuditError(f"{len(value) - HEADER - body.tell()} bytes follow the record")
        assert isinstance(found, dict)
        return found

    def breaks_avro(self, value: bytes) -> bool:
        """Return True if a record breaks a rule of Avro that ``decode`` does not check.

        Examples are a boolean of 2 and an int of more than 32 bits. A record that is encoded again to the same bytes
        breaks none. Only the others need the check of the wire format.
        """
        again = io.BytesIO()
        try:
            fastavro.schemaless_writer(again, self.schema(value), self.decode(value))
            if again.getvalue() == value[HEADER:]:
                return False
        except Exception:  # fastavro decodes some values that it does not encode
            pass
        try:
            decode(value)
        except WireError:
            return True
        return False

    def schema(self, value: bytes) -> Any:
        """Return the parsed schema of a record. Raise AuditError for bytes that are not a record of the cluster."""
        schema = self._schemas.get(value[2:HEADER]) if value[:2] == MARKER else None
        if schema is None:
            raise AuditError(f"no schema for a record that starts with {value[:HEADER].hex()}")
        return schema


def latest(topics: AuditTopics, suffix: str) -> dict[bytes, bytes]:
    """Return the current state of a compacted topic: the last value of every key that is not deleted."""
    found: dict[bytes, bytes] = {}
    for message in topics.records(suffix):
        key, value = message.key(), message.value()
        if key is None:
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
