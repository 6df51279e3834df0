"""Definition of images: the preimages and postimages of a write, and the states of its rows afterwards. One write at a
time.

For each timestamp of the write, the log has preimages (static columns first, then rows by clustering key), the ordinary
rows, and postimages in the same order as preimages. All are numbered together.

==============  =====================================================================================================
a row is        by inserts and updates, in their columns; by a row delete, in all columns. In a table without clustering
*touched*       key also by a partition delete. Range deletes, and partition deletes of many rows, touch no row
preimage        of each touched row that existed before; ``true``: touched columns, ``full``: all columns. A column that
                was null is among the deleted ones
postimage       of each touched row that exists afterwards: all columns that are not null
==============  =====================================================================================================

A row *exists* if a reader of the table sees it at the append time of the write. The last write of each cell wins, in
order of timestamps, and expired cells are gone. All columns are those of the table in the context, of the row, and of
the write. Images contain keys but no times to live.

Source: ScyllaDB, ``cdc/log.cc`` and ``cdc/split.cc``, with two differences. There, a write with an older timestamp
overwrites a row within its own images. A row whose last column becomes null no longer exists, but has an empty
postimage there. Neither happens here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from immutables import Map

from ringlog.kernel.rows.cells import NOTHING, under
from ringlog.kernel.rows.log_rows import INSERT, PARTITION_DELETE, POSTIMAGE, PREIMAGE, ROW_DELETE, UPDATE, fold
from ringlog.kernel.rows.partition import PartitionState, only
from ringlog.kernel.rows.reading import seen
from ringlog.kernel.values import Value, replace
from ringlog.wire.records import Cell
from ringlog_cdc.definition.image_states import (
    clustering_of,
    common_key,
    kept_common,
    kept_row,
    partition_prefix,
    row_key,
    whole_partition,
    whole_row,
)
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.split import Key, Piece, keys_only

Values = Mapping[str, bytes]
"""Column name to value."""


class States(Protocol):
    """Storage of row states: plain tuples by key.

    A change is visible at once, and becomes durable with its plan part. This is a port: files and the simulated disk
    pass one suite (``tests/cdc/images/test_states_conformance.py``).
    """

    def number(self, name: str, table: ImageTable) -> int:
        """Return the number of a table in keys. A table recreated with the same name gets another one."""
        ...

    def forget(self, name: str, table: str) -> None:
        """Drop the states of the table with this full name and id, if it has any."""
        ...

    def get(self, key: bytes) -> Any:
        """Return the state of a key, or None."""
        ...

    def has_common(self, key: bytes) -> bool:
        """Return False if no partition of the key's table has common state. The check costs little."""
        ...

    def fetch(self, keys: Iterable[bytes]) -> None:
        """Prefetch the states of these keys."""
        ...

    def put(self, key: bytes, value: Any) -> None:
        """Store a state. None deletes it."""
        ...

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """Return the keys with this prefix, in ascending order."""
        ...


class Imaged(Value):
    """The rows of a write with images, and the states to store once the write is actually logged."""

    pieces: tuple[Piece, ...]
    states: Mapping[bytes, Any]


def imaged(
    states: States, name: str, table: ImageTable, composed: bytes, pieces: Sequence[Piece], now: int, only_keys: bool
) -> Imaged:
    """Add the images to a write.

    Args:
        states: States of rows.
        name: Full name of the table.
        table: The table.
        composed: Composed partition key.
        pieces: Pieces of the write, by ascending timestamp.
        now: Append time, microseconds.
        only_keys: The log has only the keys of the ordinary rows. Images are complete.
    """
    prefix = partition_prefix(states.number(name, table), composed)
    has_rows = table.columns.has_rows
    keys = dict.fromkeys(piece.clustering_key for piece in pieces if _is_of_row(piece, table))
    common = _present(states.get(common_key(prefix)), now) if has_rows else None
    rows = {key: _present(states.get(row_key(prefix, key)), now) for key in keys}
    state = whole_partition(table.columns, common, rows)
    # Cells of dropped columns may still be in the states, and must not appear in an image.
    if table.respelled:
        state = only(state, {*table.regular, *table.static})
    found: list[Piece] = []
    first = state
    for _, group in groupby(pieces, key=attrgetter("timestamp")):
        own, before = tuple(group), state
        state = fold(state, own, table.columns)
        found += _numbered(own, _Touched(own, table), before, state, table, now, only_keys)
    left: dict[bytes, Any] = {}
    for key in keys:
        row = state.rows.get(key, NOTHING)
        # A partition without clustering key is its only row, so the partition's tombstone is the row's.
        if not has_rows:
            row = replace(row, deleted=max(row.deleted, state.deleted))
        left[row_key(prefix, key)] = kept_row(row, now, table.ttl)
    if has_rows and (state.deleted, state.ranges, state.static) != (first.deleted, first.ranges, first.static):
        # Stored only if the write changed it: most tables have partitions without common state.
        left[common_key(prefix)] = kept_common(state, now, table.ttl)
    if has_rows and (state.deleted, state.ranges) != (first.deleted, first.ranges):
        left |= _purged(states, prefix, state, table, left.keys(), now)
    return Imaged(tuple(found), left)


