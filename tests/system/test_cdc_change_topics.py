"""Readers of the CDC log, and foreign records in their change topics."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from tests.system.cdc_log import CdcLog, Story

from ringlog.client.cdc import CdcReader
from ringlog.client.cdc.errors import UnreadableChange
from ringlog.kernel.changes import diff
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.log.kafka.topics import topic_name
from ringlog.runtime.kafka.config import QUIET
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import HEADER_BYTES, header, layout
from ringlog.wire.changes import encode_change_record
from ringlog_schemas import current, fingerprint_of

pytestmark = pytest.mark.system


def put(log: CdcLog, suffix: str, key: bytes, value: bytes | None) -> None:
    producer = Producer({**QUIET, "bootstrap.servers": log.world.bootstrap})
    producer.produce(topic_name(log.world.cluster, suffix), value, key, 0)
    assert producer.flush(60) == 0


def read(log: CdcLog) -> int:
    with CdcReader(log.world.bootstrap, log.world.cluster, until_end=True) as reader:
        return len(list(reader))


def test_an_invalid_change_ends_a_reader_until_its_removal(log: CdcLog) -> None:
    """A skipped record might contain a generation, and the reader would miss the rows of that generation."""
    story = Story(log)
    story.play()
    for suffix in ("cdc-generations", "schemas"):
        put(log, suffix, b"\xff stranger", b"no record at all")
    for value in (b"", b"\xc3\x01", b"\xc3\x01" + bytes(8) + b"of a schema that nobody knows"):
        put(log, "cdc-generations", b"stranger", value)
        with pytest.raises(UnreadableChange, match="cdc-generations"):
            read(log)
        put(log, "cdc-generations", b"stranger", None)
    with pytest.raises(UnreadableChange, match="cdc-generations"):
        read(log)
    put(log, "cdc-generations", b"\xff stranger", None)
    assert read(log) == story.numbers


def test_a_change_of_a_later_release_waits_for_its_schema(log: CdcLog) -> None:
    """Two topics have no common order: a schema is written before its record but may be read after it."""
    story = Story(log)
    story.play()
    name = "ringlog.changes.GenerationChange"
    today = current()[name].json
    later = {**today, "fields": [*today["fields"], {"name": "later", "type": "string"}]}
    fingerprint = fingerprint_of(later)
    for generation in log.world.state.generations:
        (record,) = (one for one in diff(EMPTY_STATE, log.world.state) if one.key == generation.id)
        topic, key, value = encode_change_record(record)
        assert value is not None
        found = layout(name).decode(value[HEADER_BYTES:], canonical=True)
        put(log, topic, key, header(fingerprint) + RecordCodec(later).encode({**found, "later": "x"}))
    with pytest.raises(UnreadableChange, match="cdc-generations"):
        read(log)
    put(log, "schemas", f"{fingerprint:016x}".encode(), json.dumps(later).encode())
    assert read(log) == story.numbers
