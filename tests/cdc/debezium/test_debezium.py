"""Change events of Debezium's connectors become mutations; invalid events are rejected with a reason."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from ringlog.kernel.cql.types import deserialize, serialize
from ringlog.kernel.model.tables import Table
from ringlog.wire.records import Mutation
from ringlog_debezium.envelope import BadRecord, Form, avro_schema, read_envelope, read_key
from ringlog_debezium.mutations import EventClock, ImportRules, mutation_id, mutation_of, source_name, source_time
from ringlog_debezium.values import BadValue, Meaning, to_cql
from tests.cdc.debezium.samples import (
    AT_MS,
    AT_US,
    AVRO,
    CUSTOMERS,
    KEY,
    READINGS,
    avro_record,
    field,
    mysql,
    postgres,
    scylla,
    with_schema,
)

JSON = Form()
RULES = ImportRules({})
ANN = {"id": 1004, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}


def imported(
    value: bytes | dict[str, Any],
    key: bytes | None = None,
    table: Table = CUSTOMERS,
    rules: ImportRules = RULES,
    form: Form = JSON,
) -> Mutation | None:
    """Return the mutation of a record."""
    envelope = read_envelope(form, value if isinstance(value, bytes) else json.dumps(value).encode())
    assert source_name(envelope) == table.full_name
    named = {"name": mutation_id("t", 0, 7), "timestamp": source_time(envelope)}
    return mutation_of(envelope, read_key(form, key), table, rules, **named)  # type: ignore[arg-type]


def shown(mutation: Mutation | None, table: Table = CUSTOMERS) -> tuple[Any, ...]:
    """Return the decoded (operation, timestamp, key, columns)."""
    assert mutation is not None
    types = {column.name: column.type for column in table.columns}
    columns = {
        cell.column: None if cell.value is None else deserialize(types[cell.column], cell.value)
        for cell in mutation.cells
    }
    key = tuple(
        deserialize(types[name], part or b"")
        for name, part in zip(
            table.partition_key + table.clustering_key, mutation.partition_key + mutation.clustering_key, strict=True
        )
    )
    return mutation.operation, mutation.timestamp, key, columns


def refused(*arguments: Any, **named: Any) -> str:
    with pytest.raises(BadRecord) as caught:
        imported(*arguments, **named)
    return caught.value.code


# ------------------------------------------------------------------------------------------------- connectors


def test_postgres_create_read_update_delete() -> None:
    rest = {name: ANN[name] for name in ANN if name != "id"}
    for op in "cr":
        assert shown(imported(postgres(op, None, ANN))) == ("INSERT", AT_US, (1004,), rest)
    changed = ANN | {"first_name": "Anne Marie", "email": None}
    columns = {"first_name": "Anne Marie", "email": None}
    assert shown(imported(postgres("u", ANN, changed))) == ("UPDATE", AT_US, (1004,), columns)
    everything = {"first_name": "Anne Marie", "last_name": "Kretchmar", "email": None}
    assert shown(imported(postgres("u", None, changed))) == ("UPDATE", AT_US, (1004,), everything)
    assert imported(postgres("u", ANN, ANN)) is None
    nothing: dict[str, Any] = dict.fromkeys(ANN)
    assert shown(imported(postgres("d", ANN, None))) == ("ROW_DELETE", AT_US, (1004,), {})
    key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 1004}}).encode()
    assert shown(imported(postgres("d", nothing, None), key)) == ("ROW_DELETE", AT_US, (1004,), {})
    assert shown(imported(postgres("d", None, None), b'{"id": 1004}')) == ("ROW_DELETE", AT_US, (1004,), {})


def test_values_postgres_did_not_log_stay() -> None:
    after = ANN | {"email": "__debezium_unavailable_value"}
    assert shown(imported(postgres("u", None, after)))[3] == {"first_name": "Anne", "last_name": "Kretchmar"}


def test_embedded_schemas_define_numbers() -> None:
    owed = base64.b64encode((-12345).to_bytes(2, "big", signed=True)).decode()
    payload = postgres("c", None, {"id": 1, "changed": AT_US, "owed": owed})
    assert shown(imported(with_schema(payload)))[3] == {"changed": AT_MS, "owed": -123.45}
    assert refused(payload) == "bad_value"
    assert shown(imported(payload | {"after": {"id": 1, "changed": AT_MS}}, rules=ImportRules({}, "ms")))[3] == {
        "changed": AT_MS
    }


def test_mysql_has_milliseconds_and_no_schema() -> None:
    assert shown(imported(mysql("c", None, {"id": 1, "email": "e"}))) == ("INSERT", AT_MS * 1_000, (1,), {"email": "e"})


def test_scylla_in_cells_and_flat() -> None:
    key = {"device": "d", "at": 5}
    cells = key | {"value": {"value": 2.5}, "note": {"value": None}}
    assert shown(imported(scylla("c", None, cells), table=READINGS), READINGS) == (
        "INSERT",
        AT_US,
        ("d", 5),
        {"value": 2.5, "note": None},
    )
    touched = key | {"value": None, "note": {"value": "n"}}
    assert shown(imported(scylla("u", None, touched), table=READINGS), READINGS)[3] == {"note": "n"}
    flat = scylla("u", None, key | {"value": None, "note": "n"})
    assert shown(imported(flat, table=READINGS), READINGS)[3] == {"note": "n"}
    fields = [field("device", "string"), field("at", "int64"), field("value", "double"), field("note", "string")]
    assert shown(imported(with_schema(flat, fields), table=READINGS), READINGS)[3] == {"value": None, "note": "n"}
    cell = {"type": "struct", "fields": [field("value", "double")]}
    wrapped = [*fields[:2], *(cell | {"field": name} for name in ("value", "note"))]
    assert shown(imported(with_schema(flat, wrapped), table=READINGS), READINGS)[3] == {"note": "n"}
    for images in ((None, key), (key, None)):
        deleted = imported(scylla("d", *images), table=READINGS)
        assert shown(deleted, READINGS) == ("ROW_DELETE", AT_US, ("d", 5), {})


@pytest.mark.parametrize(("name", "id_bytes"), [("confluent-avro", 4), ("apicurio-avro", 8)])
def test_avro_of_two_registries(name: str, id_bytes: int) -> None:
    form = Form(name, {7: avro_schema(json.dumps(AVRO)), 8: avro_schema(json.dumps(KEY))})
    source = {"connector": "postgresql", "ts_us": AT_US, "schema": "inventory", "table": "customers"}
    after = {"id": 3, "first_name": None, "changed": AT_US, "owed": Decimal("1.25")}
    event = {"before": None, "after": after, "source": source, "op": "c"}
    columns = {"first_name": None, "changed": AT_MS, "owed": 1.25}
    assert shown(imported(avro_record(AVRO, 7, id_bytes, event), form=form)) == ("INSERT", AT_US, (3,), columns)
    gone = avro_record(AVRO, 7, id_bytes, event | {"op": "d", "after": None})
    assert shown(imported(gone, avro_record(KEY, 8, id_bytes, {"id": 9}), form=form)) == ("ROW_DELETE", AT_US, (9,), {})
    for value, code in (
        (avro_record(AVRO, 9, id_bytes, event), "unknown_schema"),
        (gone[:-1], "unreadable_envelope"),
        (gone + b"x", "unreadable_envelope"),
        (b"\1" + gone[1:], "unreadable_envelope"),
        (b"\0\0", "unreadable_envelope"),
        (avro_record(KEY, 8, id_bytes, {"id": 1}), "bad_envelope"),
    ):
        assert refused(value, form=form) == code
    for text in ("", "[]", '{"type": "record"}'):
        with pytest.raises(BadRecord, match="unknown_schema"):
            avro_schema(text)


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "unreadable_envelope"),
        (b"{", "unreadable_envelope"),
        (b"[" * 100_000, "unreadable_envelope"),
        (b"1", "bad_envelope"),
        (b'{"op": "c"}', "bad_envelope"),
        (b'{"op": "c", "source": {}, "after": 1}', "bad_envelope"),
        (b'{"op": "c", "source": {}, "after": {}}', "bad_envelope"),
        (b'{"schema": {"fields": [{}]}, "payload": {"op": "c"}}', "bad_envelope"),
        (postgres("c", None, None), "bad_envelope"),
        (postgres("t", None, None), "unsupported_operation"),
        (postgres("m", None, None), "unsupported_operation"),
        (postgres("c", None, {"first_name": "x"}), "missing_key"),
        (postgres("d", None, None), "missing_key"),
        (postgres("u", ANN, ANN | {"id": 5}), "missing_key"),
        (postgres("c", None, ANN | {"shoe_size": 1}), "unknown_column"),
        (postgres("c", None, ANN | {"email": 5}), "bad_value"),
        (postgres("c", None, ANN | {"id": 2**31}), "bad_value"),
        (postgres("c", None, ANN, at_us=0), "bad_envelope"),
        (with_schema(postgres("c", None, ANN), [field("owed", "bytes", "x", scale=float("inf"))]), "bad_envelope"),
    ],
)
def test_events_without_a_change_of_the_table(value: bytes | dict[str, Any], code: str) -> None:
    assert refused(value) == code


def test_unknown_columns_can_be_left_out() -> None:
    found = imported(postgres("c", None, {"id": 1, "shoe_size": 1}), rules=ImportRules({}, ignore_unknown=True))
    assert shown(found) == ("INSERT", AT_US, (1,), {})


def test_changes_of_one_timestamp_keep_order() -> None:
    clock, seen = EventClock(), []
    for at in (5, 5, 5, 9, 8, 8):
        clock = clock.next(at)
        seen.append(clock.now)
    assert seen == [5, 6, 7, 9, 8, 9]


def test_an_event_read_twice_is_one_write() -> None:
    assert mutation_id("t", 1, 2) == mutation_id("t", 1, 2)
    assert len({mutation_id("t", 1, 2), mutation_id("t", 2, 1), mutation_id("u", 1, 2)}) == 3


# ----------------------------------------------------------------------------------------------------- values

DECIMAL = Meaning("org.apache.kafka.connect.data.Decimal")


@pytest.mark.parametrize(
    ("type_name", "value", "meaning", "expected"),
    [
        ("text", "é", Meaning(), "é"),
        ("blob", "AAE=", Meaning(), b"\0\1"),
        ("blob", b"\0\1", Meaning(), b"\0\1"),
        ("boolean", 1, Meaning(), True),
        ("smallint", -3, Meaning(), -3),
        ("bigint", Decimal("7.00"), DECIMAL, 7),
        ("varint", "AQAA", DECIMAL, 65_536),
        ("varint", "-17", Meaning(), -17),
        ("double", 3, Meaning(), 3.0),
        ("float", "0.5", Meaning(), 0.5),
        ("timestamp", -1, Meaning("io.debezium.time.MicroTimestamp"), -1),
        ("timestamp", 1_500, Meaning("io.debezium.time.Timestamp"), 1_500),
        ("timestamp", 1_500_000_000, Meaning("io.debezium.time.NanoTimestamp"), 1_500),
        ("timestamp", "1970-01-01T00:00:01.5Z", Meaning("io.debezium.time.ZonedTimestamp"), 1_500),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), Meaning(), 1_000),
        ("date", 19_000, Meaning("io.debezium.time.Date"), 19_000),
        ("date", date(1970, 1, 2), Meaning(), 1),
        ("date", "1969-12-31", Meaning(), -1),
        ("time", 1, Meaning("io.debezium.time.MicroTime"), 1_000),
        ("time", "00:00:01Z", Meaning("io.debezium.time.ZonedTime"), 10**9),
        ("time", time(0, 1), Meaning(), 60 * 10**9),
        ("uuid", "DF5A0B5C-0000-4000-8000-000000000001", Meaning(), "df5a0b5c-0000-4000-8000-000000000001"),
    ],
)
def test_values_by_logical_type(type_name: str, value: Any, meaning: Meaning, expected: Any) -> None:
    assert to_cql(type_name, value, meaning) == serialize(type_name, expected)


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("text", 1),
        ("blob", "no base64!"),
        ("boolean", 2),
        ("int", 1.5),
        ("int", True),
        ("int", Decimal("1.5")),
        ("double", "x"),
        ("double", True),
        ("timestamp", 5),
        ("timestamp", True),
        ("timestamp", "yesterday"),
        ("date", "31.12.1969"),
        ("time", 5),
        ("uuid", "x"),
        ("varint", b"\1"),
        ("varint", "1e999999999"),
    ],
)
def test_invalid_values(type_name: str, value: Any) -> None:
    with pytest.raises(BadValue):
        to_cql(type_name, value)


def test_null_is_null_and_a_float_keeps_its_bits() -> None:
    assert to_cql("int", None) is None
    assert to_cql("double", 0.1) == struct.pack(">d", 0.1)
