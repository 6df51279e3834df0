"""Avro single-object encoding: ``C3 01``, the writer schema's fingerprint (8 bytes, little-endian), the plain binary
body.

Source: Avro 1.12 specification, "Single-object encoding". The fingerprint is CRC-64-AVRO of the parsing canonical
form.
"""

from __future__ import annotations

from ringlog.wire.errors import WireError

MARKER = b"\xc3\x01"
HEADER_BYTES = 10


def header(fingerprint: int) -> bytes:
    """The ten bytes before a body written with the schema of this fingerprint."""
    return MARKER + fingerprint.to_bytes(8, "little")


def split(data: bytes) -> tuple[int, bytes]:
    """(fingerprint, body); ``WireError`` (``not_single_object``) if the bytes do not begin with a whole header."""
    if len(data) < HEADER_BYTES or data[:2] != MARKER:
        raise WireError("not_single_object", "header", "two bytes C3 01 and a fingerprint of eight bytes")
    return int.from_bytes(data[2:HEADER_BYTES], "little"), data[HEADER_BYTES:]
