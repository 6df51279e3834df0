"""Rows in memory, for tests and the simulator.

They fail like ``disk_rows``: a crash removes uncommitted changes, and may remove unsynced commits together with their
marks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Token, Value
from ringlog.node.rows.pages import grouped
from ringlog.node.rows.store import RowsMark, RowStore, bounded, inside, order
from ringlog.wire.data import RowVersion


@dataclass(slots=True)
class _Partition:
    """The versions of a partition by clustering key, ascending."""

    token: Token
    rows: dict[tuple[bytes | None, ...], list[tuple[int, bytes]]]


class _Commit(Value):
    """An unsynced commit: the mark and the ids before it, and its changes (True: the version was added)."""

    before: RowsMark
    ids: Mapping[str, str]
    changes: tuple[tuple[RowVersion, bool], ...]


class MemoryRows(RowStore):
    """Rows of one process. ``crash`` simulates a power cut."""

    def __init__(self) -> None:
        self.mark = RowsMark()
        self.ids: Mapping[str, str] = {}
        self._kept_ids: Mapping[str, str] = self.ids
        self._tables: dict[str, dict[bytes, _Partition]] = {}
        self._count = 0
        self._changes: list[tuple[RowVersion, bool]] = []
        self._unsynced: list[_Commit] = []

    def __len__(self) -> int:
        return self._count

    def identify(self, table: str, table_id: str) -> None:
        self.ids = {**self.ids, table: table_id}

    def add(self, version: RowVersion) -> None:
        if self._put(version):
            self._changes.append((version, True))

    def _put(self, version: RowVersion) -> bool:
        partitions = self._tables.setdefault(version.table, {})
        partition = partitions.get(version.partition_key)
        if partition is None:
            partition = partitions[version.partition_key] = _Partition(version.token, {})
        versions = partition.rows.setdefault(version.clustering_key, [])
        item = (version.timestamp, version.value)
        at = bisect_left(versions, item)
        if at < len(versions) and versions[at] == item:
            return False
        versions.insert(at, item)
        self._count += 1
        return True

    def _remove(self, version: RowVersion) -> bool:
        partitions = self._tables.get(version.table, {})
        partition = partitions.get(version.partition_key)
        versions = [] if partition is None else partition.rows.get(version.clustering_key, [])
        item = (version.timestamp, version.value)
        if partition is None or item not in versions:
            return False
        versions.remove(item)
        if not versions:
            del partition.rows[version.clustering_key]
        if not partition.rows:
            del partitions[version.partition_key]
        self._count -= 1
        return True

    def drop(self, table: str, ranges: Iterable[Range]) -> int:
        wanted, partitions = tuple(ranges), self._tables.get(table, {})
        gone = [key for key, partition in partitions.items() if inside(partition.token, wanted)]
        versions = [one for key in gone for one in _versions(table, key, partitions.pop(key))]
        self._changes += [(one, False) for one in versions]
        self._count -= len(versions)
        return len(versions)

    def listed(
        self, ranges: Iterable[Range], tables: Iterable[str] | None = None, after: RowVersion | None = None
    ) -> Iterator[RowVersion]:
        """Yield the versions of ranges. Sorts them on each call."""
        wanted, names = tuple(ranges), set(self._tables) if tables is None else set(tables)
        found = [
            version
            for table in names
            for key, partition in self._tables.get(table, {}).items()
            if inside(partition.token, wanted)
            for version in _versions(table, key, partition)
        ]
        return iter(sorted((one for one in found if after is None or order(one) > order(after)), key=order))

    def partition(
        self, table: str, token: Token, partition_key: bytes, bytes_max: int | None = None
    ) -> list[RowVersion] | None:
        return bounded(self._partition(table, token, partition_key), bytes_max)

    def page(
        self,
        table: str,
        token: Token,
        partition_key: bytes,
        in_rows: bool,
        below: RowVersion | None,
        count: int,
        bytes_max: int,
    ) -> list[RowVersion]:
        found = reversed(self._partition(table, token, partition_key))
        part = (one for one in found if in_rows == (one.clustering_key != ()))
        wanted = islice((one for one in part if below is None or order(one) < order(below)), count)
        return list(next(grouped(((one, len(one.value)) for one in wanted), bytes_max), ()))

    def _partition(self, table: str, token: Token, partition_key: bytes) -> list[RowVersion]:
        found = self._tables.get(table, {}).get(partition_key)
        if found is None or found.token != token:
            return []
        return sorted(_versions(table, partition_key, found), key=order)

    def remove(self, versions: Iterable[RowVersion]) -> None:
        for version in versions:
            if self._remove(version):
                self._changes.append((version, False))

    def sizes(self, table: str, after: Token | None = None) -> Iterator[tuple[Token, int]]:
        found: dict[Token, int] = {}
        for partition in self._tables.get(table, {}).values():
            if after is None or partition.token > after:
                size = sum(len(value) for row in partition.rows.values() for _, value in row)
                found[partition.token] = found.get(partition.token, 0) + size
        return iter(sorted(found.items()))

    def tables(self) -> list[str]:
        return sorted(name for name, partitions in self._tables.items() if partitions)

    def commit(self, mark: RowsMark, sync: bool = False) -> None:
        self._unsynced.append(_Commit(self.mark, self._kept_ids, tuple(self._changes)))
        self._changes.clear()
        self.mark, self._kept_ids = mark, self.ids
        if sync:
            self.synced()

    def synced(self) -> None:
        """Mark all commits as synced, so that no crash removes them."""
        self._unsynced.clear()

    def close(self) -> None:
        """Discard uncommitted changes."""
        self.crash(0)

    @property
    def safe(self) -> RowsMark:
        """The mark of the last commit that no crash can remove."""
        return self._unsynced[0].before if self._unsynced else self.mark

    @property
    def unsynced(self) -> int:
        """The number of commits that a crash may remove."""
        return len(self._unsynced)

    def crash(self, lost: int) -> None:
        """Discard uncommitted changes and the last ``lost`` commits, as a power cut does."""
        self._undo(self._changes)
        self._changes.clear()
        for _ in range(lost):
            commit = self._unsynced.pop()
            self._undo(commit.changes)
            self._kept_ids = commit.ids
            self.mark = commit.before
        self.ids = self._kept_ids

    def _undo(self, changes: Iterable[tuple[RowVersion, bool]]) -> None:
        for version, added in reversed(tuple(changes)):
            if added:
                self._remove(version)
            else:
                self._put(version)


def _versions(table: str, key: bytes, partition: _Partition) -> Iterator[RowVersion]:
    for clustering, versions in partition.rows.items():
        for timestamp, value in versions:
            yield RowVersion(table, partition.token, key, clustering, timestamp, value)
