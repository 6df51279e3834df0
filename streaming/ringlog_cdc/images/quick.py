"""Images of plain writes to tables whose columns are one cell each: the definition's, put together from bytes.

The row that is logged anyway is there already (``ringlog_cdc.columnar.encode``), and an image shares with it all but
its number, its operation and its cells. What is to be done with a state is little then: look it up, read it, change it.
Whatever is not as simple (partitions with tombstones, rows that would be too large, deletes of partitions) goes to the
definition, write by write, in the order of the topic. Both ways leave the same states and say the same, byte for byte;
a property test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ringlog.client.cdc.rows import INSERT, POSTIMAGE, PREIMAGE, ROW_DELETE
from ringlog.kernel.rows.cells import NEVER
from ringlog_cdc.columnar.pieces import encoded_numbers
from ringlog_cdc.images.state import FOR_EVER, Row, Version, forgotten_at
from ringlog_cdc.images.tables import ImageTable

Values = dict[str, bytes]
Cells = Sequence[tuple[str, bytes | None]]


@lru_cache(maxsize=1 << 16)
def number(value: int) -> bytes:
    """A zigzag number."""
    table, lengths = encoded_numbers(np.array([value], dtype=np.int64))
    return table[0, : int(lengths[0])].tobytes()


@lru_cache(maxsize=1 << 12)
def text(value: str) -> bytes:
    """A text behind its length."""
    data = value.encode()
    return number(len(data)) + data


class Plain(NamedTuple):
    """A plain write. ``row``: as it is logged without images; its number stands at ``at``; ``shared``, from where to
    where: what images have of it too, from the table's name to the clustering key. ``expires``: when its cells do.
    """

    row: bytes
    at: int
    shared: tuple[int, int]
    operation: int
    timestamp: int
    expires: int | None
    cells: Cells


def live(row: Row | None, now: int) -> Values | None:
    """The columns of a row that are not null; None if there is no such row. It is in normal form."""
    if row is None:
        return None
    marker = row[2]
    found = {
        column: value
        for column, (_, value, expires) in row[3].items()
        if value is not None and (expires is None or expires > now)
    }
    if found or (marker is not None and (marker[2] is None or marker[2] > now)):
        return found
    return None


def changed(row: Row | None, write: Plain, now: int, ttl: int) -> Row | None:
    """The row after a write; None: nothing is kept of it."""
    _, deleted, marker, cells, _, _ = row if row is not None else _NO_ROW
    at = write.timestamp
    if write.operation == ROW_DELETE:
        if at > deleted:
            deleted = at
            cells = {column: one for column, one in cells.items() if one[0] > at}
            marker = None if marker is not None and marker[0] <= at else marker
    elif at > deleted:
        cells = cells.copy()
        for column, value in write.cells:
            made = (at, value, None if value is None else write.expires)
            known = cells.get(column)
            if known is None or at > known[0] or (at == known[0] and made != known and _rank(made) > _rank(known)):
                cells[column] = made
        if write.operation == INSERT:
            made = (at, b"", write.expires)
            if marker is None or at > marker[0] or (at == marker[0] and _rank(made) > _rank(marker)):
                marker = made
    if marker is not None and marker[2] is None and not ttl:
        return (FOR_EVER, deleted, marker, cells, {}, {})
    if deleted == NEVER and marker is None and not cells:
        return None
    every: Iterable[Version] = cells.values() if marker is None else (*cells.values(), marker)
    return (forgotten_at(every, now, ttl), deleted, marker, cells, {}, {})


_NO_ROW: Row = (0, NEVER, None, {}, {}, {})


def _rank(version: Version) -> tuple[bool, bool, int, bytes]:
    """Of two versions of one timestamp the one of the greater rank wins."""
    _, value, expires = version
    return value is None, expires is not None, expires or 0, value or b""


def rows_of(write: Plain, before: Values | None, after: Values | None, table: ImageTable) -> list[bytes]:
    """The rows of a write with its images, encoded. ``before``, ``after``: the row, None: it is not there, or its
    postimage is not wanted.
    """
    row, at, (begin, end) = write.row, write.at, write.shared
    head, shared = row[:at], row[begin:end]
    found: list[bytes] = []
    columns: Sequence[str]
    if before is not None and table.preimage != "false":
        touched = dict(write.cells).keys()
        if write.operation == ROW_DELETE:
            columns = _columns(before.keys(), table)
        elif table.preimage == "true":
            columns = [*(column for column in table.regular if column in touched), *sorted(touched - table.known)]
        else:
            columns = _columns(before.keys() | touched, table)
        found.append(_image(head, 0, PREIMAGE, False, shared, columns, before))
    if found or after is not None:
        ends = _FLAGS[after is None]
        found.append(b"".join((head, number(len(found)), row[at + 1 : begin - 1], ends, row[begin:])))
    else:
        found.append(row)
    if after is not None:
        found.append(_image(head, len(found), POSTIMAGE, True, shared, _columns(after.keys(), table), after))
    return found


_FLAGS = (b"\0", b"\1")


def _columns(names: Set[str], table: ImageTable) -> Sequence[str]:
    """The columns of a whole image: those of the table, then others."""
    return table.regular if names <= table.known else (*table.regular, *sorted(names - table.known))


def _image(
    head: bytes, place: int, operation: int, last: bool, shared: bytes, columns: Sequence[str], values: Values
) -> bytes:
    """An encoded image: those columns. Without time to live; what is null stands among the deleted of a preimage."""
    parts = [head, number(place), number(operation), b"\0", _FLAGS[last], shared, b""]
    deleted = []
    for column in columns:
        value = values.get(column)
        if value is None:
            deleted.append(text(column))
        else:
            parts += (text(column), b"\2", number(len(value)), value)
    filled = len(columns) - len(deleted)
    parts[6] = number(filled)
    if filled:
        parts.append(b"\0")
    if deleted and operation == PREIMAGE:
        parts += (number(len(deleted)), *deleted, b"\0")
    else:
        parts.append(b"\0")
    parts.append(b"\0")
    return b"".join(parts)
