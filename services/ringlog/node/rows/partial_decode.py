"""Partial decoding of a mutation: its table and partition key, or everything except its id.

A node skips most records, because their rows belong to other nodes. Ownership follows from the content of a record,
never from the key of its Kafka message, as in the CDC pipeline. Decoding only the head costs a tenth of full decoding.
Kept records are stored unchanged. Validation needs the column names and values. There are few names, so each decoded
name is cached.

Only the current schema of ``ringlog.mutations.Mutation`` in canonical encoding is supported. Its fields are, in order:
ids, keyspace, table, timestamp, time to live, operation, partition key, clustering key, cells, and fields that a plain
write leaves empty. For anything else the functions return None, and the caller uses the full decoder.

Invariant: each decoded field equals the result of the full decoder.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX
from ringlog.wire.avro.codec import HEADER_BYTES, header
from ringlog.wire.avro.mapping import uuid_text
from ringlog.wire.avro.reading import number_at
from ringlog.wire.records import MUTATION, Cell, Mutation
from ringlog_schemas import current


def _symbols() -> list[str]:
    operation = next(field for field in current()[MUTATION].json["fields"] if field["name"] == "operation")
    return list(operation["type"]["symbols"])


_HEADER = header(current()[MUTATION].fingerprint)
_ID_BYTES = 16
_NOTHING_MORE = bytes(7)
"""Empty fields: deleted elements, replaced collections, bounds, further statements, and table id, version and epoch."""
NAMES_KEPT = 4_096
"""The limit of cached column names. Longer names than any column has are rare."""
_OPERATIONS = {2 * index: symbol for index, symbol in enumerate(_symbols()) if symbol != "RANGE_DELETE"}
"""Operations by their encoded byte: those of one statement about one row or partition."""


Head = tuple[str, str, tuple[bytes | None, ...], int, int, int]
"""Keyspace, table and partition key; the offsets of the cluster id, of the timestamp, and of the end of the key."""


def head_of(value: bytes) -> Head | None:
    """Return the head of a mutation, or None if that needs the full decoder. Does not read the rest of the record."""
    if not value.startswith(_HEADER):
        return None
    try:
        cluster = HEADER_BYTES + 1 + _ID_BYTES * _branch(value, HEADER_BYTES)
        keyspace, at = _part(value, cluster + 1 + _ID_BYTES * _branch(value, cluster))
        table, time = _part(value, at)
        at = _past_number(value, time)
        at = _past_number(value, at + 1) if _branch(value, at) else at + 1
        partition_key, at = _parts(value, _past_number(value, at))
        return keyspace.decode(), table.decode(), partition_key, cluster, time, at
    except (IndexError, ValueError):
        return None


def partition_of(head: Head) -> tuple[str, tuple[bytes, ...]] | None:
    """Return (full table name, partition key components), or None if that needs the full decoder.

    A null component, for example, is left to the full decoder.
    """
    keyspace, table, key, *_ = head
    if not key or None in key:
        return None
    parts = cast(tuple[bytes, ...], key)
    if max(map(len, parts)) > COMPONENT_BYTES_MAX:
        return None
    return f"{keyspace}.{table}", parts


def plain(value: bytes, head: Head | None = None) -> Mutation | None:
    """Return the mutation without its id, or None if only full decoding can read it.

    Supports a single statement without a time to live that consists of cells only. Accepts only records that the full
    decoder accepts: texts are valid UTF-8, and the record ends with the value.

    Args:
        head: The result of ``head_of``, if it is known.
    """
    head = head or head_of(value)
    if head is None:
        return None
    keyspace, table, partition_key, cluster, time, at = head
    try:
        cluster_id = uuid_text(value[cluster + 1 : cluster + 1 + _ID_BYTES]) if value[cluster] else None
        timestamp, behind = number_at(value, time)
        if _branch(value, behind):
            return None
        operation = _OPERATIONS[value[behind + 1]]
        clustering_key, at = _parts(value, at)
        cells, at = _cells(value, at)
        if value[at:] != _NOTHING_MORE:
            return None
        fields = None, cluster_id, keyspace, table, timestamp, None, operation, partition_key, clustering_key, cells
        return Mutation(*fields, (), (), None, (), None, None, None)
    except (IndexError, KeyError, ValueError):
        return None


def _part(value: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes after a length, and the offset behind them. The offset may exceed the end of ``value``."""
    size = value[at]
    if size < 0x80 and not size & 1:
        end = at + 1 + (size >> 1)
        return value[at + 1 : end], end
    size, at = number_at(value, at)
    if size < 0:
        raise ValueError("a negative length")
    return value[at : at + size], at + size


def _parts(value: bytes, at: int) -> tuple[tuple[bytes | None, ...], int]:
    """Return the components of a key, and the offset behind them."""
    count, at = number_at(value, at)
    if count == 1 and _branch(value, at):
        part, at = _part(value, at + 1)
        return (part,), _past_items(value, at, 1)
    parts: list[bytes | None] = []
    for _ in range(count):
        if _branch(value, at):
            part, at = _part(value, at + 1)
            parts.append(part)
        else:
            at += 1
            parts.append(None)
    return tuple(parts), _past_items(value, at, count)


def _cells(value: bytes, at: int) -> tuple[tuple[Cell, ...], int]:
    """Return the cells, and the offset behind them."""
    count, at = number_at(value, at)
    cells = []
    for _ in range(count):
        name, at = _part(value, at)
        content, at = _part(value, at + 1) if _branch(value, at) else (None, at + 1)
        cells.append(Cell(_text(name), content))
    return tuple(cells), _past_items(value, at, count)


@lru_cache(maxsize=NAMES_KEPT)
def _text(name: bytes) -> str:
    return name.decode()


def _past_items(value: bytes, at: int, count: int) -> int:
    """Return the offset behind an array of at most one block."""
    if count < 0 or (count and value[at] != 0):
        raise ValueError("another encoding")
    return at + 1 if count else at


def _branch(value: bytes, at: int) -> int:
    """Return the branch of a union: 0 for null, 1 for a value."""
    byte = value[at]
    if byte not in (0, 2):
        raise ValueError("no such branch")
    return byte >> 1


def _past_number(value: bytes, at: int) -> int:
    while value[at] >= 0x80:
        at += 1
    return at + 1
