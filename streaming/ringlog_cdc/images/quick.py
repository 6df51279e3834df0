"""Images of plain writes to tables whose columns are one cell each: the definition's, put together from bytes.

The row that is logged anyway is there already (``ringlog_cdc.columnar.encode``), and an image shares with it all but
its number, its operation and its cells: its *tail*. The cells of a tail lie in the row's state as they have to be in
it, so what is to be done with a state is little: look it up, put its cells one behind the other, change it.
Whatever is not as simple (partitions with tombstones, rows that would be too large, deletes of partitions) goes to the
definition, write by write, in the order of the topic. Both ways leave the same states and say the same, byte for byte;
a property test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ringlog.client.cdc.rows import INSERT, POSTIMAGE, PREIMAGE, ROW_DELETE
from ringlog.kernel.rows.cells import NEVER
from ringlog_cdc.images.items import number, text, value_of
from ringlog_cdc.images.state import FOR_EVER, Row, Version, forgotten_at
from ringlog_cdc.images.tables import ImageTable

Items = dict[str, bytes]
"""Column to its cell, of columns that are not null."""
LAYOUTS_MAX = 4096
"""So many shapes of images are remembered of a table: which columns have a value, which were touched."""


def live(row: Row, now: int) -> Items | None:
    """The columns of a row that are not null; None if there is no such row. It is in normal form."""
    found = {
        column: item
        for column, (_, item, expires) in row[3].items()
        if item is not None and (expires is None or expires > now)
    }
    if found:
        return found
    marker = row[2]
    return found if marker is not None and (marker[2] is None or marker[2] > now) else None


def changed(
    row: Row | None,
    operation: int,
    at: int,
    expires: int | None,
    columns: Sequence[str],
    items: Sequence[bytes | None],
    now: int,
    ttl: int,
) -> Row | None:
    """The row after a write at timestamp ``at``, whose cells expire at ``expires``; None: nothing is kept of it.

    ``ttl``: microseconds after which it is forgotten if nobody writes it, 0: never.
    """
    _, deleted, marker, cells, _ = row if row is not None else _NO_ROW
    if operation == ROW_DELETE:
        if at > deleted:
            deleted = at
            cells = {column: one for column, one in cells.items() if one[0] > at}
            marker = None if marker is not None and marker[0] <= at else marker
    elif at > deleted:
        cells = cells.copy()
        for column, item in zip(columns, items, strict=True):
            known = cells.get(column)
            if known is None or at > known[0]:
                cells[column] = (at, item, None if item is None else expires)
            elif at == known[0]:
                made = (at, item, None if item is None else expires)
                if made != known and _rank(column, made) > _rank(column, known):
                    cells[column] = made
        if operation == INSERT and (marker is None or at > marker[0] or (at == marker[0] and _lasts(expires, marker))):
            marker = (at, b"", expires)
    if marker is not None and marker[2] is None and not ttl:
        return (FOR_EVER, deleted, marker, cells, None)
    if deleted == NEVER and marker is None and not cells:
        return None
    every: Iterable[Version] = cells.values() if marker is None else (*cells.values(), marker)
    return (forgotten_at(every, now, ttl), deleted, marker, cells, None)


_NO_ROW: Row = (0, NEVER, None, {}, None)


def _rank(column: str, version: Version) -> tuple[bool, bool, int, bytes]:
    """Of two versions of one timestamp the one of the greater rank wins."""
    _, item, expires = version
    return item is None, expires is not None, expires or 0, b"" if item is None else value_of(column, item)


def _lasts(expires: int | None, marker: Version) -> bool:
    """Does a marker of that expiry win over another one of its timestamp?"""
    return (expires is not None, expires or 0) > (marker[2] is not None, marker[2] or 0)


# -------------------------------------------------------------------------------------------------------- tails


def tail(table: ImageTable, operation: int, values: Items, touched: tuple[str, ...] | None) -> bytes:
    """The cells of an image and all that follows them. ``touched``: columns of the write; None: all."""
    shape = (operation, (*values,), touched)
    layouts = table.layouts
    if shape not in layouts:
        if len(layouts) >= LAYOUTS_MAX:
            layouts.clear()
        layouts[shape] = _layout(table, *shape)
    before, columns, behind = layouts[shape]
    return b"".join((before, *map(values.__getitem__, columns), behind))


def _layout(
    table: ImageTable, operation: int, filled: tuple[str, ...], touched: tuple[str, ...] | None
) -> tuple[bytes, tuple[str, ...], bytes]:
    """(what stands before the cells, columns of these in their order, what stands behind them).

    What is null stands among the deleted of a preimage.
    """
    if touched is None or operation == POSTIMAGE:
        names = _columns({*filled}, table)
    elif table.preimage == "true":
        names = (*(column for column in table.regular if column in touched), *sorted({*touched} - table.known))
    else:
        names = _columns({*filled, *touched}, table)
    columns = tuple(column for column in names if column in filled)
    deleted = [text(column) for column in names if column not in filled] if operation == PREIMAGE else []
    behind = [b"\0"] if columns else []
    behind += [number(len(deleted)), *deleted, b"\0"] if deleted else [b"\0"]
    return number(len(columns)), columns, b"".join((*behind, b"\0"))


def _columns(names: Set[str], table: ImageTable) -> tuple[str, ...]:
    """The columns of a whole image: those of the table, then others."""
    return table.regular if names <= table.known else (*table.regular, *sorted(names - table.known))
