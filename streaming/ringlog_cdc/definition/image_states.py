"""Stored states of rows: the newest version of each cell, and tombstones. Images are made from them.

A state is a plain tuple that ``marshal`` can store, either of a row or of the *common* part of a partition (tombstones,
static columns). It is equivalent to a state of ``ringlog.kernel.rows``, where all merge rules are. This module converts
between both. Cells are stored encoded, as rows of the log contain them (*items*).

Each state contains its expiry time. Expiry is thus a function of the input, independent of when the file is cleaned up:

* If nothing permanent is alive: ``GRACE`` after the last write and the last expiry. An even older write that arrives
  later can revive cells that were deleted in between.
* With a time to live of images: that long after the last write at the latest, regardless of content.

All times are microseconds. *Now* is the append time of a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from immutables import Map

from ringlog.kernel.rows.cells import NEVER, NOTHING, Place, RowCell, RowState
from ringlog.kernel.rows.partition import Key, PartitionState, Range, TableColumns, partition_state
from ringlog.wire.avro.writing import sized, text

GRACE = 10 * 86_400 * 1_000_000
"""ScyllaDB's default lifetime of tombstones."""

FOR_EVER = 2**63 - 1
"""Expiry of a state that does not expire."""
RANGES_MAX = 64
"""Most range tombstones kept per partition, the newest. They only affect later writes with older timestamps, and every
write checks each of them.
"""

Version = tuple[int, bytes | None, int | None]
"""(timestamp, value or None for a deleted cell, expiry or None)."""

Many = tuple[dict[str, dict[bytes, Version]], dict[str, int]]
"""(column to elements of its collection, column to timestamp of its replacement)."""

Row = tuple[
    int,
    int,
    Version | None,
    tuple[str, ...],
    tuple[bytes | None, ...],
    int | tuple[int, ...],
    tuple[int | None, ...] | None,
    Many | None,
]
"""State of a row.

Fields: expiry of the state, tombstone, row marker, column names in ascending order, their items, timestamps, expiries,
collections. Timestamps are one number if all are equal. Expiries are None if no cell expires.
"""

LIMIT, COLLECTIONS = 0, 7
"""Indexes in a row: expiry of the state, and collections."""

Common = tuple[int, int, tuple[tuple[Any, ...], ...], Row | None]
"""Common state of a partition: expiry of the state, partition tombstone, range tombstones (fields of ``Range``), static
columns.
"""

NO_MANY: Many = ({}, {})
NO_COMMON: Common = (FOR_EVER, NEVER, (), None)


def row_key(prefix: bytes, clustering: Iterable[bytes | None]) -> bytes:
    """Return the key of a row's state.

    Args:
        prefix: Result of ``partition_prefix``.
        clustering: Components of the clustering key.
    """
    parts = [prefix, b"\1"]
    for part in clustering:
        parts += (len(part or b"").to_bytes(4, "big"), part or b"")
    return b"".join(parts)


def partition_prefix(number: int, composed: bytes) -> bytes:
    """Return the common prefix of all keys of a partition.

    Args:
        number: Number of the table in the store.
        composed: Composed partition key.
    """
    return number.to_bytes(4, "big") + len(composed).to_bytes(4, "big") + composed


def common_key(prefix: bytes) -> bytes:
    """Return the key of a partition's common state. It sorts before the keys of rows."""
    return prefix + b"\0"


def is_common(key: bytes) -> bool:
    """Return True for a key of common state."""
    return key[-1] == 0 and len(key) == 9 + int.from_bytes(key[4:8], "big")


def clustering_of(prefix: bytes, key: bytes) -> tuple[bytes, ...]:
    """Return the clustering key in a key from ``row_key``."""
    found, at = [], len(prefix) + 1
    while at < len(key):
        end = at + 4 + int.from_bytes(key[at : at + 4], "big")
        found.append(key[at + 4 : end])
        at = end
    return tuple(found)


# --------------------------------------------------------------------------------------------------- there and back


def whole_row(row: Row | None) -> RowState:
    """Convert a stored row to the kernel's state."""
    if row is None:
        return NOTHING
    _, deleted, marker, *_, many = row
    elements, wiped = many or NO_MANY
    every: dict[Place, RowCell] = {
        (column, None): RowCell(timestamp, None if item is None else value_of(column, item), expires)
        for column, (timestamp, item, expires) in versions(row).items()
    }
    every |= {(column, key): RowCell(*one) for column, found in elements.items() for key, one in found.items()}
    return RowState(deleted, None if marker is None else RowCell(*marker), Map(every), Map(wiped))


