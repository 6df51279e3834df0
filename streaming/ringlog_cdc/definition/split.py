"""Split of a write into the rows of the CDC log, as ScyllaDB does it.

First the statements of the write are merged into one: for each cell, row marker and tombstone, the newest version
counts. A collection that is not frozen consists of a tombstone for its earlier content and cells for its elements. The
tombstone of a statement at time t applies at t - 1 µs, so the elements of the same statement survive it. In the log it
has the statement's time.

Then the pieces are ordered:

1. By ascending timestamp. Each timestamp has its own ``cdc$time`` and numbers its rows from 0. The last row ends the
   batch.
2. Within a timestamp: static columns, inserts, updates, row deletes, range deletes (two rows, start and end), partition
   delete.
3. Static columns, inserts and updates by time to live, rows without one first. Otherwise rows keep the order of the
   write.

Rules for a single row of the log:

* It has one time to live. Cells with another one form another row. A null cell has no time to live and joins the cells
  that do not expire.
* An insert is the row marker together with the cells of its timestamp and time to live. It can replace a collection but
  not add elements, which follow as an update.
* A later insert of a row takes over the marker. The earlier one becomes an update.
* A range that cannot contain a row produces no rows, nor does a statement that changes nothing.

Unlike ScyllaDB, overlapping range deletes of one write are logged as written, not merged into disjoint ranges.

Source: ScyllaDB, ``cdc/split.cc`` and its black-box tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ringlog.kernel.cql.collections import cells_of, key_type, value_of
from ringlog.kernel.cql.order import is_empty_range, sort_key
from ringlog.kernel.generations.statements import TableShape, is_static_only
from ringlog.kernel.rows import log_rows
from ringlog.kernel.values import Value, replace
from ringlog.wire.records import (
    INSERT,
    PARTITION_DELETE,
    RANGE_DELETE,
    ROW_DELETE,
    Bounds,
    Cell,
    DeletedElements,
    Mutation,
    MutationStatement,
)

Key = tuple[bytes | None, ...]
"""Components of a clustering key."""
Ttl = int
"""Seconds. 0: the cell does not expire, which sorts first."""

Version = tuple[int, bool, Ttl, bytes]
"""(timestamp, is null, time to live, value) of a cell. The greater of two versions counts. As in ScyllaDB, an expiring
cell wins over a permanent one, and a later expiry over a greater value.
"""


class Piece(Value):
    """One row of the log, without the fields that all rows of a write share. ``timestamp`` is in microseconds."""

    timestamp: int
    batch_seq_no: int
    end_of_batch: bool
    operation: int
    ttl: int | None
    clustering_key: Key
    cells: tuple[Cell, ...] = ()
    deleted: tuple[str, ...] = ()
    deleted_elements: tuple[DeletedElements, ...] = ()


def split(mutation: Mutation, table: TableShape) -> tuple[Piece, ...]:
    """Split a valid mutation into its rows, in the order of the log. The table's CDC options are ignored."""
    write = _Write(table)
    first = MutationStatement(
        mutation.operation,
        mutation.clustering_key,
        mutation.cells,
        mutation.timestamp,
        mutation.ttl or 0,
        mutation.deleted_elements,
        mutation.replaced,
        mutation.bounds,
    )
    for change in (first, *mutation.more):
        timestamp = mutation.timestamp if change.timestamp is None else change.timestamp
        write.take(change, timestamp, first.ttl or 0 if change.ttl is None else change.ttl)
    return tuple(piece for timestamp in sorted(write.groups()) for piece in _numbered(write.groups()[timestamp]))


