"""Fuzz targets for the Debezium import: change events in JSON and Avro, and their schemas."""

from __future__ import annotations

import json

from ringlog.wire.records import decode_mutation, encode_mutation
from ringlog_debezium.envelope import BadRecord, Form, avro_schema, read_envelope, read_key
from ringlog_debezium.mutations import ImportRules, mutation_of, source_name, source_time
from tests.cdc.debezium.samples import AT_US, AVRO, CUSTOMERS, KEY, avro_record, mysql, postgres, scylla, with_schema
from tests.fuzz.mutate import of_json
from tests.fuzz.targets import Target

ROW = {"id": 1, "first_name": "Anne", "email": None}
AVRO_FORM = Form("confluent-avro", {7: avro_schema(json.dumps(AVRO)), 8: avro_schema(json.dumps(KEY))})


def _import(form: Form, data: bytes) -> None:
    """Import an event and encode its mutation, for any table that the event names."""
    envelope = read_envelope(form, data)
    source_name(envelope)
    rules = ImportRules({}, "us", ignore_unknown=True)
    found = mutation_of(envelope, read_key(form, None), CUSTOMERS, rules, name=NAME, timestamp=source_time(envelope))
    if found is not None:
        assert decode_mutation(encode_mutation(found)) == found


NAME = "00000000-0000-4000-8000-000000000001"


def _events() -> tuple[bytes, ...]:
    payloads = (postgres("u", ROW, ROW | {"email": "e"}), mysql("c", None, ROW), scylla("d", ROW, None))
    return (*(json.dumps(payload).encode() for payload in payloads), with_schema(postgres("c", None, ROW)))


def _records() -> tuple[bytes, ...]:
    source = {"connector": "postgresql", "ts_us": AT_US, "schema": "inventory", "table": "customers"}
    event = {"before": None, "after": {"id": 3, "first_name": None}, "source": source, "op": "c"}
    return avro_record(AVRO, 7, 4, event), avro_record(KEY, 8, 4, {"id": 9})


TARGETS = (
    Target(
        "debezium_json",
        ("ringlog_debezium.envelope._json",),
        lambda data: _import(Form(), data),
        (BadRecord,),
        _events,
        of_json,
    ),
    Target(
        "debezium_avro",
        ("ringlog_debezium.envelope._avro",),
        lambda data: _import(AVRO_FORM, data),
        (BadRecord,),
        _records,
    ),
)
