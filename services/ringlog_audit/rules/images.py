"""The preimages and postimages that the log must have. A table is modelled as a heap of facts.

A fact (``compound``) is a write's statement about one thing: a cell, an element, a row's marker, a wiped collection, or
a deleted row, range or partition. For each thing the heap keeps the newest fact forever. A row at an instant consists
of the facts that no tombstone covers and that have not expired. For each timestamp of a write: read the rows that it
touches, put its facts on the heap, and read the rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from ringlog.kernel.values import Value
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


class Wanted(Value):
    """The images that the log of a table has. ``preimage``: false, true or full.

    ``regular`` and ``static``: names of the columns outside the key, in schema order.
    """

    preimage: str
    postimage: bool
    regular: tuple[str, ...]
    static: tuple[str, ...]


@dataclass(slots=True)
class Heap:
    """The facts about one partition of a table: (kind, row, column, element) to (time, time to live, value)."""

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
        """Return column to value, for a collection element to value, or None if the row does not exist.

        ``own``: the existing columns, None for all.
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
    """The heaps of all partitions. ``rows`` must get every logged write, in the order of the topic."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[str, bytes], Heap] = {}

    def rows(
        self, table: str, key: bytes, write: dict[str, Any], logged: list[AuditLogRow], columns: AuditColumns,
        wanted: Wanted, now: int, readable: frozenset[str] | None = None,
    ) -> list[AuditLogRow]:  # fmt: skip
        """Return the rows of a write with images. ``logged``: its rows without images.

        ``key``: composed partition key. ``now``: append time in µs. ``readable``: columns outside the key of the
        version that reads the write, None for all.
        """
        heap = self._heaps.setdefault((table, key), Heap())
        facts = facts_of(write, columns)
        found: list[AuditLogRow] = []
        for at, group in groupby(logged, key=attrgetter("timestamp")):
            own = {name: fact for name, fact in facts.items() if fact[0] == at and _counts(name, fact, facts)}
            logged_now = list(group)
            touched = _touched(own, columns, wanted)
            for row in logged_now:
                # An update without cells adds no fact, but still touches its row.
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
    """Return False for an element that its own write has wiped."""
    wiped = facts.get(("wipe", *name[1:3])) if name[0] == "element" else None
    return wiped is None or fact[0] >= wiped[0]


def _touched(own: dict[tuple[Any, ...], Any], columns: AuditColumns, wanted: Wanted) -> dict[Row, set[str]]:
    """Return each row with the columns that the facts of one timestamp change."""
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