def kept_row(state: RowState, now: int, ttl: int) -> Row | None:
    """Convert a row to its stored state, or None if nothing is left.

    Args:
        state: The row.
        now: Append time of its last write.
        ttl: Time to live of images. 0: none.
    """
    if state == NOTHING:
        return None
    cells: dict[str, Version] = {}
    elements: dict[str, dict[bytes, Version]] = {}
    for (column, key), cell in sorted(state.cells.items(), key=_place):
        if key is None:
            cells[column] = (cell.timestamp, _item(column, cell.value), cell.expires)
        else:
            elements.setdefault(column, {})[key] = (cell.timestamp, cell.value, cell.expires)
    marker = None if state.marker is None else (state.marker.timestamp, state.marker.value, state.marker.expires)
    every = [(cell.timestamp, cell.value, cell.expires) for cell in state.cells.values()]
    limit = forgotten_at(every if marker is None else [*every, marker], now, ttl)
    many = (elements, dict(sorted(state.wiped.items()))) if elements or state.wiped else None
    return packed(limit, state.deleted, marker, cells, many)


def item_of(column: str, value: bytes) -> bytes:
    """Encode a cell with a value, as a row of the log contains it: name, union branch, value."""
    return text(column) + b"\2" + sized(value)


def value_of(column: str, item: bytes) -> bytes:
    """Return the value of an encoded cell of that column."""
    at = len(text(column)) + 1
    while item[at] & 0x80:
        at += 1
    return item[at + 1 :]


def versions(row: Row) -> dict[str, Version]:
    """Return column to version of a stored row, with items instead of values."""
    _, _, _, columns, items, times, expiries, _ = row
    every = (times,) * len(columns) if isinstance(times, int) else times
    return dict(zip(columns, zip(every, items, expiries or (None,) * len(columns), strict=True), strict=True))


def packed(
    limit: int, deleted: int, marker: Version | None, cells: Mapping[str, Version], many: Many | None = None
) -> Row:
    """Return the stored row of these cells.

    Args:
        limit: Expiry of the state.
        deleted: Tombstone.
        marker: Row marker.
        cells: Column to version, with items instead of values.
        many: Collections.
    """
    columns = tuple(sorted(cells))
    times, items, expiries = zip(*map(cells.__getitem__, columns), strict=True) if columns else ((), (), ())
    time = 0 if not times else times[0] if times.count(times[0]) == len(times) else times
    lasting = expiries.count(None) == len(columns)
    return (limit, deleted, marker, columns, items, time, None if lasting else expiries, many)


def _item(column: str, value: bytes | None) -> bytes | None:
    return None if value is None else item_of(column, value)


def _place(item: tuple[Place, RowCell]) -> tuple[str, bytes]:
    """Return the sort key of a cell."""
    return item[0][0], item[0][1] or b""


def forgotten_at(versions: Iterable[Version], now: int, ttl: int) -> int:
    """Return the expiry of a row's state.

    Args:
        versions: Its cells and marker.
        now: Append time of its last write.
        ttl: Time to live of images. 0: none.
    """
    last, limit = now, FOR_EVER
    for _, value, expires in versions:
        if value is not None:
            # A permanent live cell: the loop ends early and the state does not expire.
            if expires is None:
                break
            last = max(last, expires)
    else:
        limit = last + GRACE
    return min(limit, now + ttl) if ttl else limit


def whole_partition(columns: TableColumns, common: Common | None, rows: Mapping[Key, Row | None]) -> PartitionState:
    """Convert stored states to the kernel's partition, with these rows only."""
    _, deleted, ranges, static = common if common is not None else NO_COMMON
    known = ((key, whole_row(row)) for key, row in rows.items())
    return partition_state(columns, deleted, (Range(*fields) for fields in ranges), whole_row(static), known)


def kept_common(state: PartitionState, now: int, ttl: int) -> Common | None:
    """Convert the common part of a partition to its stored state, or None if nothing is left."""
    static = kept_row(state.static, now, ttl)
    ranges = [item for item in state.ranges if item.deleted + GRACE > now]
    ranges = sorted(ranges, key=lambda item: item.deleted)[-RANGES_MAX:]
    if state.deleted == NEVER and not ranges and static is None:
        return None
    limit = min(now + GRACE, now + ttl) if ttl else now + GRACE
    fields = tuple((item.start, item.start_inclusive, item.end, item.end_inclusive, item.deleted) for item in ranges)
    return (limit if static is None else max(limit, static[0]), state.deleted, fields, static)
