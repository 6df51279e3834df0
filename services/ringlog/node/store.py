"""Rows in memory, by table, partition key and clustering key.

A row is the set of its versions, each (write timestamp, encoded mutation). Adding a version that is already there
changes nothing, so rows that reach a node twice (streamed from another node, and read from the mutations topic)
merge without a rule of their own. Deletes are versions like all others, and so is a write of several statements, which
stands whole at the row of its first one: what they do is decided on reading (``ringlog.node.merge``). Nothing here
knows about epochs or ownership: the caller says which tokens to list or to keep.

Invariant: what ``versions`` and ``checksum`` give depends only on the set of versions, not on the order of arrival.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import Token
from ringlog.wire.data import Version as Version

Range = tuple[Token, Token]


@dataclass(slots=True)
class _Partition:
    """``rows``: clustering key to its versions, ascending."""

    token: Token
    rows: dict[tuple[bytes | None, ...], list[tuple[int, bytes]]]


class RowStore:
    """The rows of one node. Not thread-safe: the node holds its lock around every call."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, _Partition]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of row versions."""
        return self._count

    def add(self, version: Version) -> bool:
        """Keep a version; False if it was there already."""
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

    def versions(self, ranges: Sequence[Range], tables: Iterable[str] | None = None) -> list[Version]:
        """All versions whose token lies in one of ``ranges``, in a fixed order."""
        wanted = sorted(self._tables) if tables is None else sorted(tables)
        found = [
            version
            for table in wanted
            for key, partition in self._tables.get(table, {}).items()
            if inside(partition.token, ranges)
            for version in _listed(table, key, partition)
        ]
        found.sort(key=order)
        return found

    def partition(self, table: str, partition_key: bytes) -> list[Version]:
        """The versions of one partition, in a fixed order."""
        partition = self._tables.get(table, {}).get(partition_key)
        return [] if partition is None else sorted(_listed(table, partition_key, partition), key=order)

    def keep(self, table: str, wanted: Callable[[Token], bool]) -> int:
        """Forget the partitions of ``table`` whose token is not wanted; the number of versions dropped."""
        partitions = self._tables.get(table, {})
        gone = [key for key, partition in partitions.items() if not wanted(partition.token)]
        dropped = 0
        for key in gone:
            dropped += sum(len(versions) for versions in partitions.pop(key).rows.values())
        self._count -= dropped
        return dropped

    def tables(self) -> list[str]:
        """Names of the tables that hold rows."""
        return sorted(name for name, partitions in self._tables.items() if partitions)


def checksum(versions: Iterable[Version]) -> str:
    """Hex SHA-256 over every field of versions in the fixed order that ``RowStore.versions`` gives."""
    total = hashlib.sha256()
    for version in versions:
        clustering = [b"\0" if part is None else b"\1" + part for part in version.clustering_key]
        for part in (version.table.encode(), version.partition_key, version.value, *clustering):
            total.update(len(part).to_bytes(4, "big"))
            total.update(part)
        for number in (len(clustering), version.token, version.timestamp):
            total.update(number.to_bytes(8, "big", signed=True))
    return total.hexdigest()


def inside(token: Token, ranges: Sequence[Range]) -> bool:
    """True if ``token`` lies in one of ``ranges``."""
    return any(in_range(token, start, end) for start, end in ranges)


def _listed(table: str, key: bytes, partition: _Partition) -> Iterable[Version]:
    for clustering, versions in partition.rows.items():
        for timestamp, value in versions:
            yield Version(table, partition.token, key, clustering, timestamp, value)


def order(version: Version) -> tuple[str, bytes, tuple[bytes, ...], int, bytes]:
    """By this versions ascend wherever they are listed."""
    clustering = tuple(b"" if part is None else b"\x01" + part for part in version.clustering_key)
    return (version.table, version.partition_key, clustering, version.timestamp, version.value)
