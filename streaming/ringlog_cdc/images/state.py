"""What is kept of a row, so that its image can be told: newest versions of cells, and what was deleted.

A row's state, and that of what its partition's rows have in common (tombstones, static columns), are plain tuples that
``marshal`` stores as they are. They say the same as the states of ``ringlog.client.cdc.table``, whose fold is the only
place where a change meets a state; what is here takes them there and back.

What cannot be seen any more is left out: cells that a tombstone covers. A state is *forgotten* at an instant that it
names itself, so that forgetting is a function of the input, whether or not anybody has cleaned up by then:

- where nothing lives any more that does not expire: ``GRACE`` after the last write and the last expiry. An older write
  that comes even later than that makes cells visible that had been deleted since.
- with a time to live of images: so long after the last write, whatever lives.

All times are microseconds; *now* is the append time of a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from immutables import Map

from ringlog.client.cdc.table import NEVER, Cell, PartitionState, Place, Range, RowState
from ringlog_cdc.images.tables import ImageTable

GRACE = 10 * 86_400 * 1_000_000
"""As long as ScyllaDB keeps tombstones by default."""

FOR_EVER = 2**63 - 1
RANGES_MAX = 64
"""Tombstones of ranges that a partition remembers, the newest: they only matter for writes that come later with an
older timestamp, and each is looked at for every write."""

Version = tuple[int, bytes | None, int | None]
"""(timestamp, value or None: dead, expiry or None)."""

Row = tuple[int, int, Version | None, dict[str, Version], dict[str, dict[bytes, Version]], dict[str, int]]
"""(when it is forgotten, tombstone, marker, cells, elements of collections, column to what wiped it)."""

Common = tuple[int, int, tuple[tuple[Any, ...], ...], Row | None]
"""(when it is forgotten, tombstone of the partition, those of ranges: fields of ``Range``, static columns)."""

NO_ROW: Row = (FOR_EVER, NEVER, None, {}, {}, {})


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


def clustering_of(prefix: bytes, key: bytes) -> tuple[bytes, ...]:
    """The reverse of ``row_key``."""
    found, at = [], len(prefix) + 1
    while at < len(key):
        end = at + 4 + int.from_bytes(key[at : at + 4], "big")
        found.append(key[at + 4 : end])
        at = end
    return tuple(found)


# --------------------------------------------------------------------------------------------------- there and back


def row_state(row: Row | None) -> RowState:
    """A row as the fold has it."""
    if row is None:
        return RowState()
    _, deleted, marker, cells, elements, wiped = row
    every: dict[Place, Cell] = {(column, None): Cell(*version) for column, version in cells.items()}
    every |= {(column, key): Cell(*one) for column, found in elements.items() for key, one in found.items()}
    return RowState(deleted, None if marker is None else Cell(*marker), Map(every), Map(wiped))


def kept_row(state: RowState, gone: int, now: int, ttl: int) -> Row | None:
    """What is kept of a row that is gone up to ``gone`` by tombstones of its own or its partition; None: nothing."""
    cells: dict[str, Version] = {}
    elements: dict[str, dict[bytes, Version]] = {}
    wiped = {column: at for column, at in sorted(state.wiped.items()) if at > gone}
    for (column, key), cell in sorted(state.cells.items(), key=_place):
        if cell.timestamp <= gone:
            continue
        version = (cell.timestamp, cell.value, cell.expires)
        if key is None:
            cells[column] = version
        elif cell.timestamp > wiped.get(column, NEVER):
            elements.setdefault(column, {})[key] = version
    found = state.marker
    marker = None if found is None or found.timestamp <= gone else (found.timestamp, found.value, found.expires)
    if state.deleted == NEVER and not (cells or elements or wiped or marker):
        return None
    return forgetting((0, state.deleted, marker, cells, elements, wiped), now, ttl)


def _place(item: tuple[Place, Cell]) -> tuple[str, bytes]:
    return item[0][0], item[0][1] or b""


def forgetting(row: Row, now: int, ttl: int) -> Row:
    """The row with the instant at which it is forgotten, if ``now`` is its last write."""
    _, deleted, marker, cells, elements, wiped = row
    every = [*cells.values(), *(one for found in elements.values() for one in found.values())]
    if marker is not None:
        every.append(marker)
    return (_limit(every, now, ttl), deleted, marker, cells, elements, wiped)


def _limit(versions: Iterable[Version], now: int, ttl: int) -> int:
    last, limit = now, FOR_EVER
    for _, value, expires in versions:
        if value is not None:
            if expires is None:
                break
            last = max(last, expires)
    else:
        limit = last + GRACE
    return min(limit, now + ttl) if ttl else limit


def partition_state(common: Common | None, rows: Mapping[tuple[bytes | None, ...], Row | None]) -> PartitionState:
    """A partition as the fold has it, with these rows only."""
    known = Map({key: row_state(row) for key, row in rows.items() if row is not None})
    if common is None:
        return PartitionState(rows=known)
    _, deleted, ranges, static = common
    return PartitionState(deleted, tuple(Range(*fields) for fields in ranges), row_state(static), known)


def kept_common(state: PartitionState, now: int, ttl: int) -> Common | None:
    """What is kept of a partition beside its rows; None: nothing."""
    static = kept_row(state.static, state.deleted, now, ttl)
    newest: dict[tuple[Any, ...], int] = {}
    for item in state.ranges:
        if max(item.deleted, state.deleted) > state.deleted and item.deleted + GRACE > now:
            place = (item.start, item.start_inclusive, item.end, item.end_inclusive)
            newest[place] = max(newest.get(place, NEVER), item.deleted)
    ranges = sorted(((*place, at) for place, at in newest.items()), key=lambda fields: fields[-1])[-RANGES_MAX:]
    if state.deleted == NEVER and not ranges and static is None:
        return None
    limit = min(now + GRACE, now + ttl if ttl else FOR_EVER)
    if static is not None:
        limit = max(limit, static[0])
    return (limit, state.deleted, tuple(ranges), static)


def gone_up_to(state: PartitionState, table: ImageTable, key: tuple[bytes | None, ...]) -> int:
    """The newest timestamp that a tombstone of the partition deletes in one of its rows."""
    covering = (item.deleted for item in state.ranges if table.shape.covers(item, key))
    return max((state.deleted, *covering))
