"""Images of plain writes to tables whose columns are one cell each: the definition's, put together from bytes.

The row that is logged anyway is there already (``ringlog_cdc.columnar.encode``), and an image shares with it all but
its number, its operation and its cells: its *tail*. The cells of a tail lie in the row's state as they have to be in
it, so what is to be done with a state is little: look it up, put its cells one behind the other, change it.
Whatever is not as simple (partitions with tombstones, rows that would be too large, deletes of partitions) goes to the
definition, write by write, in the order of the topic. Both ways leave the same states and say the same, byte for byte;
a property test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ringlog.client.cdc.rows import INSERT, POSTIMAGE, PREIMAGE, ROW_DELETE
from ringlog.kernel.rows.cells import NEVER
from ringlog_cdc.columnar.pieces import number, text, value_of
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.images.state import FOR_EVER, Row, Version, forgotten_at, packed, versions

Items = tuple[tuple[str, ...], tuple[Any, ...]]
"""Columns that are not null, and their items."""
LAYOUTS_MAX = 4096
"""At most N shapes of images are remembered of a table: which columns have a value, which were touched."""


def live(row: Row, now: int) -> Items | None:
    """The columns of a row that are not null; None if there is no such row. It is in normal form."""
    _, _, marker, columns, items, _, expiries, _ = row
    if expiries is not None or None in items:
        every = zip(columns, items, expiries or (None,) * len(columns), strict=True)
        found = [(column, item) for column, item, expires in every if item and (expires is None or expires > now)]
        columns, items = tuple(column for column, _ in found), tuple(item for _, item in found)
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
    """The row after a write at timestamp ``at``, whose cells expire at ``expires``; None: nothing is kept of it.

    ``ttl``: microseconds after which it is forgotten if nobody writes it, 0: never.
    """
    if row is None:
        deleted, marker, takes_place = NEVER, None, is_tidy(columns)
    else:
        _, deleted, marker, known, before, times, expiries, _ = row
        # A write that comes once more is as good as a newer one.
        takes_place = columns == known and (
            (isinstance(times, int) and at > times)
            or (at == times and items == before and expires is None and expiries is None)
        )
    if operation == ROW_DELETE or at <= deleted or not takes_place:
        return _merged(row, operation, at, expires, columns, items, now, ttl)
    # All cells are new ones.
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
    """``changed``, cell by cell."""
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
    """Are they in the order of their names, each once?"""
    return all(one < other for one, other in pairwise(columns))


def _limit(cells: Iterable[Version], marker: Version | None, now: int, ttl: int) -> int:
    """When a row is forgotten."""
    return forgotten_at(cells if marker is None else (*cells, marker), now, ttl)


def _rank(column: str, version: Version) -> tuple[bool, bool, int, bytes]:
    """Of two versions of one timestamp the one of the greater rank wins."""
    _, item, expires = version
    return item is None, expires is not None, expires or 0, b"" if item is None else value_of(column, item)


def _marker(known: Version | None, at: int, expires: int | None) -> Version:
    """The marker of a row after an insert."""
    if known is None or at > known[0]:
        return (at, b"", expires)
    lasts = (expires is not None, expires or 0) > (known[2] is not None, known[2] or 0)
    return (at, b"", expires) if at == known[0] and lasts else known


# -------------------------------------------------------------------------------------------------------- tails


def tail(table: ImageTable, operation: int, values: Items, touched: tuple[str, ...] | None) -> bytes:
    """The cells of an image and all that follows them. ``touched``: columns of the write; None: all."""
    filled, items = values
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
    """(what stands before the items, their order if it is another one, what stands behind them).

    What is null stands among the deleted of a preimage.
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
    """The columns of a whole image: those of the table, then others."""
    return table.regular if names <= table.known else (*table.regular, *sorted(names - table.known))
