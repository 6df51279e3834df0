"""One row as its writes left it: the newest cell of every column and element, and what was deleted when.

States of a row form a join-semilattice: ``join_rows`` is commutative, associative and idempotent, so writes may arrive
in any order, any number of times, over any way. That holds to the last field, not only for what a reader sees, because
a state is always in normal form: nothing in it lies under a tombstone that is in it too. What lies under a tombstone
can be left out at once, since tombstones never go.

Between cells of one timestamp a dead one wins, then one that expires, then the later expiry, then the greater value.
A collection that is replaced by a write at time t is wiped up to and including t - 1 µs: the write's own elements stay.

Source: ScyllaDB's reconciliation of mutations (``compare_atomic_cell_for_merge``, ``compare_row_marker_for_merge``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from immutables import Map

from ringlog.kernel.values import Micros

NEVER: Micros = -(2**63)
"""Earlier than any write."""

Place = tuple[str, bytes | None]
"""Column, and the key of the element in a multi-cell column."""


@dataclass(frozen=True, slots=True)
class RowCell:
    """``value`` None: dead. ``expires``: the instant from which it is as good as dead, None: never."""

    timestamp: Micros
    value: bytes | None
    expires: Micros | None = None

    def rank(self) -> tuple[Micros, bool, bool, Micros, bytes]:
        """Of two cells the one of the greater rank wins; only equal cells have equal ranks."""
        return self.timestamp, self.value is None, self.expires is not None, self.expires or 0, self.value or b""

    def is_live(self, gone: Micros, now: Micros) -> bool:
        """True unless it is dead, expired at ``now``, or under a tombstone at ``gone``."""
        if self.value is None or self.timestamp <= gone:
            return False
        return self.expires is None or self.expires > now


@dataclass(frozen=True, slots=True)
class RowState:
    """``deleted``: everything up to and with that time is gone; ``marker``: that of inserts, it keeps a row of nulls;
    ``wiped``: multi-cell column to the time up to and with which its elements are gone.
    """

    deleted: Micros = NEVER
    marker: RowCell | None = None
    cells: Map[Place, RowCell] = field(default_factory=Map)
    wiped: Map[str, Micros] = field(default_factory=Map)


NOTHING = RowState()
"""Says nothing."""


def newer(one: RowCell | None, other: RowCell | None) -> RowCell | None:
    """The cell that wins."""
    if one is None or other is None:
        return one or other
    return other if other.rank() > one.rank() else one


def row_state(
    deleted: Micros, marker: RowCell | None, cells: Iterable[tuple[Place, RowCell]], wiped: Mapping[str, Micros]
) -> RowState:
    """A state in normal form of parts that need not be: a place may come several times, under tombstones or not."""
    kept: dict[Place, RowCell] = {}
    for place, cell in cells:
        gone = deleted if place[1] is None else max(deleted, wiped.get(place[0], NEVER))
        if cell.timestamp > gone:
            known = kept.get(place)
            kept[place] = cell if known is None or cell.rank() > known.rank() else known
    marker = None if marker is None or marker.timestamp <= deleted else marker
    return RowState(deleted, marker, Map(kept), Map({name: at for name, at in wiped.items() if at > deleted}))


def join_rows(one: RowState, other: RowState) -> RowState:
    """The state after the writes of both."""
    deleted = max(one.deleted, other.deleted)
    marker = newer(one.marker, other.marker)
    if deleted == one.deleted and not other.wiped:
        return _with_cells(one, other, marker)
    wiped = dict(one.wiped)
    for name, at in other.wiped.items():
        wiped[name] = max(at, wiped.get(name, NEVER))
    return row_state(deleted, marker, (*one.cells.items(), *other.cells.items()), wiped)


def _with_cells(one: RowState, other: RowState, marker: RowCell | None) -> RowState:
    """The join where ``other`` brings no tombstone that ``one`` does not know: nothing that ``one`` has goes away."""
    cells = one.cells.mutate()
    for place, cell in other.cells.items():
        gone = one.deleted if place[1] is None else max(one.deleted, one.wiped.get(place[0], NEVER))
        known = cells.get(place)
        if cell.timestamp > gone and (known is None or cell.rank() > known.rank()):
            cells[place] = cell
    marker = None if marker is None or marker.timestamp <= one.deleted else marker
    return RowState(one.deleted, marker, cells.finish(), one.wiped)


def under(row: RowState, gone: Micros) -> RowState:
    """What is left of a row under a tombstone that is not its own; its own goes where that one is as new."""
    if gone <= NEVER:
        return row
    deleted = row.deleted if row.deleted > gone else NEVER
    cells = ((place, cell) for place, cell in row.cells.items() if cell.timestamp > gone)
    marker = None if row.marker is None or row.marker.timestamp <= gone else row.marker
    return RowState(deleted, marker, Map(cells), Map({name: at for name, at in row.wiped.items() if at > gone}))


def alive(row: RowState, gone: Micros, now: Micros) -> RowState | None:
    """Marker and cells that a reader sees at ``now`` under a tombstone at ``gone``; None if there is no such row."""
    gone = max(gone, row.deleted)
    cells = {
        place: cell
        for place, cell in row.cells.items()
        if cell.is_live(gone if place[1] is None else max(gone, row.wiped.get(place[0], NEVER)), now)
    }
    marker = row.marker if row.marker is not None and row.marker.is_live(gone, now) else None
    return RowState(marker=marker, cells=Map(cells)) if cells or marker is not None else None
