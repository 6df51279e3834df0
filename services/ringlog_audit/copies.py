"""A partition of a base table, rebuilt from its log rows, and a node's copy of it for comparison.

Log rows become facts (``compound``) on a heap that keeps all facts (``images``). Rows may arrive in any order and more
than once. The heap shows a reader's view at any instant. A node has its own clock. So its copy is correct if it matches
the view at any instant of a short interval.

====================  =================================================================================================
row of the log        facts
====================  =================================================================================================
insert, update        cells, elements; for an insert also the row's marker
``deleted``           a dead cell; for an unfrozen collection, all its earlier elements are deleted
``deleted_elements``  dead elements
deletes               the row or the partition; a range after both of its ends have arrived
images                none, because they repeat facts of other rows
====================  =================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ringlog_audit.rules.compound import (
    INSERT,
    PARTITION_DELETE,
    ROW_DELETE,
    STATIC,
    UPDATE,
    AuditColumns,
)
from ringlog_audit.rules.images import SECOND, Heap, Row, Values
from ringlog_audit.rules.values import elements

STARTS, ENDS = {5: True, 6: False}, {7: True, 8: False}
"""Operations that delete a range: for the row of its start and of its end, True if the bound itself is deleted."""
SHOWN_BYTES = 24
Seen = dict[Row, Values]
"""A reader's view: clustering key (or ``STATIC``) to columns, by their names in log rows."""


class LoggedPartition:
    """The facts of the log about one partition."""

    def __init__(self, columns: AuditColumns) -> None:
        self._columns = columns
        self._heap = Heap()
        self._starts: dict[tuple[int, int, int], dict[str, Any]] = {}

    def put(self, row: Mapping[str, Any]) -> None:
        """Add a decoded log row. Raise ValueError for bytes that are not a value of their column."""
        at, operation, key = row["timestamp"], row["operation"], tuple(row["clustering_key"])
        if operation in (INSERT, UPDATE):
            self._put_cells(row, at, row["ttl"] or 0, key)
        elif operation == ROW_DELETE:
            self._heap.put(("row", key), (at, 0, None))
        elif operation == PARTITION_DELETE:
            self._heap.put(("partition", "partition"), (at, 0, None))
        write = row["source_partition"], row["source_offset"], at
        if operation in STARTS:
            self._starts[write] = {"start": key, "start_inclusive": STARTS[operation]}
        elif operation in ENDS and write in self._starts:
            bounds = self._starts.pop(write) | {"end": key, "end_inclusive": ENDS[operation]}
            self._heap.ranges.append((at, bounds))

    def _put_cells(self, row: Mapping[str, Any], at: int, ttl: int, key: Row) -> None:
        where = STATIC if self._columns.clustering and not key else key
        kinds = self._columns.collections
        if row["operation"] == INSERT:
            self._heap.put(("marker", where), (at, ttl, b""))
        for column in row["deleted"]:
            self._heap.put(("wipe" if column in kinds else "cell", where, column), (at, 0, None))
        for cell in row["cells"]:
            column, value = cell["column"], cell["value"]
            if column not in kinds:
                self._heap.put(("cell", where, column), (at, ttl, value))
                continue
            for name, each in elements(kinds[column], value).items():
                self._heap.put(("element", where, column, name), (at, ttl, each))
        for taken in row["deleted_elements"]:
            for name in taken["keys"]:
                self._heap.put(("element", where, taken["column"], name), (at, 0, None))

    def seen(self, now: int, own: frozenset[str]) -> Seen:
        """Return the reader's view at an instant, limited to the table's columns ``own``."""
        rows = ((row, self._heap.row(row, self._columns, now, own)) for row in self._heap.facts)
        return {row: values for row, values in rows if values or (values is not None and row != STATIC)}

    def instants(self, first: int, last: int) -> Iterator[int]:
        """Yield both ends, and each instant between them at which a value expires and changes the view."""
        yield first
        for facts in self._heap.facts.values():
            for at, ttl, _ in facts.values():
                if ttl and first < at + ttl * SECOND < last:
                    yield at + ttl * SECOND
        yield last


def answered(answer: Mapping[str, Any], columns: AuditColumns, logged: Mapping[str, str]) -> Seen:
    """Return the view in a node's answer. ``logged``: renamed columns to their names in log rows.

    Raises KeyError, TypeError, ValueError or AttributeError for an invalid answer.
    """

    def values(cells: Mapping[str, Any]) -> Values:
        found: Values = {}
        for name, cell in cells.items():
            column, value = logged.get(name, name), bytes.fromhex(cell["value"])
            kind = columns.collections.get(column)
            found[column] = value if kind is None else elements(kind, value)
        return found

    static = values(answer["static"])
    found: Seen = {STATIC: static} if static else {}
    for row in answer["rows"]:
        key = tuple(None if part is None else bytes.fromhex(part) for part in row["clustering_key"])
        found[key] = values(row["cells"])
    return found


def deviations(partition: LoggedPartition, found: Seen, own: frozenset[str], first: int, last: int) -> list[str]:
    """Return the differences by row and column, or an empty list if the node's copy matches at some instant.

    The instants are those from ``first`` to ``last``. The differences are those at ``last``.
    """
    wanted: Seen = {}
    for now in partition.instants(first, last):
        wanted = partition.seen(now, own)
        if wanted == found:
            return []
    return [
        f"{_place(row)}, {difference}"
        for row in sorted(wanted.keys() | found.keys(), key=repr)
        for difference in _of_row(wanted.get(row), found.get(row))
    ]


def _of_row(wanted: Values | None, found: Values | None) -> Iterator[str]:
    if wanted is None or found is None:
        yield "exists only on the node" if wanted is None else "exists only in the log"
        return
    for column in sorted(wanted.keys() | found.keys()):
        if wanted.get(column) != found.get(column):
            yield (f"column {column}: {_shown(found.get(column))} on the node, {_shown(wanted.get(column))} in the log")


def _place(row: Row) -> str:
    return "static columns" if row == STATIC else f"row [{' '.join(_shown(part) for part in row)}]"


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(each)}" for key, each in sorted(value.items())) + "}"
    return bytes(value[:SHOWN_BYTES]).hex() + ("…" if len(value) > SHOWN_BYTES else "")
