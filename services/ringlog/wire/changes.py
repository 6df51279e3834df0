"""Encoding of change records: records of ``kernel.changes`` to Kafka keys and values, and back.

A value is a single object of ``ringlog.changes.<Class>``; a key is UTF-8 text. A deletion has no value. The fields are
those of the dataclasses, with the same names. ``epoch`` is the first field of each schema.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Any, Final

from ringlog.kernel.changes import PUBLICATIONS, Change, ChangeRecord, EpochChange
from ringlog.wire.avro.codec import has_current_schema, layout, name_of, split
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.errors import WireError

DIGEST_BYTES: Final = 16
LAST_BYTE: Final = 0x80
"""The continuation bit of a variable-length number. Only its last byte is below this."""
_CLASSES: Final[tuple[type[Any], ...]] = (*(publication.change for publication in PUBLICATIONS), EpochChange)
CHANGES: Final = {f"ringlog.changes.{cls.__name__}": cls for cls in _CLASSES}
"""Full name to class."""


@cache
def mapper(full_name: str) -> Mapper[Any]:
    """Return the converter between the class of a change and its schema."""
    return Mapper(CHANGES[full_name], layout(full_name))


def encode_change(value: Change) -> bytes:
    """Encode a value. Raises WireError if it does not fit its schema."""
    return mapper(f"ringlog.changes.{type(value).__name__}").encode(value)


def decode_change(data: bytes) -> Change:
    """Decode a value. Raises WireError."""
    full_name = name_of(data)
    if full_name not in CHANGES:
        raise WireError("wrong_record", full_name, "must be a record of ringlog.changes")
    value: Change = mapper(full_name).decode(data)
    return value


def content_digest(data: bytes) -> bytes:
    """Return a digest of a value without its epoch; empty if this release would encode the value with
    another schema.
    """
    if not has_current_schema(data):
        return b""
    fingerprint, body = split(data)
    # ``epoch`` is the first field, so the content begins after the first number.
    begin = next((at for at, byte in enumerate(body, start=1) if byte < LAST_BYTE), len(body))
    return blake2b(body[begin:], digest_size=DIGEST_BYTES, key=fingerprint.to_bytes(8, "big")).digest()


def encode_change_record(record: ChangeRecord) -> tuple[str, bytes, bytes | None]:
    """Return (topic suffix, key, value) of a record."""
    return record.topic, record.key.encode(), None if record.value is None else encode_change(record.value)
