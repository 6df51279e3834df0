"""The table and the partition key of an encoded mutation, without decoding the rest of it.

A node passes over most records, since their rows belong to others. What a record says about itself decides that, never
the key under which it travels: the pipeline goes by the content too. Reading only the head of the content costs a
tenth of decoding it.

The head is read as ``ringlog.mutations.Mutation`` has it today, in the canonical form: ids, keyspace, table, timestamp,
time to live, operation, partition key. Anything else is left to the decoder.
"""

from __future__ import annotations

from ringlog.kernel.ring.partition_key import COMPONENT_BYTES_MAX
from ringlog.wire.records import MUTATION
from ringlog.wire.single_object import HEADER_BYTES, header
from ringlog_schemas import current

_HEADER = header(current()[MUTATION].fingerprint)
_ID_BYTES = 16


def peek(value: bytes) -> tuple[str, tuple[bytes, ...]] | None:
    """(full table name, partition key components); None where decoding must tell, e.g. of a null component."""
    if value[:HEADER_BYTES] != _HEADER:
        return None
    try:
        at = HEADER_BYTES
        for _ in range(2):
            at += 1 + _ID_BYTES * _branch(value, at)
        keyspace, at = _bytes(value, at)
        table, at = _bytes(value, at)
        at = _past_number(value, at)
        at = _past_number(value, at + 1) if _branch(value, at) else at + 1
        at = _past_number(value, at)
        count, at = _length(value, at)
        parts = []
        for _ in range(count):
            if not _branch(value, at):
                return None
            part, at = _bytes(value, at + 1)
            parts.append(part)
        if value[at] != 0 or not parts or max(map(len, parts)) > COMPONENT_BYTES_MAX:
            return None
        return f"{keyspace.decode()}.{table.decode()}", tuple(parts)
    except (IndexError, ValueError):
        return None


def _branch(value: bytes, at: int) -> int:
    """0 for null, 1 for a value."""
    byte = value[at]
    if byte not in (0, 2):
        raise ValueError("no such branch")
    return byte >> 1


def _length(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("more than 64 bits")
    if number & 1:
        raise ValueError("a negative length")
    return number >> 1, at


def _bytes(value: bytes, at: int) -> tuple[bytes, int]:
    size, at = _length(value, at)
    if at + size > len(value):
        raise ValueError("a length beyond the end")
    return value[at : at + size], at + size


def _past_number(value: bytes, at: int) -> int:
    while value[at] >= 0x80:
        at += 1
    return at + 1
