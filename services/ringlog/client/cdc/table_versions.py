"""Tables over their lives: which table had a name at an epoch, with which columns.

A name is no identity: a table can be dropped and another one made under its name, with other columns or with the same
ones. A table is its *id*, which is never used again; while it lives, columns are added and user types grow, so a later
version reads what an earlier one wrote. A row of the CDC log has the name, and the epoch by which it was decided: the
table is the one that had the name at that epoch, and a column that it had not then is unknown in that row for ever,
whatever is added later. So every reader comes to the same verdict, whenever it reads.

==================  ==============================================================================================
epoch of the row    its table
==================  ==============================================================================================
one of the log      the one that had the name at that epoch; None if there was none
0: not said         the one that has the name, or else the last one that had it
==================  ==============================================================================================

Fed with every step of the fold, this knows all versions of all tables that ever were; nothing of it is forgotten. Who
begins with a stored state knows the versions which that keeps (``ClusterState.table_lives``): of what lies before them
it says that it does not know it, until somebody has folded that, too (``follow_on``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from ringlog.kernel.changes import TableChange, table_change
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Epoch

UNKNOWN_EPOCH: Epoch = 0
Version = tuple[Epoch, TableChange | None]
"""Since when; None: since then no table has the name."""


@dataclass(frozen=True, slots=True)
class NamePeriod:
    """When a table had its name: from ``first`` on, and before ``end`` (None: it still has). ``is_last``: no other
    table has had it since. ``known_from``: of earlier epochs it is not known whose the name was; 0: it is of all.
    """

    first: Epoch
    end: Epoch | None
    is_last: bool
    known_from: Epoch = 0

    def knows(self, epoch: Epoch) -> bool:
        """False of a row from before what is known."""
        return epoch == UNKNOWN_EPOCH or epoch >= self.known_from

    def has(self, epoch: Epoch) -> bool:
        """Is a row that was decided by that epoch, which it knows, one of this table's?"""
        if epoch == UNKNOWN_EPOCH:
            return self.is_last
        return self.first <= epoch and not self.is_over(epoch)

    def is_over(self, epoch: Epoch) -> bool:
        """Is a row that was decided by that epoch one of a table that got the name after this one?"""
        if epoch == UNKNOWN_EPOCH:
            return not self.is_last
        return self.end is not None and epoch >= self.end


class TableVersions:
    """All versions of all tables. Safe from threads: one notes, others ask."""

    def __init__(self, tables: Iterable[TableChange] = ()) -> None:
        """``tables``: versions to begin with, by ascending epoch."""
        self._lock = Lock()
        self._versions: dict[str, list[Version]] = {}
        self._epoch = self._began = 0
        for table in tables:
            self._add(f"{table.keyspace}.{table.name}", table.epoch, table)

    @property
    def epoch(self) -> Epoch:
        """Up to which it knows everything."""
        return self._epoch

    def begin(self, state: ClusterState) -> None:
        """Nothing before this state is to be noted: what it keeps of the past is all that is known.

        Without effect once anything is known.
        """
        with self._lock:
            if self._epoch or not state.epoch:
                return
            for name in sorted({*state.tables, *state.table_lives}):
                kept = [version.table for period in state.table_lives.get(name, ()) for version in period.versions]
                now = state.tables.get(name)
                by_epoch: dict[Epoch, Table] = {one.changed: one for one in (*kept, *([] if now is None else [now]))}
                for epoch, table in sorted(by_epoch.items()):
                    self._add(name, epoch, table_change(table, epoch))
                if now is None and max(by_epoch) < state.epoch:  # it was dropped, at an epoch that is not kept
                    self._add(name, state.epoch, None)
            self._epoch = self._began = state.epoch

    @property
    def began(self) -> Epoch:
        """The epoch of the state that it began with; 0: it knows all."""
        return self._began

    def knows(self, name: str, epoch: Epoch) -> bool:
        """False of a row from before what is known."""
        with self._lock:
            return epoch == UNKNOWN_EPOCH or epoch >= self._known_from(name)

    def _known_from(self, name: str) -> Epoch:
        return min([self._began, *(epoch for epoch, _ in self._versions.get(name, ())[:1])])

    def follow_on(self, earlier: TableVersions) -> None:
        """Take over what ``earlier`` knows, which was fed up to the state with which this one began."""
        with self._lock:
            assert earlier.epoch == self._began, "one goes on where the other one ends"
            later, self._versions = self._versions, dict(earlier._versions)
            for name, versions in later.items():
                behind = [one for one in versions if one[0] > self._began]
                self._versions[name] = [*earlier._versions.get(name, ()), *behind]
            self._began = earlier.began

    def record_step(self, before: ClusterState, after: ClusterState) -> None:
        """One step of the fold, from ``before`` to ``after``."""
        with self._lock:
            if before.tables is not after.tables:
                for name in {*before.tables, *after.tables}:
                    table = after.tables.get(name)
                    if table is not before.tables.get(name):
                        self._add(name, after.epoch, None if table is None else table_change(table, after.epoch))
            self._epoch = after.epoch

    def at(self, name: str, epoch: Epoch) -> TableChange | None:
        """The table that a row is of which was decided by ``epoch``."""
        with self._lock:
            versions = self._versions.get(name, ())
            if epoch != UNKNOWN_EPOCH:
                place = bisect_right(versions, epoch, key=lambda version: version[0])
                return versions[place - 1][1] if place else None
            return next((table for _, table in reversed(versions) if table is not None), None)

    def current(self) -> Mapping[str, TableChange]:
        """The tables that there are now, by ``keyspace.table``."""
        with self._lock:
            found = ((name, versions[-1][1]) for name, versions in sorted(self._versions.items()))
            return {name: table for name, table in found if table is not None}

    def all_of(self, name: str) -> tuple[TableChange, ...]:
        """Every version of every table that ever had the name, the oldest first."""
        with self._lock:
            return tuple(table for _, table in self._versions.get(name, ()) if table is not None)

    def period(self, name: str, table_id: str) -> NamePeriod:
        """When the table with that id had the name, which it did."""
        with self._lock:
            versions = self._versions.get(name, [])
            own = [place for place, (_, table) in enumerate(versions) if table is not None and table.id == table_id]
            assert own, f"{name} was never {table_id}"
            behind = versions[own[-1] + 1 :]
            end = behind[0][0] if behind else None
            return NamePeriod(
                versions[own[0]][0], end, all(table is None for _, table in behind), self._known_from(name)
            )

    def _add(self, name: str, epoch: Epoch, table: TableChange | None) -> None:
        versions = self._versions.setdefault(name, [])
        assert not versions or versions[-1][0] < epoch, "versions come in the order of the log"
        versions.append((epoch, table))
        self._epoch = max(self._epoch, epoch)
