"""Avro single objects: dictionaries to bytes and back, with the schemas of the catalogue.

A single object consists of ``C3 01``, the fingerprint of the writer's schema (8 bytes, little-endian) and the plain
binary body. The fingerprint is CRC-64-AVRO of the parsing canonical form. A fingerprint that is not in the catalogue is
rejected; the error contains it. ``learn`` adds a schema from the schema topic. Records of such a schema, or of an
earlier version in the catalogue, are resolved to the present schema of the same name.

Source: Avro 1.12 specification, "Single-object encoding".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.errors import WireError
from ringlog_schemas import by_fingerprint, current, fingerprint_of

MARKER = b"\xc3\x01"
HEADER_BYTES = 10


def header(fingerprint: int) -> bytes:
    """Return the ten bytes before a body with the schema of this fingerprint."""
    return MARKER + fingerprint.to_bytes(8, "little")


def split(data: bytes) -> tuple[int, bytes]:
    """Return (fingerprint, body). Raises WireError (``not_single_object``) without a complete header."""
    if len(data) < HEADER_BYTES or data[:2] != MARKER:
        raise WireError("not_single_object", "header", "must start with C3 01 and a fingerprint of eight bytes")
    return int.from_bytes(data[2:HEADER_BYTES], "little"), data[HEADER_BYTES:]


_learned: dict[int, RecordCodec] = {}


@cache
def layout(full_name: str) -> RecordCodec:
    """Return the present layout of a record. Raises WireError (``unknown_record``) if the catalogue lacks it."""
    schema = current().get(full_name)
    if schema is None:
        raise WireError("unknown_record", full_name, "must be a record of the schema catalogue")
    return RecordCodec(schema.json)


@cache
def header_of(full_name: str) -> bytes:
    """Return the header before a body with the present schema."""
    layout(full_name)
    return header(current()[full_name].fingerprint)


@cache
def _earlier_layout(fingerprint: int) -> RecordCodec:
    return RecordCodec(by_fingerprint()[fingerprint].json)


def _catalogued_writer(fingerprint: int) -> RecordCodec | None:
    schema = by_fingerprint().get(fingerprint)
    if schema is None:
        return None
    return layout(schema.full_name) if schema is current()[schema.full_name] else _earlier_layout(fingerprint)


def writer(fingerprint: int) -> RecordCodec:
    """Return the layout for a fingerprint. Raises WireError (``unknown_fingerprint``), with the fingerprint in hex."""
    found = _catalogued_writer(fingerprint) or _learned.get(fingerprint)
    if found is None:
        raise WireError(
            "unknown_fingerprint", f"{fingerprint:016x}", "must have a schema of this release, or a learned schema"
        )
    return found


def has_current_schema(data: bytes) -> bool:
    """Return True if the bytes are a single object with a schema that this release writes."""
    try:
        fingerprint, _ = split(data)
    except WireError:
        return False
    schema = by_fingerprint().get(fingerprint)
    return schema is not None and schema is current()[schema.full_name]


def learn(schema: str) -> int:
    """Add a later release's schema (JSON text) to the known writers and return its fingerprint.

    Its records are then resolved to the present schema of the same name. Raises WireError (``bad_schema``) if it is not
    a record schema.
    """
    try:
        parsed: Mapping[str, Any] = json.loads(schema)
        fingerprint = fingerprint_of(parsed)
        found = RecordCodec(parsed)
    except Exception as error:
        raise WireError("bad_schema", "schema", f"{type(error).__name__}: {error}") from error
    if fingerprint not in by_fingerprint():
        _learned[fingerprint] = found
    return fingerprint


def encode(full_name: str, record: Mapping[str, Any]) -> bytes:
    """Encode a record as a single object with the present schema. Raises WireError if it does not fit."""
    return header_of(full_name) + layout(full_name).encode(record)


def name_of(data: bytes, expected: Iterable[str] = ()) -> str:
    """Return the full name of the record in a single object. Raises WireError if its schema is unknown.

    Args:
        expected: Records to try first. If one of them matches with its present schema, no other schema is loaded.
    """
    for full_name in expected:
        if data.startswith(header_of(full_name)):
            return full_name
    return writer(split(data)[0]).full_name


def decode(data: bytes, full_name: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return (full name, record) of a single object. Raises WireError for any other bytes.

    Args:
        full_name: The expected record. Another one is rejected (``wrong_record``).
    """
    fingerprint, body = split(data)
    found = writer(fingerprint)
    if full_name is not None and found.full_name != full_name:
        raise WireError("wrong_record", found.full_name, f"a {full_name}")
    today = layout(found.full_name)
    record = found.decode(body, canonical=False)
    return found.full_name, record if found is today else today.resolve(body, found)