def keys_only(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the pieces for a log that contains only the keys of the changed rows."""
    return tuple(replace(piece, cells=(), deleted=(), deleted_elements=()) for piece in pieces)


def _numbered(pieces: list[Piece]) -> Iterator[Piece]:
    """Yield the pieces of one timestamp with their numbers."""
    for number, piece in enumerate(pieces):
        yield replace(piece, batch_seq_no=number, end_of_batch=number == len(pieces) - 1)


# --------------------------------------------------------------------------------------- statements become one


@dataclass(slots=True)
class _Collection:
    """A collection in a write.

    Attributes:
        tombstone: Timestamp of the statement that replaced the collection, as in the log. None: earlier content stays.
        elements: Key of each element to its version.
    """

    tombstone: int | None = None
    elements: dict[bytes, Version] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """Changes of a write to one row, or to the static columns.

    Attributes:
        marker: (timestamp, time to live) of the newest insert.
        deleted_at: Timestamp of the newest row delete.
    """

    marker: tuple[int, Ttl] | None = None
    deleted_at: int | None = None
    cells: dict[str, Version] = field(default_factory=dict)
    collections: dict[str, _Collection] = field(default_factory=dict)


class _Write:
    """A whole write, with the newest version of everything."""

    def __init__(self, table: TableShape) -> None:
        self._table = table
        self._types = dict(table.collections)
        self._static = _Row()
        self._rows: dict[Key, _Row] = {}
        self._ranges: list[tuple[int, Bounds]] = []
        self._partition: int | None = None
        self._groups: dict[int, list[Piece]] | None = None

    def take(self, change: MutationStatement, timestamp: int, ttl: Ttl) -> None:
        """Merge one statement."""
        if change.operation == PARTITION_DELETE:
            self._partition = _later(self._partition, timestamp)
        elif change.operation == RANGE_DELETE:
            assert change.bounds is not None, "a range delete has bounds"
            self._ranges.append((timestamp, change.bounds))
        elif change.operation == ROW_DELETE:
            row = self._row(change.clustering_key)
            row.deleted_at = _later(row.deleted_at, timestamp)
        else:
            self._upsert(change, timestamp, ttl)

    def _upsert(self, change: MutationStatement, timestamp: int, ttl: Ttl) -> None:
        """Merge an insert or update."""
        # An insert that names only static columns and no clustering key makes no row.
        whole_row = not (is_static_only(change, self._table) and not change.clustering_key)
        if change.operation == INSERT and (whole_row or not self._table.clustering_key):
            row = self._row(change.clustering_key)
            row.marker = max(row.marker or (timestamp, ttl), (timestamp, ttl))
        for column in change.replaced:
            self._tombstone(change, column, timestamp)
        for cell in change.cells:
            kind = self._types.get(cell.column)
            if kind is None:
                version = (timestamp, cell.value is None, 0 if cell.value is None else ttl, cell.value or b"")
                cells = self._of(change, cell.column).cells
                cells[cell.column] = max(cells.get(cell.column, version), version)
            elif cell.value is None:
                self._tombstone(change, cell.column, timestamp)
            else:
                for key, value in cells_of(kind, cell.value):
                    self._element(change, cell.column, key, (timestamp, False, ttl, value))
        for taken in change.deleted_elements:
            for key in taken.keys:
                self._element(change, taken.column, key, (timestamp, True, 0, b""))

    def _of(self, change: MutationStatement, column: str) -> _Row:
        """Return the row that holds the column: the static one, or the one of the statement's key."""
        return self._static if column in self._table.static else self._row(change.clustering_key)

    def _row(self, key: Key) -> _Row:
        return self._rows.setdefault(key, _Row())

    def _collection(self, change: MutationStatement, column: str) -> _Collection:
        return self._of(change, column).collections.setdefault(column, _Collection())

    def _tombstone(self, change: MutationStatement, column: str, timestamp: int) -> None:
        found = self._collection(change, column)
        found.tombstone = _later(found.tombstone, timestamp)

    def _element(self, change: MutationStatement, column: str, key: bytes, version: Version) -> None:
        elements = self._collection(change, column).elements
        elements[key] = max(elements.get(key, version), version)

    # ------------------------------------------------------------------------------------- and become rows

    def groups(self) -> dict[int, list[Piece]]:
        """Return timestamp to its pieces in order, not numbered yet."""
        if self._groups is None:
            self._groups = {}
            for piece in sorted(self._pieces(), key=_rank):
                self._groups.setdefault(piece.timestamp, []).append(piece)
        return self._groups

    def _pieces(self) -> Iterator[Piece]:
        """Yield all pieces, unordered except that rows keep the order of the write.

        ``batch_seq_no`` holds the rank of the piece's kind until the pieces are numbered.
        """
        yield from self._changes(self._static, (), 0)
        for key, row in self._rows.items():
            yield from self._changes(row, key, 2)
            if row.deleted_at is not None:
                yield Piece(row.deleted_at, 3, False, log_rows.ROW_DELETE, None, key)
        for timestamp, bounds in self._ranges:
            types = self._table.clustering_types or ("blob",) * self._table.clustering_key
            if not is_empty_range(types, bounds.start, bounds.start_inclusive, bounds.end, bounds.end_inclusive):
                start = (
                    log_rows.START_INCLUSIVE if bounds.start_inclusive or not bounds.start else log_rows.START_EXCLUSIVE
                )
                end = log_rows.END_INCLUSIVE if bounds.end_inclusive or not bounds.end else log_rows.END_EXCLUSIVE
                yield Piece(timestamp, 4, False, start, None, bounds.start)
                yield Piece(timestamp, 4, False, end, None, bounds.end)
        if self._partition is not None:
            yield Piece(self._partition, 5, False, log_rows.PARTITION_DELETE, None, ())

    def _changes(self, row: _Row, key: Key, kind: int) -> Iterator[Piece]:
        """Yield inserts and updates of one row.

        Args:
            row: The row.
            key: Its clustering key.
            kind: Rank of its updates. An insert ranks one lower.
        """
        parts: dict[tuple[int, Ttl], _Part] = {}
        for column, (timestamp, dead, ttl, value) in row.cells.items():
            part = parts.setdefault((timestamp, ttl), _Part())
            if dead:
                part.deleted.append(column)
            else:
                part.cells.append(Cell(column, value))
        for column, collection in row.collections.items():
            self._spread(column, collection, parts)
        if row.marker is not None:
            parts.setdefault(row.marker, _Part())
        for (timestamp, ttl), part in parts.items():
            where = (key, timestamp, ttl or None)
            if (timestamp, ttl) != row.marker:
                yield part.piece(kind, log_rows.UPDATE, *where)
                continue
            # Added elements cannot be part of an insert, so they follow as an update.
            rest = part.additions()
            yield part.piece(kind - 1, log_rows.INSERT, *where)
            if rest is not None:
                yield rest.piece(kind, log_rows.UPDATE, *where)

    def _spread(self, column: str, collection: _Collection, parts: dict[tuple[int, Ttl], _Part]) -> None:
        """Add a collection's tombstone and elements to the parts with their timestamps and times to live."""
        if collection.tombstone is not None:
            part = parts.setdefault((collection.tombstone, 0), _Part())
            part.deleted.append(column)
        added: dict[tuple[int, Ttl], list[tuple[bytes, bytes]]] = {}
        taken: dict[tuple[int, Ttl], list[bytes]] = {}
        kind = self._types[column]
        for element in sorted(collection.elements, key=lambda key: sort_key(key_type(kind), key)):
            timestamp, dead, ttl, value = collection.elements[element]
            # Equal timestamps survive: the tombstone applies 1 µs earlier than its number in the log.
            if collection.tombstone is not None and timestamp < collection.tombstone:
                continue
            if dead:
                taken.setdefault((timestamp, ttl), []).append(element)
            else:
                added.setdefault((timestamp, ttl), []).append((element, value))
        for place, pairs in added.items():
            parts.setdefault(place, _Part()).added.append(Cell(column, value_of(kind, pairs)))
        for place, keys in taken.items():
            parts.setdefault(place, _Part()).taken.append(DeletedElements(column, tuple(keys)))


@dataclass(slots=True)
class _Part:
    """Changes to a row with one timestamp and time to live: cells, deleted columns, added and removed elements."""

    cells: list[Cell] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    added: list[Cell] = field(default_factory=list)
    taken: list[DeletedElements] = field(default_factory=list)

    def additions(self) -> _Part | None:
        """Remove and return the changes that an insert cannot express: elements of collections that it does not
        replace.

        Return None if there are none.
        """
        rest = _Part(added=[cell for cell in self.added if cell.column not in self.deleted], taken=self.taken)
        self.added = [cell for cell in self.added if cell.column in self.deleted]
        self.taken = []
        return rest if rest.added or rest.taken else None

    def piece(self, kind: int, operation: int, key: Key, timestamp: int, ttl: int | None) -> Piece:
        """Return the piece. ``kind`` is its rank, held in ``batch_seq_no`` until the pieces are numbered."""
        cells, deleted = (*self.cells, *self.added), tuple(self.deleted)
        return Piece(timestamp, kind, False, operation, ttl, key, cells, deleted, tuple(self.taken))


def _rank(piece: Piece) -> tuple[int, int, int]:
    """Return the sort key of a piece: timestamp, kind, time to live.

    The sort is stable, so equal pieces keep their order.
    """
    return piece.timestamp, piece.batch_seq_no, piece.ttl or 0


def _later(one: int | None, other: int) -> int:
    return other if one is None else max(one, other)
