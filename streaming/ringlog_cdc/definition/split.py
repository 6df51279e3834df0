"""A write taken apart into the rows of the CDC log, as ScyllaDB does it (``cdc/split.cc`` and its black-box tests).

First the statements of the write become one: of what they say of one cell, one row's marker, one tombstone, the newest
counts. A collection that is not frozen is a tombstone for what was in it and cells for its elements; the tombstone of
a statement at time t is at t - 1 µs, so that the elements of the same statement outlive it, and in the log it has the
statement's time again.

Then the pieces are put in order:

1. by timestamp, ascending: each has its own ``cdc$time``, and numbers its rows from 0; the last one ends the batch;
2. within a timestamp: static columns, inserts, updates, row deletes, range deletes (two rows, start and end), the
   delete of the partition;
3. inserts, updates and static columns by time to live, none first; rows in the order in which the write names them.

A row of the log has one time to live, so cells of another one are another row. Null has none: it joins the cells that
stay for ever. An insert is the row marker with the cells of its timestamp and time to live. It can say that a
collection is replaced, but not that elements are added to one: those follow as an update. A later insert of a row
takes the marker from an earlier one, which then is an update. A range in which no row can lie gives no rows, nor does
a statement that changes nothing.

What is simpler here than in ScyllaDB: overlapping range deletes of one write are logged as they were written, not
merged into disjoint ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ringlog.kernel.cql.collections import cells_of, key_type, value_of
from ringlog.kernel.cql.order import is_empty_range, sort_key
from ringlog.kernel.generations.statements import TableShape, is_static_only
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

UPDATED, INSERTED, ROW_DELETED, PARTITION_DELETED = 1, 2, 3, 4
START_INCLUSIVE, START_EXCLUSIVE, END_INCLUSIVE, END_EXCLUSIVE = 5, 6, 7, 8
"""Codes of ``cdc$operation``."""

Key = tuple[bytes | None, ...]
Ttl = int
"""Seconds; 0 = never, which sorts first."""

Version = tuple[int, bool, Ttl, bytes]
"""(timestamp, dead, time to live, value) of a cell: of two, the greater one counts. As in ScyllaDB one that expires
counts before one that does not, and the later expiry before the greater value."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One row of the log, without what the whole write has in common. ``timestamp`` in microseconds."""

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
    """The rows of an acceptable mutation, in the order of the log. The table's CDC options are not looked at."""
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
    """The pieces for a log that holds only the keys of what changed."""
    return tuple(replace(piece, cells=(), deleted=(), deleted_elements=()) for piece in pieces)


def _numbered(pieces: list[Piece]) -> Iterator[Piece]:
    for number, piece in enumerate(pieces):
        yield replace(piece, batch_seq_no=number, end_of_batch=number == len(pieces) - 1)


# --------------------------------------------------------------------------------------- statements become one


@dataclass(slots=True)
class _Collection:
    """``tombstone``: as in the log, the statement's own time; None: nothing is deleted before."""

    tombstone: int | None = None
    elements: dict[bytes, Version] = field(default_factory=dict)


@dataclass(slots=True)
class _Row:
    """What the write says of one row, or of the static columns. ``marker``: (timestamp, time to live)."""

    marker: tuple[int, Ttl] | None = None
    deleted_at: int | None = None
    cells: dict[str, Version] = field(default_factory=dict)
    collections: dict[str, _Collection] = field(default_factory=dict)


class _Write:
    """A whole write, newest versions only."""

    def __init__(self, table: TableShape) -> None:
        self._table = table
        self._types = dict(table.collections)
        self._static = _Row()
        self._rows: dict[Key, _Row] = {}
        self._ranges: list[tuple[int, Bounds]] = []
        self._partition: int | None = None
        self._groups: dict[int, list[Piece]] | None = None

    def take(self, change: MutationStatement, timestamp: int, ttl: Ttl) -> None:
        """Add one statement."""
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
        """Timestamp to its rows in order, not numbered yet."""
        if self._groups is None:
            self._groups = {}
            for piece in sorted(self._pieces(), key=_rank):
                self._groups.setdefault(piece.timestamp, []).append(piece)
        return self._groups

    def _pieces(self) -> Iterator[Piece]:
        """All rows, without order but for that of the rows in the write; ``batch_seq_no`` says which kind one is."""
        yield from self._changes(self._static, (), 0)
        for key, row in self._rows.items():
            yield from self._changes(row, key, 2)
            if row.deleted_at is not None:
                yield Piece(row.deleted_at, 3, False, ROW_DELETED, None, key)
        for timestamp, bounds in self._ranges:
            types = self._table.clustering_types or ("blob",) * self._table.clustering_key
            if not is_empty_range(types, bounds.start, bounds.start_inclusive, bounds.end, bounds.end_inclusive):
                start = START_INCLUSIVE if bounds.start_inclusive or not bounds.start else START_EXCLUSIVE
                end = END_INCLUSIVE if bounds.end_inclusive or not bounds.end else END_EXCLUSIVE
                yield Piece(timestamp, 4, False, start, None, bounds.start)
                yield Piece(timestamp, 4, False, end, None, bounds.end)
        if self._partition is not None:
            yield Piece(self._partition, 5, False, PARTITION_DELETED, None, ())

    def _changes(self, row: _Row, key: Key, kind: int) -> Iterator[Piece]:
        """Inserts and updates of one row. ``kind``: rank of its updates; that of an insert is one less."""
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
                yield part.piece(kind, UPDATED, *where)
                continue
            rest = part.additions()
            yield part.piece(kind - 1, INSERTED, *where)
            if rest is not None:
                yield rest.piece(kind, UPDATED, *where)

    def _spread(self, column: str, collection: _Collection, parts: dict[tuple[int, Ttl], _Part]) -> None:
        """Put a collection's tombstone and elements into the parts of their timestamps and times to live."""
        if collection.tombstone is not None:
            part = parts.setdefault((collection.tombstone, 0), _Part())
            part.deleted.append(column)
        added: dict[tuple[int, Ttl], list[tuple[bytes, bytes]]] = {}
        taken: dict[tuple[int, Ttl], list[bytes]] = {}
        kind = self._types[column]
        for element in sorted(collection.elements, key=lambda key: sort_key(key_type(kind), key)):
            timestamp, dead, ttl, value = collection.elements[element]
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
    """What one timestamp and time to live say of a row: cells, columns deleted, elements added and taken out."""

    cells: list[Cell] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    added: list[Cell] = field(default_factory=list)
    taken: list[DeletedElements] = field(default_factory=list)

    def additions(self) -> _Part | None:
        """Take out what an insert cannot say: changes of elements in collections that it does not replace."""
        rest = _Part(added=[cell for cell in self.added if cell.column not in self.deleted], taken=self.taken)
        self.added = [cell for cell in self.added if cell.column in self.deleted]
        self.taken = []
        return rest if rest.added or rest.taken else None

    def piece(self, kind: int, operation: int, key: Key, timestamp: int, ttl: int | None) -> Piece:
        """The row of the log; ``kind`` stands in its ``batch_seq_no`` until it is numbered."""
        cells, deleted = (*self.cells, *self.added), tuple(self.deleted)
        return Piece(timestamp, kind, False, operation, ttl, key, cells, deleted, tuple(self.taken))


def _rank(piece: Piece) -> tuple[int, int, int]:
    """Order of the rows: timestamp, kind, time to live. Sorting keeps the order of rows that are alike in these."""
    return piece.timestamp, piece.batch_seq_no, piece.ttl or 0


def _later(one: int | None, other: int) -> int:
    return other if one is None else max(one, other)
