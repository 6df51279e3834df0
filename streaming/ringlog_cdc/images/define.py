"""What images a write has, and what its rows are afterwards. The definition, one write at a time.

For each timestamp of the write, on the rows as they were before it: preimages (of the static columns, then of rows in
the order of the clustering key), what is logged anyway, postimages in the same order. All are numbered together.

==============  =====================================================================================================
a row is        by inserts and updates: those columns; by a row delete, in a table without clustering key also by a
*touched*       delete of the partition: all columns. Deletes of ranges, and of partitions with many rows: none
preimage        of each touched row that was there; ``true``: touched columns, ``full``: all. A column that was null
                stands among the deleted ones
postimage       of each touched row that is there afterwards: all columns that are not null
==============  =====================================================================================================

*There* is what a reader of the table sees at the append time of the write: the last write of each cell wins, whatever
came later; what has expired is gone. All columns are those that the table has by the context, that the row has, or that
the write names. Keys are always there; times to live are not.

Source: ScyllaDB, ``cdc/log.cc`` and ``cdc/split.cc``. There a write with an older timestamp overwrites a row within its
own images, and a row whose last column becomes null, which is no row any more, has an empty postimage; here neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from immutables import Map

from ringlog.client.cdc.copies.partition import fold
from ringlog.client.cdc.rows import (
    INSERT,
    PARTITION_DELETE,
    POSTIMAGE,
    PREIMAGE,
    ROW_DELETE,
    UPDATE,
)
from ringlog.kernel.rows.cells import NOTHING, under
from ringlog.kernel.rows.partition import PartitionState, only
from ringlog.kernel.rows.reading import seen
from ringlog.wire.records import Cell
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.split import Key, Piece, keys_only
from ringlog_cdc.images.state import (
    clustering_of,
    common_key,
    kept_common,
    kept_row,
    partition_prefix,
    row_key,
    whole_partition,
    whole_row,
)

Values = Mapping[str, bytes]


class States(Protocol):
    """Where the states of rows lie: plain tuples by key. What is put counts at once, for good only with its part.

    A port: files and the simulated disk pass one suite (``tests/cdc/images/test_states_conformance.py``).
    """

    def number(self, name: str, table: ImageTable) -> int:
        """What stands for a table in keys; a table made anew under the same name has another one."""
        ...

    def forget(self, name: str, table: str) -> None:
        """Forget the states of the table with that full name and id, if there are any."""
        ...

    def get(self, key: bytes) -> Any:
        """The state of that key, None if there is none."""
        ...

    def has_common(self, key: bytes) -> bool:
        """False if no partition of the key's table has a state of what its rows have in common."""
        ...

    def fetch(self, keys: Iterable[bytes]) -> None:
        """The states of these keys are going to be asked for."""
        ...

    def put(self, key: bytes, value: Any) -> None:
        """Keep a state; None: none."""
        ...

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """The keys that begin with it, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Imaged:
    """The rows of a write, and the states that it leaves behind once it is really logged."""

    pieces: tuple[Piece, ...]
    states: Mapping[bytes, Any]


def imaged(
    states: States, name: str, table: ImageTable, composed: bytes, pieces: Sequence[Piece], now: int, only_keys: bool
) -> Imaged:
    """The write of these pieces, by ascending timestamp, with its images.

    ``composed``: partition key; ``only_keys``: the log has no more of what changed. Images have all they have.
    """
    prefix = partition_prefix(states.number(name, table), composed)
    has_rows = table.shape.has_rows
    keys = dict.fromkeys(piece.clustering_key for piece in pieces if _is_of_row(piece, table))
    common = _present(states.get(common_key(prefix)), now) if has_rows else None
    rows = {key: _present(states.get(row_key(prefix, key)), now) for key in keys}
    state = whole_partition(table.shape.columns, common, rows)
    if table.respelled:
        state = only(state, {*table.regular, *table.static})
    found: list[Piece] = []
    first = state
    for _, group in groupby(pieces, key=attrgetter("timestamp")):
        own, before = tuple(group), state
        state = fold(state, own, table.shape)
        found += _numbered(own, _Touched(own, table), before, state, table, now, only_keys)
    left: dict[bytes, Any] = {}
    for key in keys:
        row = state.rows.get(key, NOTHING)
        if not has_rows:
            row = replace(row, deleted=max(row.deleted, state.deleted))
        left[row_key(prefix, key)] = kept_row(row, now, table.ttl)
    if has_rows and (state.deleted, state.ranges, state.static) != (first.deleted, first.ranges, first.static):
        left[common_key(prefix)] = kept_common(state, now, table.ttl)
    if has_rows and (state.deleted, state.ranges) != (first.deleted, first.ranges):
        left |= _purged(states, prefix, state, table, left.keys(), now)
    return Imaged(tuple(found), left)


def _present(state: Any, now: int) -> Any:
    """A state that is not forgotten."""
    return None if state is None or state[0] <= now else state


def _is_of_row(piece: Piece, table: ImageTable) -> bool:
    """Is it about one row, not about static columns, a range or a partition of many rows?"""
    if not table.shape.has_rows:
        return True
    return piece.operation in (INSERT, UPDATE, ROW_DELETE) and bool(piece.clustering_key)


def _purged(
    states: States, prefix: bytes, state: PartitionState, table: ImageTable, done: Iterable[bytes], now: int
) -> dict[bytes, Any]:
    """What is left of the other rows of a partition under its tombstones: once these are forgotten nobody else knows
    that the rows are gone.
    """
    left: dict[bytes, Any] = {}
    for key in states.under(prefix + b"\1"):
        row = _present(states.get(key), now)
        if row is None or key in done:
            continue
        known = whole_row(row)
        rest = under(known, table.shape.columns.gone(state, clustering_of(prefix, key)))
        if rest != known:
            left[key] = kept_row(rest, now, table.ttl)
    return left


# ---------------------------------------------------------------------------------------------------------- images


class _Touched:
    """What the pieces of one timestamp touch: ``static``, and rows in the order of their keys; None: all columns."""

    def __init__(self, pieces: Sequence[Piece], table: ImageTable) -> None:
        self.static: set[str] = set()
        rows: dict[Key, set[str] | None] = {}
        for piece in pieces:
            if piece.operation in (INSERT, UPDATE):
                columns = {cell.column for cell in piece.cells} | {*piece.deleted}
                columns |= {found.column for found in piece.deleted_elements}
                if table.shape.has_rows and not piece.clustering_key:
                    self.static |= columns
                elif (known := rows.setdefault(piece.clustering_key, set())) is not None:
                    known |= columns
            elif piece.operation == ROW_DELETE or (piece.operation == PARTITION_DELETE and not table.shape.has_rows):
                rows[piece.clustering_key] = None
        self.rows = {key: rows[key] for key in sorted(rows, key=table.shape.columns.order)}


def _numbered(
    own: tuple[Piece, ...],
    touched: _Touched,
    before: PartitionState,
    after: PartitionState,
    table: ImageTable,
    now: int,
    only_keys: bool,
) -> list[Piece]:
    """The pieces of one timestamp with their images."""
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
    """The preimage of a row: those columns. It is not numbered yet."""
    cells = tuple(Cell(column, values[column]) for column in columns if column in values)
    deleted = tuple(column for column in columns if column not in values)
    return Piece(timestamp, 0, False, PREIMAGE, None, key, cells, deleted)


def postimage(timestamp: int, key: Key, columns: Sequence[str], values: Values) -> Piece:
    """The postimage of a row, likewise."""
    return replace(preimage(timestamp, key, columns, values), operation=POSTIMAGE, deleted=())


def _there(
    touched: _Touched, state: PartitionState, table: ImageTable, now: int
) -> Iterable[tuple[Key, set[str] | None, Values]]:
    """(clustering key, touched columns, values) of what is touched and there; static columns have an empty key."""
    if touched.static:
        for row in seen(replace(state, rows=Map()), table.shape.columns, now):
            yield (), touched.static, row.static
    rows = {row.clustering_key: row.values for row in seen(state, table.shape.columns, now)}
    for key, columns in touched.rows.items():
        if key in rows:
            yield key, columns, rows[key]


def _all(
    key: Key, values: Values, touched: set[str] | None, names: set[str] | None, table: ImageTable
) -> tuple[str, ...]:
    """The columns of an image in their order, only ``names`` if there are any: those of the table, then others."""
    known = table.static if table.shape.has_rows and not key else table.regular
    if names is not None:
        return (*(column for column in known if column in names), *sorted(names - {*known}))
    return (*known, *sorted({*values, *(touched or ())} - {*known}))
