"""Parsing of Debezium records: JSON with or without embedded schemas, and Avro in two registry wire formats.

An *envelope* is a record with the fields ``before``, ``after``, ``source`` and ``op``. Three encodings are supported:

* JSON without schemas: the envelope is the whole document.
* JSON with schemas: the envelope is the ``payload`` next to a ``schema``.
* Avro: one zero byte, the schema id (4 bytes for Confluent, 8 for Apicurio, big-endian), then the Avro body.

Invariants:

* No registry is contacted. The caller passes the writer schemas by id, as exported from the registry.
* JSON and Avro schemas yield the same ``Meaning`` for a column (see ``ringlog_debezium.values``).
* A record either parses or raises ``BadRecord``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro

from ringlog.kernel.values import Value, field
from ringlog_debezium.values import Meaning

ID_BYTES = {"confluent-avro": 4, "apicurio-avro": 8}
"""Wire format to the length of the schema id in bytes."""

Names = Mapping[str, Any]


class BadRecord(ValueError):
    """A record that cannot be imported. ``code`` is one of ``ringlog_debezium.mutations.REASONS``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Envelope(Value):
    """A parsed change event.

    Attributes:
        op: Debezium's operation code, for example ``c`` or ``u``.
        source: The event's ``source`` record.
        before: The row before the change, or None.
        after: The row after the change, or None.
        meanings: Column name to the meaning in its schema. None if the event has no schemas.
    """

    op: str
    source: Names
    before: Names | None
    after: Names | None
    meanings: Mapping[str, Meaning] | None = None


class AvroSchema(Value):
    """A parsed writer schema, and the meaning of each column in it."""

    parsed: Any
    meanings: Mapping[str, Meaning] = field(default_factory=dict)


class Form(Value):
    """The encoding of records.

    Attributes:
        name: ``json`` or a key of ``ID_BYTES``.
        schemas: Schema id to writer schema. Empty for JSON.
    """

    name: str = "json"
    schemas: Mapping[int, AvroSchema] = field(default_factory=dict)


def read_envelope(form: Form, value: bytes) -> Envelope:
    """Parse the value of a record.

    Raises:
        BadRecord: The value is not an envelope in this encoding.
    """
    meanings: Mapping[str, Meaning] | None
    if form.name == "json":
        found, schema = _json(value)
        meanings = _json_meanings(schema) if schema is not None else None
    else:
        found, avro = _avro(form, value)
        meanings = avro.meanings
    if not isinstance(found, dict) or not isinstance(found.get("op"), str):
        raise BadRecord("bad_envelope", "the event has no op")
    source, before, after = found.get("source"), found.get("before"), found.get("after")
    if not isinstance(source, dict) or not all(image is None or isinstance(image, dict) for image in (before, after)):
        raise BadRecord("bad_envelope", "source, before and after must be records")
    return Envelope(found["op"], source, before, after, meanings)


def read_key(form: Form, key: bytes | None) -> Names:
    """Parse the key of a record.

    Returns:
        Column name to raw value. Empty if the record has no key, or if its key is not a record.

    Raises:
        BadRecord: The key is not readable in this encoding.
    """
    if key is None:
        return {}
    found = _json(key)[0] if form.name == "json" else _avro(form, key)[0]
    return found if isinstance(found, dict) else {}


def _json(data: bytes) -> tuple[Any, Any]:
    """Return the payload and its schema. The schema is None for a document without one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRecord("unreadable_envelope", f"the record is not JSON: {error}") from None
    # Exactly these two keys: a plain envelope may have a field of either name.
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        return found["payload"], found["schema"]
    return found, None


def _json_meanings(schema: Any) -> dict[str, Meaning]:
    """Return column name to meaning, from a Kafka Connect schema. ``before`` and ``after`` share their columns."""
    meanings: dict[str, Meaning] = {}
    try:
        for image in schema["fields"]:
            if image["field"] in ("before", "after"):
                for column in image.get("fields", ()):
                    # ScyllaDB's connector wraps each column that is not a key into a struct with one field, the value.
                    wrapped = column["type"] == "struct"
                    inner = column["fields"][0] if wrapped and column.get("fields") else column
                    scale = int((inner.get("parameters") or {}).get("scale", 0))
                    meanings[column["field"]] = Meaning(inner.get("name") or "", scale, wrapped)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadRecord("bad_envelope", f"the schema in the record is not a Debezium schema: {error!r}") from None
    return meanings


def _avro(form: Form, data: bytes) -> tuple[Any, AvroSchema]:
    """Decode an Avro record. Return the datum and its writer schema."""
    size = ID_BYTES[form.name]
    if len(data) < 1 + size or data[0] != 0:
        raise BadRecord("unreadable_envelope", f"the record is not a {form.name} record")
    number = int.from_bytes(data[1 : 1 + size], "big")
    schema = form.schemas.get(number)
    if schema is None:
        raise BadRecord("unknown_schema", f"no --schema names a file for schema {number}")
    body = io.BytesIO(data[1 + size :])
    try:
        found = fastavro.schemaless_reader(body, schema.parsed, None)
    except Exception as error:  # fastavro raises many types for corrupt input
        raise BadRecord(
            "unreadable_envelope", f"cannot decode the record with schema {number}: {type(error).__name__}"
        ) from None
    if body.read(1):
        raise BadRecord("unreadable_envelope", f"the record of schema {number} has trailing bytes")
    return found, schema


def avro_schema(text: str) -> AvroSchema:
    """Parse a writer schema from its JSON text.

    Raises:
        BadRecord: The text is not an Avro schema.
    """
    try:
        schema = json.loads(text)
        return AvroSchema(fastavro.parse_schema(schema), _avro_meanings(schema))
    except Exception as error:  # the text comes from a file of the operator
        raise BadRecord("unknown_schema", f"the file is not an Avro schema: {type(error).__name__}: {error}") from None


def _avro_meanings(schema: Any) -> dict[str, Meaning]:
    """Return column name to meaning, from an Avro schema."""
    records: dict[str, Any] = {}
    # ``before`` defines the row type inline, ``after`` refers to it by name. Collect the definitions first. A reference
    # may omit the namespace, so the last part of the name is the key.
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
                # The scale stays 0: fastavro decodes the logical type ``decimal`` to a Decimal with its own scale.
                name = inner.get("connect.name", "") if isinstance(inner, dict) else ""
                meanings[column["name"]] = Meaning(name, 0, wrapped)
    return meanings


def _branch(schema: Any) -> Any:
    """Return the first branch of a union that is not null, or the schema itself if it is not a union."""
    return next((one for one in schema if one != "null"), "null") if isinstance(schema, list) else schema


def _each_record(schema: Any, visit: Callable[[Any], Any]) -> None:
    """Call ``visit`` with each record definition in ``schema``, outer records first."""
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
