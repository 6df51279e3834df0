"""One row as its writes left it: the newest cell of every column and element, and the tombstones.

States of a row form a join-semilattice: ``join_rows`` is commutative, associative and idempotent. So writes may arrive
in any order, any number of times, on any path. This holds for every field, not only for a reader's view, because a
state is always in normal form: its tombstones cover none of its other parts. Covered data is dropped at once, since
tombstones are never removed.

Among cells of one timestamp a dead one wins, then one that expires, then the later expiry, then the greater value. A
collection that a write replaces at time t is deleted up to and including t - 1 µs: the write's own elements stay.

Source: ScyllaDB's reconciliation of mutations (``compare_atomic_cell_for_merge``, ``compare_row_marker_for_merge``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from immutables import Map

from ringlog.kernel.values import Micros, Value, field

NEVER: Micros = -(2**63)
"""Earlier than any write."""

Place = tuple[str, bytes | None]
"""Column, and the key of the element in a multi-cell column."""


class RowCell(Value):
    """A cell. ``value`` None: dead. ``expires``: it counts as dead from that time on; None: never."""

    timestamp: Micros
    value: bytes | None
    expires: Micros | None = None

    def rank(self) -> tuple[Micros, bool, bool, Micros, bytes]:
        """Return the rank of the cell: the greater one of two wins, and only equal cells have equal ranks."""
        return self.timestamp, self.value is None, self.expires is not None, self.expires or 0, self.value or b""

    def is_live(self, gone: Micros, now: Micros) -> bool:
        """Return True unless it is dead, expired at ``now``, or under a tombstone at ``gone``."""
        if self.value is None or self.timestamp <= gone:
            return False
        return self.expires is None or self.expires > now


class RowState(Value):
    """The state of a row. ``deleted``: everything up to and including that time is deleted.

    ``marker``: the row marker of inserts, which keeps a row of nulls. ``wiped``: multi-cell column to the time up to
    and including which its elements are deleted.
    """

    deleted: Micros = NEVER
    marker: RowCell | None = None
    cells: Map[Place, RowCell] = field(default_factory=Map)
    wiped: Map[str, Micros] = field(default_factory=Map)


NOTHING = RowState()
"""The state of a row that was never written."""


def newer(one: RowCell | None, other: RowCell | None) -> RowCell | None:
    """Return the cell that wins."""
    if one is None or other is None:
        return one or other
    return other if other.rank() > one.rank() else one


def row_state(
    deleted: Micros, marker: RowCell | None, cells: Iterable[tuple[Place, RowCell]], wiped: Mapping[str, Micros]
) -> RowState:
    """Return a state in normal form. ``cells`` may have a place several times, and cells under tombstones."""
    kept: dict[Place, RowCell] = {}
    for place, cell in cells:
        gone = deleted if place[1] is None else max(deleted, wiped.get(place[0], NEVER))
        if cell.timestamp > gone:
            known = kept.get(place)
            kept[place] = cell if known is None or cell.rank() > known.rank() else known
    marker = None if marker is None or marker.timestamp <= deleted else marker
    return RowState(deleted, marker, Map(kept), Map({name: at for name, at in wiped.items() if at > deleted}))


def join_rows(one: RowState, other: RowState) -> RowState:
    """Return the state after the writes of both."""
    deleted = max(one.deleted, other.deleted)
    marker = newer(one.marker, other.marker)
    if deleted == one.deleted and not other.wiped:
        return _with_cells(one, other, marker)
    wiped = dict(one.wiped)
    for name, at in other.wiped.items():
        wiped[name] = max(at, wiped.get(name, NEVER))
    return row_state(deleted, marker, (*one.cells.items(), *other.cells.items()), wiped)


def _with_cells(one: RowState, other: RowState, marker: RowCell | None) -> RowState:
    """Return the join if ``other`` has no newer tombstone than ``one``: then all cells of ``one`` stay."""
    assert other.deleted <= one.deleted, "no tombstone of the other covers a cell of this one"
    assert not other.wiped, "no tombstone of the other covers an element of this one"
    cells = one.cells.mutate()
    for place, cell in other.cells.items():
        gone = one.deleted if place[1] is None else max(one.deleted, one.wiped.get(place[0], NEVER))
        known = cells.get(place)
        if cell.timestamp > gone and (known is None or cell.rank() > known.rank()):
            cells[place] = cell
    marker = None if marker is None or marker.timestamp <= one.deleted else marker
    return RowState(one.deleted, marker, cells.finish(), one.wiped)


def under(row: RowState, gone: Micros) -> RowState:
    """Return the rest of a row under a covering tombstone. The row's own tombstone stays only if it is newer."""
    if gone <= NEVER:
        return row
    deleted = row.deleted if row.deleted > gone else NEVER
    cells = ((place, cell) for place, cell in row.cells.items() if cell.timestamp > gone)
    marker = None if row.marker is None or row.marker.timestamp <= gone else row.marker
    return RowState(deleted, marker, Map(cells), Map({name: at for name, at in row.wiped.items() if at > gone}))


def alive(row: RowState, gone: Micros, now: Micros) -> RowState | None:
    """Return the marker and cells that a reader sees at ``now`` under a tombstone at ``gone``; None for a dead row."""
    gone = max(gone, row.deleted)
    cells = {
        place: cell
        for place, cell in row.cells.items()
        if cell.is_live(gone if place[1] is None else max(gone, row.wiped.get(place[0], NEVER)), now)
    }
    marker = row.marker if row.marker is not None and row.marker.is_live(gone, now) else None
    return RowState(marker=marker, cells=Map(cells)) if cells or marker is not None else None
