"""Table versions: the table that had a name at an epoch, with its columns at that epoch.

A table name is not an identity, because a table can be dropped and recreated under its name, with the same or other
columns. The table *id* is the identity; it is never reused. During the lifetime of a table, columns are added and user
types grow. So a later version can read data that an earlier version wrote.

A CDC row contains the table name and the epoch of the decision on it. Its table is the one that had the name at that
epoch. A column that this table version did not have is unknown in the row, even if it is added later. So all readers
interpret a row in the same way, whenever they read it.

==================  ==============================================================================================
Epoch of the row    Its table
==================  ==============================================================================================
An epoch            The table that had the name at that epoch, or None.
0 (not recorded)    The table that has the name, or else the last table that had it.
==================  ==============================================================================================

Invariant: an instance that receives every applied entry knows all versions of all tables. An instance that begins
with a stored state knows only the versions in that state (``ClusterState.table_lives``). It reports earlier epochs as
unknown until the earlier part of the log is added (``extend_back``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from threading import Lock

from ringlog.kernel.changes import TableChange, table_change
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Epoch, Value

UNKNOWN_EPOCH: Epoch = 0
Version = tuple[Epoch, TableChange | None]
"""The epoch of a version, and the table. None: from this epoch on, no table has the name."""


class NamePeriod(Value):
    """How long a table has a name: from ``first`` to before ``end`` (None: still).

    ``is_last``: no other table has had the name since. ``known_from``: the first epoch with a known owner of the name;
    0: all are known.
    """

    first: Epoch
    end: Epoch | None
    is_last: bool
    known_from: Epoch = 0

    def knows(self, epoch: Epoch) -> bool:
        """Return whether the table of a row with this epoch is known."""
        return epoch == UNKNOWN_EPOCH or epoch >= self.known_from

    def has(self, epoch: Epoch) -> bool:
        """Return whether a row with this (known) epoch belongs to this table."""
        if epoch == UNKNOWN_EPOCH:
            return self.is_last
        return self.first <= epoch and not self.is_over(epoch)

    def is_over(self, epoch: Epoch) -> bool:
        """Return whether a row with this epoch belongs to a later table of the same name."""
        if epoch == UNKNOWN_EPOCH:
            return not self.is_last
        return self.end is not None and epoch >= self.end


class TableVersions:
    """All versions of all tables. Thread-safe: one thread adds versions, others read."""

    def __init__(self, tables: Iterable[TableChange] = ()) -> None:
        """Create an instance. ``tables``: initial versions by ascending epoch."""
        self._lock = Lock()
        self._versions: dict[str, list[Version]] = {}
        self._epoch = self._began = 0
        for table in tables:
            self._add(f"{table.keyspace}.{table.name}", table.epoch, table)

    @property
    def epoch(self) -> Epoch:
        """The newest epoch whose changes are included."""
        return self._epoch

    def begin(self, state: ClusterState) -> None:
        """Begin with a stored state and the versions that it contains. Has no effect if any epoch is known."""
        with self._lock:
            if self._epoch or not state.epoch:
                return
            for name in sorted({*state.tables, *state.table_lives}):
                kept = [version.table for period in state.table_lives.get(name, ()) for version in period.versions]
                now = state.tables.get(name)
                by_epoch: dict[Epoch, Table] = {one.changed: one for one in (*kept, *([] if now is None else [now]))}
                for epoch, table in sorted(by_epoch.items()):
                    self._add(name, epoch, table_change(table, epoch))
                # The table was dropped. The epoch of the drop is not stored, so use the epoch of the state.
                if now is None and max(by_epoch) < state.epoch:
                    self._add(name, state.epoch, None)
            self._epoch = self._began = state.epoch

    @property
    def began(self) -> Epoch:
        """The epoch of the initial state; 0 if all versions are known."""
        return self._began

    def knows(self, name: str, epoch: Epoch) -> bool:
        """Return whether the table of a row with this epoch is known."""
        with self._lock:
            return epoch == UNKNOWN_EPOCH or epoch >= self._known_from(name)

    def _known_from(self, name: str) -> Epoch:
        return min([self._began, *(epoch for epoch, _ in self._versions.get(name, ())[:1])])

    def extend_back(self, earlier: TableVersions) -> None:
        """Add the versions of ``earlier``, which must end at the initial state of this instance."""
        with self._lock:
            assert earlier.epoch == self._began, "a version begins where the previous version ends"
            later, self._versions = self._versions, dict(earlier._versions)
            for name, versions in later.items():
                behind = [one for one in versions if one[0] > self._began]
                self._versions[name] = [*earlier._versions.get(name, ()), *behind]
            self._began = earlier.began

    def record_step(self, before: ClusterState, after: ClusterState) -> None:
        """Add the table changes of one applied entry."""
        with self._lock:
            if before.tables is not after.tables:
                for name in {*before.tables, *after.tables}:
                    table = after.tables.get(name)
                    if table is not before.tables.get(name):
                        self._add(name, after.epoch, None if table is None else table_change(table, after.epoch))
            self._epoch = after.epoch

    def at(self, name: str, epoch: Epoch) -> TableChange | None:
        """Return the table of a row that was decided at ``epoch``."""
        with self._lock:
            versions = self._versions.get(name, ())
            if epoch != UNKNOWN_EPOCH:
                place = bisect_right(versions, epoch, key=lambda version: version[0])
                return versions[place - 1][1] if place else None
            return next((table for _, table in reversed(versions) if table is not None), None)

    def current(self) -> Mapping[str, TableChange]:
        """Return the current tables by ``keyspace.table``."""
        with self._lock:
            found = ((name, versions[-1][1]) for name, versions in sorted(self._versions.items()))
            return {name: table for name, table in found if table is not None}

    def names(self) -> tuple[str, ...]:
        """Return the names of all tables that are known, also of dropped ones."""
        with self._lock:
            return tuple(sorted(self._versions))

    def history(self, name: str) -> tuple[Version, ...]:
        """Return every version of every table that ever had the name, and the drops, oldest first."""
        with self._lock:
            return tuple(self._versions.get(name, ()))

    def all_of(self, name: str) -> tuple[TableChange, ...]:
        """Return every version of every table that ever had the name, oldest first."""
        return tuple(table for _, table in self.history(name) if table is not None)

    def period(self, name: str, table_id: str) -> NamePeriod:
        """Return how long the table with that id had the name. The table must have had it."""
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
        assert not versions or versions[-1][0] < epoch, "versions arrive in the order of the log"
        versions.append((epoch, table))
        self._epoch = max(self._epoch, epoch)
