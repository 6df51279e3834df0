"""Reading Debezium's records: JSON with or without embedded schemas, Avro in the wire forms of two registries.

An *envelope* has ``before``, ``after``, ``source``, ``op``. In JSON with schemas it is the ``payload`` beside a
``schema``. In Avro it follows a zero byte and the number of its schema, of 4 bytes (Confluent) or 8 (Apicurio). No
registry is asked: the schemas are given, by number, as the registry exports them.

What follows from the schemas is the same in both: the meaning of each column (see ``values``).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from ringlog_debezium.values import Meaning

ID_BYTES = {"confluent-avro": 4, "apicurio-avro": 8}
"""Form to the bytes of a schema's number."""

Names = Mapping[str, Any]


class BadRecord(ValueError):
    """A record that is no envelope. ``code`` is one of ``REASONS``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Envelope:
    """A change event. ``meanings``: column to what its schema says; None if the event came without schemas."""

    op: str
    source: Names
    before: Names | None
    after: Names | None
    meanings: Mapping[str, Meaning] | None = None


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A writer's schema, parsed, and the meanings of the columns in it."""

    parsed: Any
    meanings: Mapping[str, Meaning] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Form:
    """How records are written: ``json`` or one of ``ID_BYTES``, and of Avro the schemas by number."""

    name: str = "json"
    schemas: Mapping[int, AvroSchema] = field(default_factory=dict)


def read_envelope(form: Form, value: bytes) -> Envelope:
    """The envelope of a record's value. Raises BadRecord."""
    meanings: Mapping[str, Meaning] | None
    if form.name == "json":
        found, schema = _json(value)
        meanings = _json_meanings(schema) if schema is not None else None
    else:
        found, avro = _avro(form, value)
        meanings = avro.meanings
    if not isinstance(found, dict) or not isinstance(found.get("op"), str):
        raise BadRecord("bad_envelope", "there is no op")
    source, before, after = found.get("source"), found.get("before"), found.get("after")
    if not isinstance(source, dict) or not all(image is None or isinstance(image, dict) for image in (before, after)):
        raise BadRecord("bad_envelope", "source, before and after must be records")
    return Envelope(found["op"], source, before, after, meanings)


def read_key(form: Form, key: bytes | None) -> Names:
    """The columns of a record's key; none if it has none. Raises BadRecord."""
    if key is None:
        return {}
    found = _json(key)[0] if form.name == "json" else _avro(form, key)[0]
    return found if isinstance(found, dict) else {}


def _json(data: bytes) -> tuple[Any, Any]:
    """(payload, its schema or None)."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRecord("unreadable_envelope", f"no JSON: {error}") from None
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        return found["payload"], found["schema"]
    return found, None


def _json_meanings(schema: Any) -> dict[str, Meaning]:
    meanings: dict[str, Meaning] = {}
    try:
        for image in schema["fields"]:
            if image["field"] in ("before", "after"):
                for column in image.get("fields", ()):
                    wrapped = column["type"] == "struct"
                    inner = column["fields"][0] if wrapped and column.get("fields") else column
                    scale = int((inner.get("parameters") or {}).get("scale", 0))
                    meanings[column["field"]] = Meaning(inner.get("name") or "", scale, wrapped)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadRecord("bad_envelope", f"its schema is none of Debezium's: {error!r}") from None
    return meanings


def _avro(form: Form, data: bytes) -> tuple[Any, AvroSchema]:
    size = ID_BYTES[form.name]
    if len(data) < 1 + size or data[0] != 0:
        raise BadRecord("unreadable_envelope", f"no {form.name} record")
    number = int.from_bytes(data[1 : 1 + size], "big")
    schema = form.schemas.get(number)
    if schema is None:
        raise BadRecord("unknown_schema", f"no file was given for schema {number}")
    body = io.BytesIO(data[1 + size :])
    try:
        found = fastavro.schemaless_reader(body, schema.parsed, None)
    except Exception as error:  # whatever bytes are there
        raise BadRecord("unreadable_envelope", f"schema {number} does not read it: {type(error).__name__}") from None
    if body.read(1):
        raise BadRecord("unreadable_envelope", f"bytes follow the record of schema {number}")
    return found, schema


def avro_schema(text: str) -> AvroSchema:
    """A writer's schema from its JSON. Raises BadRecord."""
    try:
        schema = json.loads(text)
        return AvroSchema(fastavro.parse_schema(schema), _avro_meanings(schema))
    except Exception as error:  # whatever the text is
        raise BadRecord("unknown_schema", f"no Avro schema: {type(error).__name__}: {error}") from None


def _avro_meanings(schema: Any) -> dict[str, Meaning]:
    records: dict[str, Any] = {}
    _each_record(schema, lambda record: records.setdefault(record["name"].rpartition(".")[2], record))
    meanings: dict[str, Meaning] = {}
    for image in schema.get("fields", ()):
        found = _branch(image["type"])
        record = records.get(found.rpartition(".")[2]) if isinstance(found, str) else found
        if image["name"] in ("before", "after") and isinstance(record, dict):
            for column in record["fields"]:
                kind = _branch(column["type"])
                wrapped = isinstance(kind, dict) and kind["type"] == "record"
                inner = _branch(kind["fields"][0]["type"]) if isinstance(kind, dict) and wrapped else kind
                name = inner.get("connect.name", "") if isinstance(inner, dict) else ""
                meanings[column["name"]] = Meaning(name, 0, wrapped)
    return meanings


def _branch(schema: Any) -> Any:
    """The branch of a union that is not null."""
    return next((one for one in schema if one != "null"), "null") if isinstance(schema, list) else schema


def _each_record(schema: Any, visit: Callable[[Any], Any]) -> None:
    if isinstance(schema, list):
        for one in schema:
            _each_record(one, visit)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            visit(schema)
            for column in schema["fields"]:
                _each_record(column["type"], visit)
        elif isinstance(schema.get("type"), dict | list):
            _each_record(schema["type"], visit)
