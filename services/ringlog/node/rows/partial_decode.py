"""An encoded mutation without decoding all of it: its table and partition key, or all but the values of its cells.

A node passes over most records, since their rows belong to others. What a record says about itself decides that, never
the key under which it travels: the pipeline goes by the content too. Reading only the head of the content costs a
tenth of decoding it. Those that it keeps it keeps as they came: of most of them nobody asks for the values before the
row is read. Which columns they name decides, and there are few names: each is made once.

Records are read as ``ringlog.mutations.Mutation`` has them today, in the canonical form: ids, keyspace, table,
timestamp, time to live, operation, partition key; clustering key, cells, and what a plain write has nothing of.
Anything else is left to the decoder.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from ringlog.kernel.columns.fast_dataclass import maker_of
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
"""No elements deleted, no collection replaced, no bounds, no further statement; nothing named of the table."""
NAMES_KEPT = 4_096
"""Columns whose names are remembered; a longer name than any column has comes seldom."""
_OPERATIONS = {2 * index: symbol for index, symbol in enumerate(_symbols()) if symbol != "RANGE_DELETE"}
"""By the byte of its number: what may be a write of one statement about one row or a partition."""


Head = tuple[str, str, tuple[bytes | None, ...], int, int, int]
"""Keyspace, table and partition key; where the cluster's id, the timestamp, and what follows the key begin."""
_mutation = maker_of(Mutation)


def head_of(value: bytes) -> Head | None:
    """What a mutation is about; None where decoding must tell. What it says beside that is not looked at."""
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
    """Return (full table name, partition key components), or None if only decoding can tell, e.g. a null component."""
    keyspace, table, key, *_ = head
    if not key or None in key:
        return None
    parts = cast(tuple[bytes, ...], key)
    if max(map(len, parts)) > COMPONENT_BYTES_MAX:
        return None
    return f"{keyspace}.{table}", parts


def plain(value: bytes, head: Head | None = None) -> Mutation | None:
    """The mutation without its id and the values of its cells, if it is one statement without a time to live that says
    nothing beside its cells; None where it is not, or decoding must tell. ``head``: its head, if that is known.

    It is what the decoder accepts, byte for byte: texts are texts, and the record ends where the value does.
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
        return _mutation(*fields, (), (), None, (), None, None, None)
    except (IndexError, KeyError, ValueError):
        return None


def _part(value: bytes, at: int) -> tuple[bytes, int]:
    """Bytes behind their length; where they would go beyond the end, so does the position."""
    size = value[at]
    if size < 0x80 and not size & 1:
        end = at + 1 + (size >> 1)
        return value[at + 1 : end], end
    size, at = number_at(value, at)
    if size < 0:
        raise ValueError("a negative length")
    return value[at : at + size], at + size


def _parts(value: bytes, at: int) -> tuple[tuple[bytes | None, ...], int]:
    """The components of a key."""
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
    """The cells, all without a value."""
    count, at = number_at(value, at)
    cells = []
    for _ in range(count):
        name, at = _part(value, at)
        cells.append(_bare(name))
        at = _part(value, at + 1)[1] if _branch(value, at) else at + 1
    return tuple(cells), _past_items(value, at, count)


@lru_cache(maxsize=NAMES_KEPT)
def _bare(name: bytes) -> Cell:
    return Cell(name.decode(), None)


def _past_items(value: bytes, at: int, count: int) -> int:
    """Behind an array of one block, or of none."""
    if count < 0 or (count and value[at] != 0):
        raise ValueError("another encoding")
    return at + 1 if count else at


def _branch(value: bytes, at: int) -> int:
    """0 for null, 1 for a value."""
    byte = value[at]
    if byte not in (0, 2):
        raise ValueError("no such branch")
    return byte >> 1


def _past_number(value: bytes, at: int) -> int:
    while value[at] >= 0x80:
        at += 1
    return at + 1
