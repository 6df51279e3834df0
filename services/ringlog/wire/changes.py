"""The change topics: records of ``kernel.changes`` to keys and values, and back.

A value is a single object of ``ringlog.changes.<Class>``, the key is text in UTF-8; a record without value (the key is
gone) has no value on the wire either. Fields are those of the dataclasses, name by name; ``epoch`` is the first one in
each schema.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Any, Final

from ringlog.kernel.changes import PUBLICATIONS, Change, ChangeRecord, EpochChange
from ringlog.wire.avro.codec import is_todays, layout, name_of, split
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.errors import WireError

DIGEST_BYTES: Final = 16
LAST_BYTE: Final = 0x80
"""Bytes of a whole number on the wire are not below this, but for its last one."""
CHANGES: dict[str, type[Any]] = {
    f"ringlog.changes.{cls.__name__}": cls
    for cls in (*(publication.change for publication in PUBLICATIONS), EpochChange)
}
"""Full name to class."""


@cache
def mapper(full_name: str) -> Mapper[Any]:
    """The converter between a change's class and its schema."""
    return Mapper(CHANGES[full_name], layout(full_name))


def encode_change(value: Change) -> bytes:
    """The bytes of a value; ``WireError`` if it does not fit its schema."""
    return mapper(f"ringlog.changes.{type(value).__name__}").encode(value)


def decode_change(data: bytes) -> Change:
    """The value of the bytes; ``WireError`` if they are no change."""
    full_name = name_of(data)
    if full_name not in CHANGES:
        raise WireError("wrong_record", full_name, "a record of ringlog.changes")
    value: Change = mapper(full_name).decode(data)
    return value


def content_of(data: bytes) -> bytes:
    """A digest of what a value says, whatever epoch it is from; empty if it is not as this release writes it."""
    if not is_todays(data):
        return b""
    fingerprint, body = split(data)
    begin = next((at for at, byte in enumerate(body, start=1) if byte < LAST_BYTE), len(body))
    return blake2b(body[begin:], digest_size=DIGEST_BYTES, key=fingerprint.to_bytes(8, "big")).digest()


def encode_change_record(record: ChangeRecord) -> tuple[str, bytes, bytes | None]:
    """(suffix of the topic's name, key, value) as they go to Kafka."""
    return record.topic, record.key.encode(), None if record.value is None else encode_change(record.value)
