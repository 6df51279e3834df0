"""Rows of a node, by table, token, partition key and clustering key: what a store of them promises.

A row is the set of its versions, each (write timestamp, encoded mutation). Adding a version that is already there
changes nothing, so rows that reach a node twice (streamed from another node, and read from the mutations topic) merge
without a rule of their own. Deletes are versions like all others, and so is a write of several statements, which stands
whole at the row of its first one: what they do is decided on reading (``ringlog.client.data.row_merge``). A write to a
table of which columns were dropped or renamed is kept in stored names (``kernel.schema.stored``). Nothing here knows
about epochs or ownership: the caller says which tokens to list or to drop.

**One transaction.** What is changed is seen at once, and lasts with the next ``commit``, which writes down with it what
the rows are as of: the *mark*, with the position in each partition of the mutations topic. After a crash the rows are
those of one commit, with the mark of that one: of the last that was synced, or of a later one. So a restarted node
reads on at the mark's positions. What a crash took from the end is read, or streamed, again; nothing is judged anew.

**Compaction.** A version is removed if others have its effect, too (``ringlog.node.rows.compaction``).

Invariants: what ``versions`` and ``checksum`` give depends only on the set of versions, not on the order of arrival;
rows and mark are of one commit.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ringlog.kernel.ring.ranges import Range, in_range
from ringlog.kernel.values import Epoch, Token
from ringlog.wire.data import RowVersion


@dataclass(frozen=True, slots=True)
class RowsMark:
    """What rows are as of. ``positions``: partition of the mutations topic ``topic_id`` to the offset below which it is
    judged; ``epoch``, made by ``state_id``: whose ranges the rows are.
    """

    cluster_id: str = ""
    epoch: Epoch = 0
    state_id: str = ""
    topic_id: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)


class RowStore(ABC):
    """The rows of one node. Not thread-safe: the node holds its lock around every call, and takes what it wants of an
    iterator before the next change.

    Every call of one on a disk raises RowsDamaged where that fails.
    """

    mark: RowsMark
    """Of the last commit."""
    ids: Mapping[str, str]
    """Of which table the rows of a name are, by its id: what ``identify`` said last."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of row versions."""

    @abstractmethod
    def identify(self, table: str, table_id: str) -> None:
        """The rows that are added under this name are of that table; it lasts as they do."""

    @abstractmethod
    def add(self, version: RowVersion) -> None:
        """Keep a version; nothing changes if it was there already."""

    @abstractmethod
    def drop(self, table: str, ranges: Iterable[Range]) -> int:
        """Forget the rows of ``table`` whose token lies in one of ``ranges``; the number of versions dropped."""

    @abstractmethod
    def listed(
        self, ranges: Iterable[Range], tables: Iterable[str] | None = None, after: RowVersion | None = None
    ) -> Iterator[RowVersion]:
        """The versions whose token lies in one of ``ranges``, in ``order``, from the one after ``after`` on; costs what
        is taken.
        """

    @abstractmethod
    def remove(self, versions: Iterable[RowVersion]) -> None:
        """Forget these versions; nothing changes for one that is not there."""

    @abstractmethod
    def partition(
        self, table: str, token: Token, partition_key: bytes, bytes_max: int | None = None
    ) -> list[RowVersion] | None:
        """The versions of one partition, in ``order``; ``token``: that of its key. None if their writes have more than
        ``bytes_max`` bytes; no more than that is read.
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
        """The next versions of one partition in descending ``order``, those below ``below``: of its rows, or those with
        an empty clustering key. At most ``count``, and none after ``bytes_max`` bytes are reached.
        """

    @abstractmethod
    def sizes(self, table: str, after: Token | None = None) -> Iterator[tuple[Token, int]]:
        """Each token above ``after`` that has rows, with the bytes of its encoded writes, ascending."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Names of the tables that hold rows, ascending."""

    @abstractmethod
    def commit(self, mark: RowsMark, sync: bool = False) -> None:
        """What was changed lasts from now on, as of ``mark``. ``sync``: that, and all before it, is on the disk."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the disk; what was not committed is lost."""

    def versions(self, ranges: Iterable[Range], tables: Iterable[str] | None = None) -> list[RowVersion]:
        """All that ``listed`` gives."""
        return list(self.listed(ranges, tables))


def reads_from(begin: Mapping[int, int], positions: Mapping[int, int]) -> dict[int, int]:
    """Where reading the mutations topic goes on, by partition: where the rows end, or later, where the topic begins.

    Whether what lies between is missed is not decided here: see ``ringlog.node.protocol.turn``.
    """
    return {partition: max(first, positions.get(partition, 0)) for partition, first in begin.items()}


class VersionsSum:
    """The checksum of versions, one after the other: SHA-256 over every field of each."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, versions: Iterable[RowVersion]) -> None:
        """These follow."""
        total = self._total
        for version in versions:
            clustering = [b"\0" if part is None else b"\1" + part for part in version.clustering_key]
            for part in (version.table.encode(), version.partition_key, version.value, *clustering):
                total.update(len(part).to_bytes(4, "big"))
                total.update(part)
            for number in (len(clustering), version.token, version.timestamp):
                total.update(number.to_bytes(8, "big", signed=True))

    def hex(self) -> str:
        """The sum of what has come."""
        return self._total.hexdigest()


def checksum(versions: Iterable[RowVersion]) -> str:
    """``VersionsSum`` of versions in the fixed order that ``RowStore.versions`` gives."""
    total = VersionsSum()
    total.add(versions)
    return total.hex()


def bounded(versions: Iterable[RowVersion], bytes_max: int | None) -> list[RowVersion] | None:
    """The versions as a list; None if their writes have more than ``bytes_max`` bytes."""
    found, size = [], 0
    for version in versions:
        size += len(version.value)
        if bytes_max is not None and size > bytes_max:
            return None
        found.append(version)
    return found


def inside(token: Token, ranges: Sequence[Range]) -> bool:
    """True if ``token`` lies in one of ``ranges``."""
    return any(in_range(token, start, end) for start, end in ranges)


def order(version: RowVersion) -> tuple[str, Token, bytes, bytes, int, bytes]:
    """By this versions ascend wherever they are listed."""
    clustering = packed_clustering(version.clustering_key)
    return (version.table, version.token, version.partition_key, clustering, version.timestamp, version.value)


def packed_clustering(key: Sequence[bytes | None]) -> bytes:
    """A clustering key as one byte string, another one for each key: the length of each part, and the part."""
    return b"".join([_NULL if part is None else len(part).to_bytes(4, "big") + part for part in key])


def unpacked_clustering(data: bytes) -> tuple[bytes | None, ...]:
    """The key of ``packed_clustering``; of other bytes some key, or ValueError."""
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
