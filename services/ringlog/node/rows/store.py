"""The port of a node's row storage: rows by table, token, partition key and clustering key.

A row is the set of its versions: pairs of write timestamp and encoded mutation. Adding an existing version changes
nothing. So rows that reach a node twice, by a stream and by the mutations topic, need no rule for merging. Deletes are
versions as well. A write of several statements is stored as a whole at the row of its first statement, and readers
resolve its effect (``ringlog.client.data.row_merge``). A write to a table with dropped or renamed columns is stored
with the stored names (``kernel.schema.stored``). The store knows neither epochs nor ownership: the caller selects the
tokens to list or to drop.

Transactions: a change is visible immediately and durable with the next ``commit``. The commit also stores a *mark*: the
epoch of the rows and the position in each partition of the mutations topic. After a crash, the store has the rows and
the mark of one commit, the last synced one or a later one. A restarted node reads the topic from the positions of the
mark, so it receives again all writes that the crash removed. No record below those positions is validated twice.

Compaction removes a version if others together have its effect (``ringlog.node.rows.compaction``).

Invariants: the results of ``versions`` and ``checksum`` depend on the set of versions, not on the order of arrival.
Rows and mark belong to the same commit.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ringlog.kernel.ring.ranges import Range, in_range
from ringlog.kernel.values import Epoch, Token, Value, field
from ringlog.wire.data import RowVersion


class RowsMark(Value):
    """The point in time that the rows of a commit reflect.

    Attributes:
        epoch: The adopted epoch that determines which ranges the rows belong to. It created the state ``state_id``.
        topic_id: The id of the mutations topic.
        positions: Offsets by partition of the topic: all records below are validated.
    """

    cluster_id: str = ""
    epoch: Epoch = 0
    state_id: str = ""
    topic_id: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)


class RowStore(ABC):
    """The rows of one node. Not thread-safe.

    The node holds its lock during every call, and consumes an iterator before the next change. A store on disk raises
    RowsDamaged from any call if the disk fails.
    """

    mark: RowsMark
    """The mark of the last commit."""
    ids: Mapping[str, str]
    """The table id of the rows under each table name, as set by ``identify``."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of row versions."""

    @abstractmethod
    def identify(self, table: str, table_id: str) -> None:
        """Set the id of the table that the following rows of this name belong to. It becomes durable with the rows."""

    @abstractmethod
    def add(self, version: RowVersion) -> None:
        """Add a version. Has no effect if it exists."""

    @abstractmethod
    def drop(self, table: str, ranges: Iterable[Range]) -> int:
        """Remove the rows of ``table`` with a token in one of ``ranges``. Return the number of removed versions."""

    @abstractmethod
    def listed(
        self, ranges: Iterable[Range], tables: Iterable[str] | None = None, after: RowVersion | None = None
    ) -> Iterator[RowVersion]:
        """Yield the versions with a token in one of ``ranges``, in ``order``, starting after ``after``.

        The cost is that of the versions that the caller consumes.
        """

    @abstractmethod
    def remove(self, versions: Iterable[RowVersion]) -> None:
        """Remove these versions. Has no effect for a version that does not exist."""

    @abstractmethod
    def partition(
        self, table: str, token: Token, partition_key: bytes, bytes_max: int | None = None
    ) -> list[RowVersion] | None:
        """Return the versions of one partition in ``order``.

        Return None if their writes exceed ``bytes_max`` bytes. The store reads no more than that.

        Args:
            token: The token of the partition key.
        """

    @abstractmethod
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
        """Return the next versions of one partition below ``below``, in descending ``order``.

        Args:
            in_rows: True for the versions of rows, False for those with an empty clustering key.
            count: The limit of versions.
            bytes_max: The page ends when it reaches this size.
        """

    @abstractmethod
    def sizes(self, table: str, after: Token | None = None) -> Iterator[tuple[Token, int]]:
        """Yield each token above ``after`` that has rows, ascending, with the size of its encoded writes in bytes."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the names of the tables that have rows, ascending."""

    @abstractmethod
    def commit(self, mark: RowsMark, sync: bool = False) -> None:
        """Make all changes durable, together with ``mark``.

        Args:
            sync: True if this commit and all earlier ones must be on disk on return.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store. Uncommitted changes are lost."""

    def versions(self, ranges: Iterable[Range], tables: Iterable[str] | None = None) -> list[RowVersion]:
        """Return everything that ``listed`` yields."""
        return list(self.listed(ranges, tables))


def reads_from(begin: Mapping[int, int], positions: Mapping[int, int]) -> dict[int, int]:
    """Return the offsets at the end of the rows, or at a later begin of the topic: reading continues there.

    A gap between the two may mean lost writes: ``ringlog.node.protocol.mutation_loop`` decides that.
    """
    return {partition: max(first, positions.get(partition, 0)) for partition, first in begin.items()}


class VersionsSum:
    """An incremental checksum of versions: SHA-256 over all fields of each."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, versions: Iterable[RowVersion]) -> None:
        """Add the next versions."""
        total = self._total
        for version in versions:
            clustering = [b"\0" if part is None else b"\1" + part for part in version.clustering_key]
            for part in (version.table.encode(), version.partition_key, version.value, *clustering):
                total.update(len(part).to_bytes(4, "big"))
                total.update(part)
            for number in (len(clustering), version.token, version.timestamp):
                total.update(number.to_bytes(8, "big", signed=True))

    def hex(self) -> str:
        """Return the checksum of all versions so far."""
        return self._total.hexdigest()


def checksum(versions: Iterable[RowVersion]) -> str:
    """Return the ``VersionsSum`` of versions in the order of ``RowStore.versions``."""
    total = VersionsSum()
    total.add(versions)
    return total.hex()


def bounded(versions: Iterable[RowVersion], bytes_max: int | None) -> list[RowVersion] | None:
    """Return the versions as a list, or None if their writes exceed ``bytes_max`` bytes."""
    found, size = [], 0
    for version in versions:
        size += len(version.value)
        if bytes_max is not None and size > bytes_max:
            return None
        found.append(version)
    return found


def inside(token: Token, ranges: Sequence[Range]) -> bool:
    """Return True if one of ``ranges`` contains ``token``."""
    return any(in_range(token, start, end) for start, end in ranges)


def order(version: RowVersion) -> tuple[str, Token, bytes, bytes, int, bytes]:
    """Return the sort key of versions in every listing."""
    clustering = packed_clustering(version.clustering_key)
    return (version.table, version.token, version.partition_key, clustering, version.timestamp, version.value)


def packed_clustering(key: Sequence[bytes | None]) -> bytes:
    """Encode a clustering key as a unique byte string: the length and the bytes of each part."""
    return b"".join([_NULL if part is None else len(part).to_bytes(4, "big") + part for part in key])


def unpacked_clustering(data: bytes) -> tuple[bytes | None, ...]:
    """Decode the result of ``packed_clustering``. Other bytes give an arbitrary key or ValueError."""
    found: list[bytes | None] = []
    at = 0
    while at < len(data):
        head, at = data[at : at + 4], at + 4
        if head == _NULL:
            found.append(None)
            continue
        end = at + int.from_bytes(head, "big")
        if end > len(data):
            raise ValueError("a part of a clustering key is cut off")
        found.append(data[at:end])
        at = end
    return tuple(found)


_NULL = b"\xff\xff\xff\xff"
