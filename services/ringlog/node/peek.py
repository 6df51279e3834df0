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

from ringlog.kernel.ring.partition_key import COMPONENT_BYTES_MAX
from ringlog.wire.canonical import number_at
from ringlog.wire.mapping import uuid_text
from ringlog.wire.records import MUTATION, Cell, Mutation
from ringlog.wire.single_object import HEADER_BYTES, header
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


def plain(value: bytes) -> Mutation | None:
    """The mutation without its id and the values of its cells, if it is one statement without a time to live that says
    nothing beside its cells; None where it is not, or decoding must tell.

    It is what the decoder accepts, byte for byte: texts are texts, and the record ends where the value does.
    """
    if value[:HEADER_BYTES] != _HEADER:
        return None
    try:
        at = HEADER_BYTES + 1 + _ID_BYTES * _branch(value, HEADER_BYTES)
        cluster_id = uuid_text(value[at + 1 : at + 1 + _ID_BYTES]) if _branch(value, at) else None
        at += 1 if cluster_id is None else 1 + _ID_BYTES
        keyspace, at = _part(value, at)
        table, at = _part(value, at)
        timestamp, at = number_at(value, at)
        if _branch(value, at):
            return None
        operation = _OPERATIONS[value[at + 1]]
        partition_key, at = _parts(value, at + 2)
        clustering_key, at = _parts(value, at)
        cells, at = _cells(value, at)
        if value[at:] != _NOTHING_MORE:
            return None
        return Mutation(
            mutation_id=None,
            cluster_id=cluster_id,
            keyspace=keyspace.decode(),
            table=table.decode(),
            timestamp=timestamp,
            ttl=None,
            operation=operation,
            partition_key=partition_key,
            clustering_key=clustering_key,
            cells=cells,
        )
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
    parts: list[bytes | None] = []
    for _ in range(count):
        part = None
        if _branch(value, at):
            part, at = _part(value, at + 1)
        else:
            at += 1
        parts.append(part)
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
