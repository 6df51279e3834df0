"""What is kept of a row, so that its image can be made: newest versions of cells, and what was deleted.

A row's state, and that of what its partition's rows have in common (tombstones, static columns), are plain tuples that
``marshal`` stores as they are. They say the same as the states of ``ringlog.kernel.rows``, the only place where a write
meets a state; what is here takes them there and back. Cells lie in them as rows of the log have them (``items``). A
state is *forgotten* at an instant that it names itself, so that forgetting is a function of the input, whether or not
anybody has cleaned up by then:

- where nothing lives any more that does not expire: ``GRACE`` after the last write and the last expiry. An older write
  that comes even later than that makes cells visible that had been deleted since.
- with a time to live of images: so long after the last write, whatever lives.

All times are microseconds; *now* is the append time of a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from immutables import Map

from ringlog.kernel.rows.cells import NEVER, NOTHING, Place, RowCell, RowState
from ringlog.kernel.rows.partition import Key, PartitionState, Range, TableColumns, partition_state
from ringlog_cdc.columnar.pieces import item_of, value_of

GRACE = 10 * 86_400 * 1_000_000
"""As long as ScyllaDB keeps tombstones by default."""

FOR_EVER = 2**63 - 1
RANGES_MAX = 64
"""Tombstones of ranges that a partition remembers, the newest: they only matter for writes that come later with an
older timestamp, and each is looked at for every write."""

Version = tuple[int, bytes | None, int | None]
"""(timestamp, value or None: dead, expiry or None)."""

Many = tuple[dict[str, dict[bytes, Version]], dict[str, int]]
"""(elements of collections, column to what wiped it)."""

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
"""(when it is forgotten, tombstone, marker, columns in the order of their names, their items, their timestamps: one if
they are all the same, their expiries: None if none expires, collections).
"""

Common = tuple[int, int, tuple[tuple[Any, ...], ...], Row | None]
"""(when it is forgotten, tombstone of the partition, those of ranges: fields of ``Range``, static columns)."""

NO_MANY: Many = ({}, {})
NO_COMMON: Common = (FOR_EVER, NEVER, (), None)


def row_key(prefix: bytes, clustering: Iterable[bytes | None]) -> bytes:
    """The key of a row's state. ``prefix``: ``partition_prefix``."""
    parts = [prefix, b"\1"]
    for part in clustering:
        parts += (len(part or b"").to_bytes(4, "big"), part or b"")
    return b"".join(parts)


def partition_prefix(number: int, composed: bytes) -> bytes:
    """What keys of the states of a partition begin with. ``number``: of the table in the store."""
    return number.to_bytes(4, "big") + len(composed).to_bytes(4, "big") + composed


def common_key(prefix: bytes) -> bytes:
    """The key of what rows of a partition have in common."""
    return prefix + b"\0"


def is_common(key: bytes) -> bool:
    """Is it the key of what rows of a partition have in common?"""
    return key[-1] == 0 and len(key) == 9 + int.from_bytes(key[4:8], "big")


def clustering_of(prefix: bytes, key: bytes) -> tuple[bytes, ...]:
    """The reverse of ``row_key``."""
    found, at = [], len(prefix) + 1
    while at < len(key):
        end = at + 4 + int.from_bytes(key[at : at + 4], "big")
        found.append(key[at + 4 : end])
        at = end
    return tuple(found)


# --------------------------------------------------------------------------------------------------- there and back


def whole_row(row: Row | None) -> RowState:
    """A row as the kernel has it."""
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
    """What is kept of a row, if ``now`` is its last write; None: nothing."""
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


def versions(row: Row) -> dict[str, Version]:
    """The cells of a row, with items in the place of values."""
    _, _, _, columns, items, times, expiries, _ = row
    every = (times,) * len(columns) if isinstance(times, int) else times
    return dict(zip(columns, zip(every, items, expiries or (None,) * len(columns), strict=True), strict=True))


def packed(
    limit: int, deleted: int, marker: Version | None, cells: Mapping[str, Version], many: Many | None = None
) -> Row:
    """The row of these cells, with items in the place of values. ``limit``: when it is forgotten."""
    columns = tuple(sorted(cells))
    times, items, expiries = zip(*map(cells.__getitem__, columns), strict=True) if columns else ((), (), ())
    time = 0 if not times else times[0] if times.count(times[0]) == len(times) else times
    lasting = expiries.count(None) == len(columns)
    return (limit, deleted, marker, columns, items, time, None if lasting else expiries, many)


def _item(column: str, value: bytes | None) -> bytes | None:
    return None if value is None else item_of(column, value)


def _place(item: tuple[Place, RowCell]) -> tuple[str, bytes]:
    return item[0][0], item[0][1] or b""


def forgotten_at(versions: Iterable[Version], now: int, ttl: int) -> int:
    """When a row of these cells and marker is forgotten, if ``now`` is its last write."""
    last, limit = now, FOR_EVER
    for _, value, expires in versions:
        if value is not None:
            if expires is None:
                break
            last = max(last, expires)
    else:
        limit = last + GRACE
    return min(limit, now + ttl) if ttl else limit


def whole_partition(columns: TableColumns, common: Common | None, rows: Mapping[Key, Row | None]) -> PartitionState:
    """A partition as the kernel has it, with these rows only."""
    _, deleted, ranges, static = common if common is not None else NO_COMMON
    known = ((key, whole_row(row)) for key, row in rows.items())
    return partition_state(columns, deleted, (Range(*fields) for fields in ranges), whole_row(static), known)


def kept_common(state: PartitionState, now: int, ttl: int) -> Common | None:
    """What is kept of a partition beside its rows; None: nothing."""
    static = kept_row(state.static, now, ttl)
    ranges = [item for item in state.ranges if item.deleted + GRACE > now]
    ranges = sorted(ranges, key=lambda item: item.deleted)[-RANGES_MAX:]
    if state.deleted == NEVER and not ranges and static is None:
        return None
    limit = min(now + GRACE, now + ttl) if ttl else now + GRACE
    fields = tuple((item.start, item.start_inclusive, item.end, item.end_inclusive, item.deleted) for item in ranges)
    return (limit if static is None else max(limit, static[0]), state.deleted, fields, static)
