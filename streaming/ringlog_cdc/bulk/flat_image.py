"""Images of plain writes to flat tables (one cell per column), assembled from encoded bytes.

An image shares all bytes with its write's row except number, operation and cells: its *tail*. A row's state stores
cells as the tail needs them. Making an image thus means to look up the state, join its cells, and update it.

Invariant: ``ringlog_cdc.definition.images`` is the definition. Both leave the same states and the same rows, byte for
byte, and a property test compares them. Harder cases (partitions with tombstones, rows that may be too large, deletes
of partitions) go to the definition, write by write, in the order of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ringlog.kernel.rows.cells import NEVER
from ringlog.kernel.rows.log_rows import INSERT, POSTIMAGE, PREIMAGE, ROW_DELETE
from ringlog.wire.avro.writing import number, text
from ringlog_cdc.definition.image_states import FOR_EVER, Row, Version, forgotten_at, packed, value_of, versions
from ringlog_cdc.definition.image_tables import ImageTable

Items = tuple[tuple[str, ...], tuple[Any, ...]]
"""Columns that are not null, and their encoded cells."""
LAYOUTS_MAX = 4096
"""Most tail layouts cached per table. A layout says which columns have a value and which were touched."""


def live(row: Row, now: int) -> Items | None:
    """Return the live columns of a row, or None if the row does not exist.

    Args:
        row: State of the row, without collections.
        now: Append time of the write, microseconds.
    """
    _, _, marker, columns, items, _, expiries, _ = row
    if expiries is not None or None in items:
        every = zip(columns, items, expiries or (None,) * len(columns), strict=True)
        found = [(column, item) for column, item, expires in every if item and (expires is None or expires > now)]
        columns, items = tuple(column for column, _ in found), tuple(item for _, item in found)
    # A row exists while it has a live cell or a live marker.
    if columns or (marker is not None and (marker[2] is None or marker[2] > now)):
        return columns, items
    return None


def changed(
    row: Row | None,
    operation: int,
    at: int,
    expires: int | None,
    columns: tuple[str, ...],
    items: tuple[bytes | None, ...],
    now: int,
    ttl: int,
) -> Row | None:
    """Return the state of a row after a write, or None if nothing is kept.

    Args:
        row: State before the write.
        operation: ``cdc$operation``.
        at: Timestamp of the write, microseconds.
        expires: Expiry of its cells, microseconds. None: they do not expire.
        columns: Columns of the write.
        items: Their encoded cells. None: null.
        now: Append time, microseconds.
        ttl: Microseconds without a write until the state is dropped. 0: it is kept.
    """
    if row is None:
        deleted, marker, takes_place = NEVER, None, is_tidy(columns)
    else:
        _, deleted, marker, known, before, times, expiries, _ = row
        # A write that comes once more is as good as a newer one.
        # The write replaces all cells at once: it has the same columns, and is newer or the same write again. This
        # avoids the merge cell by cell.
        takes_place = columns == known and (
            (isinstance(times, int) and at > times)
            or (at == times and items == before and expires is None and expiries is None)
        )
    if operation == ROW_DELETE or at <= deleted or not takes_place:
        return _merged(row, operation, at, expires, columns, items, now, ttl)
    # The write replaces every cell.
    if operation == INSERT:
        marker = _marker(marker, at, expires)
    expiries = None
    if expires is not None and any(item is not None for item in items):
        expiries = tuple(None if item is None else expires for item in items)
    if marker is not None and marker[2] is None and not ttl:
        limit = FOR_EVER
    elif deleted == NEVER and marker is None and not columns:
        return None
    else:
        limit = _limit(((at, item, expires) for item in items), marker, now, ttl)
    return (limit, deleted, marker, columns, items, at if columns else 0, expiries, None)


def _merged(
    row: Row | None,
    operation: int,
    at: int,
    expires: int | None,
    columns: tuple[str, ...],
    items: tuple[bytes | None, ...],
    now: int,
    ttl: int,
) -> Row | None:
    """Merge a write into a state cell by cell, by the rules of ``changed``."""
    deleted, marker, cells = (NEVER, None, {}) if row is None else (row[1], row[2], versions(row))
    if operation == ROW_DELETE:
        if at > deleted:
            deleted = at
            cells = {column: one for column, one in cells.items() if one[0] > at}
            marker = None if marker is not None and marker[0] <= at else marker
    elif at > deleted:
        for column, item in zip(columns, items, strict=True):
            made = (at, item, None if item is None else expires)
            known = cells.get(column)
            if known is None or at > known[0] or (at == known[0] and _rank(column, made) > _rank(column, known)):
                cells[column] = made
        if operation == INSERT:
            marker = _marker(marker, at, expires)
    if deleted == NEVER and marker is None and not cells:
        return None
    return packed(_limit(cells.values(), marker, now, ttl), deleted, marker, cells)


@lru_cache(maxsize=LAYOUTS_MAX)
def is_tidy(columns: tuple[str, ...]) -> bool:
    """Return True if the columns are in ascending order without repetition, as states store them."""
    return all(one < other for one, other in pairwise(columns))


def _limit(cells: Iterable[Version], marker: Version | None, now: int, ttl: int) -> int:
    """Return when the state of a row is dropped, microseconds."""
    return forgotten_at(cells if marker is None else (*cells, marker), now, ttl)


def _rank(column: str, version: Version) -> tuple[bool, bool, int, bytes]:
    """Return the precedence of a version among versions with equal timestamps. The greater one wins."""
    _, item, expires = version
    return item is None, expires is not None, expires or 0, b"" if item is None else value_of(column, item)


def _marker(known: Version | None, at: int, expires: int | None) -> Version:
    """Return the row marker after an insert."""
    if known is None or at > known[0]:
        return (at, b"", expires)
    # At equal timestamps an expiring marker wins over a permanent one, and a later expiry over an earlier one.
    lasts = (expires is not None, expires or 0) > (known[2] is not None, known[2] or 0)
    return (at, b"", expires) if at == known[0] and lasts else known


# -------------------------------------------------------------------------------------------------------- tails


def tail(table: ImageTable, operation: int, values: Items, touched: tuple[str, ...] | None) -> bytes:
    """Encode the tail of an image: its cells and everything after them, except the epoch.

    Args:
        table: The table.
        operation: ``PREIMAGE`` or ``POSTIMAGE``.
        values: Live columns of the row.
        touched: Columns of the write. None: all.
    """
    filled, items = values
    # Rows of a table have few combinations of filled columns, so everything but the cells themselves is cached.
    shape = (operation, filled, touched)
    layouts = table.layouts
    if shape not in layouts:
        if len(layouts) >= LAYOUTS_MAX:
            layouts.clear()
        layouts[shape] = _layout(table, *shape)
    before, order, behind = layouts[shape]
    if order is not None:
        items = tuple(items[place] for place in order)
    return b"".join((before, *items, behind))


def _layout(
    table: ImageTable, operation: int, filled: tuple[str, ...], touched: tuple[str, ...] | None
) -> tuple[bytes, tuple[int, ...] | None, bytes]:
    """Build a tail layout.

    Returns:
        The bytes before the cells, the order of the cells (None: unchanged), and the bytes after them. Null columns of
        a preimage are among its deleted columns.
    """
    if touched is None or operation == POSTIMAGE:
        names = _columns({*filled}, table)
    elif table.preimage == "true":
        names = (*(column for column in table.regular if column in touched), *sorted({*touched} - table.known))
    else:
        names = _columns({*filled, *touched}, table)
    order = tuple(filled.index(column) for column in names if column in filled)
    deleted = [text(column) for column in names if column not in filled] if operation == PREIMAGE else []
    behind = [b"\0"] if order else []
    behind += [number(len(deleted)), *deleted, b"\0"] if deleted else [b"\0"]
    as_they_are = order == tuple(range(len(filled)))
    return number(len(order)), None if as_they_are else order, b"".join((*behind, b"\0"))


def _columns(names: Set[str], table: ImageTable) -> tuple[str, ...]:
    """Return the columns of a full image: those of the table, then others in ascending order."""
    return table.regular if names <= table.known else (*table.regular, *sorted(names - table.known))
