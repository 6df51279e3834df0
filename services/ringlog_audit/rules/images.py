"""Preimages and postimages that the log must have, worked out the plain way: a table is a heap of facts.

A fact (``compound``) is what a write said about one thing: a cell, an element, a row's marker, a collection wiped,
something deleted. Of each thing the newest fact is kept, for ever. A row at an instant is read off the facts: what no
tombstone covers and what has not expired. For each timestamp of a write the rows it touches are read, its facts are put
on the heap, and the rows are read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from ringlog_audit.rules.compound import (
    INSERT,
    STATIC,
    UPDATE,
    AuditColumns,
    AuditLogRow,
    covers,
    facts_of,
    sortable,
    statements,
    weight,
)

PREIMAGE, POSTIMAGE = 0, 9
SECOND = 1_000_000

Row = tuple[Any, ...]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the log of a table has beside its changes. ``preimage``: false, true or full; names of the columns that are
    not of the key, in the order of the schema.
    """

    preimage: str
    postimage: bool
    regular: tuple[str, ...]
    static: tuple[str, ...]


@dataclass(slots=True)
class Heap:
    """The facts about one partition of a table: (what, row, column, element) to (time, time to live, value)."""

    facts: dict[Row, dict[tuple[Any, ...], tuple[int, int, Any]]] = field(default_factory=dict)
    ranges: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    deleted: int = -(2**63)

    def put(self, name: tuple[Any, ...], fact: tuple[int, int, Any]) -> None:
        """Add a fact."""
        if name[0] == "partition":
            self.deleted = max(self.deleted, fact[0])
            return
        elements = self.facts.setdefault(name[1], {})
        if name not in elements or weight(fact) > weight(elements[name]):
            elements[name] = fact

    def row(self, row: Row, columns: AuditColumns, now: int, own: frozenset[str] | None = None) -> Values | None:
        """Column to value, of a collection element to value; None if there is no such row. ``own``: the columns that
        there are, if not all.
        """
        facts = self.facts.get(row, {})
        gone = max([self.deleted] + [fact[0] for name, fact in facts.items() if name[0] == "row"])
        if row != STATIC:
            gone = max([gone] + [at for at, bounds in self.ranges if covers(bounds, row, columns.clustering)])
        found: Values = {}
        there = False
        for name, (at, ttl, value) in facts.items():
            if name[0] not in ("marker", "cell", "element") or value is None or at <= gone:
                continue
            if own is not None and name[0] != "marker" and name[2] not in own:
                continue
            if ttl and at + ttl * SECOND <= now:
                continue
            if name[0] == "element":
                wiped = facts.get(("wipe", row, name[2]))
                if wiped is None or at >= wiped[0]:
                    found.setdefault(name[2], {})[name[3]] = value
                    there = True
                continue
            there = True
            if name[0] == "cell":
                found[name[2]] = value
        return found if there else None


class Images:
    """The heaps of all partitions. ``rows`` has to see every write that is logged, in the order of the topic."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[str, bytes], Heap] = {}

    def rows(
        self, table: str, key: bytes, write: dict[str, Any], logged: list[AuditLogRow], columns: AuditColumns,
        wanted: Wanted, now: int, readable: frozenset[str] | None = None,
    ) -> list[AuditLogRow]:  # fmt: skip
        """The rows of a write, ``logged`` without images, with them. ``key``: composed; ``now``: append time, µs;
        ``readable``: the columns outside the key that the version has which reads the write, None: all.
        """
        heap = self._heaps.setdefault((table, key), Heap())
        facts = facts_of(write, columns)
        found: list[AuditLogRow] = []
        for at, group in groupby(logged, key=attrgetter("timestamp")):
            own = {name: fact for name, fact in facts.items() if fact[0] == at and _counts(name, fact, facts)}
            logged_now = list(group)
            touched = _touched(own, columns, wanted)
            for row in logged_now:
                # An update without a cell is no fact, and about its row all the same.
                if row.operation in (INSERT, UPDATE) and len(row.clustering_key) == len(columns.clustering):
                    touched.setdefault(tuple(row.clustering_key), set())
            own_rows = sorted(touched.keys() - {STATIC}, key=lambda row: [*map(sortable, columns.clustering, row)])
            rows = [*(touched.keys() & {STATIC}), *own_rows]
            if wanted.preimage != "false":
                found += _images(PREIMAGE, at, heap, rows, touched, columns, wanted, now, readable)
            found += logged_now
            for name, fact in own.items():
                heap.put(name, fact)
            for one in statements(write):
                if one["bounds"] is not None and one["timestamp"] == at:
                    heap.ranges.append((at, one["bounds"]))
            if wanted.postimage:
                found += _images(POSTIMAGE, at, heap, rows, touched, columns, wanted, now, readable)
        return list(_numbered(found))


def _counts(name: tuple[Any, ...], fact: tuple[int, int, Any], facts: dict[Any, Any]) -> bool:
    """False for an element that its own write has wiped."""
    wiped = facts.get(("wipe", *name[1:3])) if name[0] == "element" else None
    return wiped is None or fact[0] >= wiped[0]


def _touched(own: dict[tuple[Any, ...], Any], columns: AuditColumns, wanted: Wanted) -> dict[Row, set[str]]:
    """Row to the columns that facts of one timestamp are about."""
    found: dict[Row, set[str]] = {}
    for name in own:
        if name[0] == "partition":
            if not columns.clustering:
                found.setdefault((), set()).update(wanted.regular)
        elif name[0] == "row":
            found.setdefault(name[1], set()).update(wanted.regular)
        else:
            found.setdefault(name[1], set()).update(name[2:3])
    return found


def _images(
    operation: int, at: int, heap: Heap, rows: list[Row], touched: dict[Row, set[str]], columns: AuditColumns,
    wanted: Wanted, now: int, readable: frozenset[str] | None,
) -> Iterator[AuditLogRow]:  # fmt: skip
    for row in rows:
        values = heap.row(row, columns, now, readable)
        if values is None:
            continue
        names = touched[row] | {*(wanted.static if row == STATIC else wanted.regular)} | {*values}
        if operation == PREIMAGE and wanted.preimage == "true":
            names = touched[row]
        image = AuditLogRow(at, 0, False, operation, None, () if row == STATIC else row)
        image.values = {name: values[name] for name in names if name in values}
        image.deleted = {name for name in names if name not in values} if operation == PREIMAGE else set()
        yield image


def _numbered(rows: list[AuditLogRow]) -> Iterator[AuditLogRow]:
    for number, row in enumerate(rows):
        follows = number > 0 and rows[number - 1].timestamp == row.timestamp
        row.sequence = rows[number - 1].sequence + 1 if follows else 0
        row.last = number + 1 == len(rows) or rows[number + 1].timestamp != row.timestamp
        yield row