def _present(state: Any, now: int) -> Any:
    """Return the state, or None if it has expired."""
    return None if state is None or state[0] <= now else state


def _is_of_row(piece: Piece, table: ImageTable) -> bool:
    """Return True if the piece is about a single row."""
    if not table.columns.has_rows:
        return True
    return piece.operation in (INSERT, UPDATE, ROW_DELETE) and bool(piece.clustering_key)


def _purged(
    states: States, prefix: bytes, state: PartitionState, table: ImageTable, done: Iterable[bytes], now: int
) -> dict[bytes, Any]:
    """Return the remaining states of the partition's other rows, after new tombstones.

    The tombstones are dropped some day. From then on only the states can tell that these rows are gone.
    """
    left: dict[bytes, Any] = {}
    for key in states.under(prefix + b"\1"):
        row = _present(states.get(key), now)
        if row is None or key in done:
            continue
        known = whole_row(row)
        rest = under(known, table.columns.gone(state, clustering_of(prefix, key)))
        if rest != known:
            left[key] = kept_row(rest, now, table.ttl)
    return left


# ---------------------------------------------------------------------------------------------------------- images


class _Touched:
    """The cells that the pieces of one timestamp touch.

    Attributes:
        static: Static columns.
        rows: Clustering key to columns (None: all), in the order of the keys.
    """

    def __init__(self, pieces: Sequence[Piece], table: ImageTable) -> None:
        self.static: set[str] = set()
        rows: dict[Key, set[str] | None] = {}
        for piece in pieces:
            if piece.operation in (INSERT, UPDATE):
                columns = {cell.column for cell in piece.cells} | {*piece.deleted}
                columns |= {found.column for found in piece.deleted_elements}
                if table.columns.has_rows and not piece.clustering_key:
                    self.static |= columns
                elif (known := rows.setdefault(piece.clustering_key, set())) is not None:
                    known |= columns
            elif piece.operation == ROW_DELETE or (piece.operation == PARTITION_DELETE and not table.columns.has_rows):
                rows[piece.clustering_key] = None
        self.rows = {key: rows[key] for key in sorted(rows, key=table.columns.order)}


def _numbered(
    own: tuple[Piece, ...],
    touched: _Touched,
    before: PartitionState,
    after: PartitionState,
    table: ImageTable,
    now: int,
    only_keys: bool,
) -> list[Piece]:
    """Return the pieces of one timestamp with their images, numbered."""
    timestamp = own[0].timestamp
    found: list[Piece] = []
    if table.preimage != "false":
        for key, columns, values in _there(touched, before, table, now):
            names = columns if table.preimage == "true" else None
            found.append(preimage(timestamp, key, _all(key, values, columns, names, table), values))
    found += keys_only(own) if only_keys else own
    if table.postimage:
        for key, _, values in _there(touched, after, table, now):
            found.append(postimage(timestamp, key, _all(key, values, None, None, table), values))
    last = len(found) - 1
    return [replace(piece, batch_seq_no=place, end_of_batch=place == last) for place, piece in enumerate(found)]


def preimage(timestamp: int, key: Key, columns: Sequence[str], values: Values) -> Piece:
    """Return the preimage of a row with these columns, not numbered yet."""
    cells = tuple(Cell(column, values[column]) for column in columns if column in values)
    deleted = tuple(column for column in columns if column not in values)
    return Piece(timestamp, 0, False, PREIMAGE, None, key, cells, deleted)


def postimage(timestamp: int, key: Key, columns: Sequence[str], values: Values) -> Piece:
    """Return the postimage of a row with these columns, not numbered yet."""
    return replace(preimage(timestamp, key, columns, values), operation=POSTIMAGE, deleted=())


def _there(
    touched: _Touched, state: PartitionState, table: ImageTable, now: int
) -> Iterable[tuple[Key, set[str] | None, Values]]:
    """Yield (clustering key, touched columns, values) of everything that is touched and exists.

    Static columns have an empty key.
    """
    if touched.static:
        # Without rows, the reader returns the static columns alone.
        for row in seen(replace(state, rows=Map()), table.columns, now):
            yield (), touched.static, row.static
    rows = {row.clustering_key: row.values for row in seen(state, table.columns, now)}
    for key, columns in touched.rows.items():
        if key in rows:
            yield key, columns, rows[key]


def _all(
    key: Key, values: Values, touched: set[str] | None, names: set[str] | None, table: ImageTable
) -> tuple[str, ...]:
    """Return the columns of an image in order: those of the table, then others. Only ``names`` if given."""
    known = table.static if table.columns.has_rows and not key else table.regular
    if names is not None:
        return (*(column for column in known if column in names), *sorted(names - {*known}))
    return (*known, *sorted({*values, *(touched or ())} - {*known}))
