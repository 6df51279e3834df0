"""Rows in a SQLite file: one B-tree in listing order, written by one process.

===========  =================================================================================================
``rows``     One row for each version. All fields except the checksum form the key, so each token range of a
             table is an interval of the tree. It is listed, dropped or measured without reading other rows.
             ``sum`` is the CRC-32 of the row, verified on reading.
``tables``   The number of a table in ``rows``, its count of versions, and its id.
``mark``     One record: the mark of the last commit, and the owner of the rows.
===========  =================================================================================================

Batches: added versions wait in memory until the node reads, drops or commits. One statement then inserts all of them,
which is cheaper than one statement for each.

Transactions: the first change begins a transaction, and ``commit`` ends it with the mark. SQLite syncs the write-ahead
log at checkpoints and at synced commits. A crash leaves a prefix of the commits, each complete. Locking mode EXCLUSIVE
avoids shared memory, which a crash could leave inconsistent.

Validation: the file is used only after its application id, format, node and cluster have been checked. SQLite checks
pages as it reads them, and each row has a checksum. Any error ends the node. After an error the file is not used again,
because its content on disk is unknown. The write-ahead log found at the next start may exist only in memory: after a
failed sync the kernel may mark dirty pages as clean, and another sync reports success. So the log is copied into the
file and synced there before any row is used. The log must also belong to the file (``ringlog.node.rows.wal_owner``).

Size: memory use is bounded by ``CACHE_KB`` and the needs of one transaction. Dropped rows leave free pages, which new
rows reuse. After a drop, each commit returns some of them to the file system.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/withoutrowid.html; Rebello et al., "Can Applications
Recover from fsync Failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import Epoch, NodeId, Token
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.node.registers.spans import Spans
from ringlog.node.rows.pages import grouped
from ringlog.node.rows.store import RowsMark, RowStore, bounded, order, packed_clustering, unpacked_clustering
from ringlog.node.rows.wal_owner import LogIds, belong_together, ids_text
from ringlog.protocol.nodes.errors import COPY, RowsBehind, RowsDamaged, RowsForeign, RowsMixed, RowsNewer
from ringlog.wire.data import RowVersion

FORMAT: Final = 1
APPLICATION: Final = int.from_bytes(b"RLrw", "big")
CACHE_KB: Final = 64 * 1024
LOG_PAGES: Final = 4_000
"""The size of the write-ahead log, in pages, that triggers a checkpoint."""
LOG_BYTES: Final = 64 * 1024 * 1024
"""The write-ahead log is truncated to this size after a larger transaction."""
ALL_INTO_THE_FILE: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
COMING_MAX: Final = 4_000
"""The limit of added versions that wait for one insertion."""
FREED_PAGES: Final = 1_000
"""The limit of free pages that one commit returns to the file system."""
NEXT: Final = (
    "; if the mutations topic still has its first record, delete the file and its -wal and -shm files, and the "
    "node reads the topic again; otherwise replace the node"
)

ROWS = "rows.sqlite"
"""The name of the file in the folder of a node."""
_OPEN = f"""
PRAGMA page_size = 8192;
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA cache_size = -{CACHE_KB};
PRAGMA wal_autocheckpoint = {LOG_PAGES};
PRAGMA journal_size_limit = {LOG_BYTES};
PRAGMA temp_store = MEMORY;
PRAGMA trusted_schema = OFF;
PRAGMA cell_size_check = ON;
"""
_MAKE = (
    "CREATE TABLE rows (tab INTEGER NOT NULL, token INTEGER NOT NULL, key BLOB NOT NULL, clustering BLOB NOT NULL,"
    " at INTEGER NOT NULL, value BLOB NOT NULL, sum INTEGER NOT NULL,"
    " PRIMARY KEY (tab, token, key, clustering, at, value)) WITHOUT ROWID",
    "CREATE TABLE tables (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, versions INTEGER NOT NULL,"
    " id TEXT NOT NULL)",
    "CREATE TABLE mark (one INTEGER PRIMARY KEY CHECK (one = 1), mark TEXT NOT NULL, sum INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
_FIELDS = "token, key, clustering, at, value, sum"
_ADD = f"INSERT OR IGNORE INTO rows (tab, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_ORDER = "ORDER BY token, key, clustering, at, value"
_LIST = f"SELECT {_FIELDS} FROM rows WHERE tab = ? AND token BETWEEN ? AND ? {_ORDER}"
_AFTER = (
    f"SELECT {_FIELDS} FROM rows WHERE tab = ? AND token <= ? AND (token, key, clustering, at, value) > (?, ?, ?, ?, ?)"
    f" {_ORDER}"
)
_REMOVE = "DELETE FROM rows WHERE tab = ? AND token = ? AND key = ? AND clustering = ? AND at = ? AND value = ?"
_PAGE = (
    f"SELECT {_FIELDS} FROM rows WHERE tab = ? AND token = ? AND key = ? AND clustering {{}} x''"
    " {} ORDER BY clustering DESC, at DESC, value DESC LIMIT ?"
)
_BELOW = "AND (clustering, at, value) < (?, ?, ?)"
_PARTITION = f"SELECT {_FIELDS} FROM rows WHERE tab = ? AND token = ? AND key = ? ORDER BY clustering, at, value"
_SIZES = "SELECT token, SUM(LENGTH(value)) FROM rows WHERE tab = ? AND token > ? GROUP BY token ORDER BY token"
_DROP = "DELETE FROM rows WHERE tab = ? AND token BETWEEN ? AND ?"
_BELOW_ALL = -(2**63)
_NUMBERS = struct.Struct(">qqqII")


class DiskRows(RowStore):
    """The rows of ``node`` in the file ``path``, which is created if necessary.

    Args:
        cluster_id: The cluster that the rows must belong to, or an empty string to accept any.

    Raises:
        RowsDamaged: The file is corrupt, or the disk failed.
        RowsForeign: The file belongs to another program, node or cluster.
        RowsMixed: The write-ahead log does not belong to the file.
        RowsNewer: A later release wrote the file.
    """

    def __init__(self, path: Path, node: NodeId, cluster_id: str = "") -> None:
        self._path = path
        self._node = self._of = node
        self._failure: RowsDamaged | None = None
        self._frees = False
        self._numbers: dict[str, int] = {}
        self._versions: Counter[str] = Counter()
        self._stored: dict[str, int] = {}
        self._coming: defaultdict[str, list[tuple[Token, bytes, bytes, int, bytes]]] = defaultdict(list)
        self._comes = 0
        self.ids: dict[str, str] = {}
        self._log: LogIds = ("", "")
        with self._guarded():
            # Check before SQLite opens the file: opening it merges the log into it.
            if not belong_together(path):
                raise RowsMixed(
                    f"{path} is older than the write-ahead log beside it: it was restored from a copy. Do this: "
                    f"delete {path.name}-wal and {path.name}-shm, or restore those of the same copy"
                )
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            with self._guarded():
                self._open()
            self._check_owner(cluster_id)
        except BaseException:
            self._db.close()
            raise
        self._count = sum(self._versions.values())

    def _open(self) -> None:
        """Check the identity of the file, then read its mark and tables."""
        # Must precede the first access: in WAL mode SQLite then needs no shared memory file.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = self._one("PRAGMA application_id")
        (version,) = self._one("PRAGMA user_version")
        (tables,) = self._one("SELECT COUNT(*) FROM sqlite_master")
        if application != APPLICATION and (application or version or tables):
            raise RowsForeign(f"{self._path} is not a file of rows of this program: move it away")
        if version > FORMAT:
            raise RowsNewer(
                f"{self._path} has the format {version}, this release knows {FORMAT}: start the release that wrote it"
            )
        self._db.executescript(_OPEN)
        if not tables:
            self._begin()
            for statement in _MAKE:
                self._db.execute(statement)
            self._write_mark(RowsMark())
            self._db.execute("COMMIT")
        # The log may never have reached the disk. Copy and sync it before its content is used.
        self._db.execute(ALL_INTO_THE_FILE)
        self.mark = self._read_mark()
        self._begin_log()
        for number, name, versions, table_id in self._db.execute("SELECT number, name, versions, id FROM tables"):
            self._numbers[name], self._versions[name], self.ids[name] = number, versions, table_id
        self._stored = dict(self._versions)

    def _begin_log(self) -> None:
        """Write a new log id into the file. Every commit of the log that begins now contains it."""
        # This one commit names both the new id and the old one: a crash may leave it in the log while the file still
        # has the old id.
        self._log = secrets.token_hex(16), self._log[0]
        self._begin()
        self._write_mark(self.mark)
        self._db.execute("COMMIT")
        self._db.execute(ALL_INTO_THE_FILE)
        self._log = self._log[0], ""

    def _check_owner(self, cluster_id: str) -> None:
        mark = self.mark
        if self._of != self._node:
            raise RowsForeign(f"{self._path} has the rows of node {self._of}, this is {self._node}: {COPY}")
        if mark.cluster_id and cluster_id and mark.cluster_id != cluster_id:
            raise RowsForeign(f"{self._path} is of cluster {mark.cluster_id}, this one is {cluster_id}: {COPY}")

    def check(self, cluster_id: str, acknowledged: Epoch) -> None:
        """Raise RowsForeign or RowsBehind unless the rows contain everything that the node acknowledged.

        A new file passes: the node then reads the mutations topic from its beginning.
        """
        self._check_owner(cluster_id)
        if 0 < self.mark.epoch < acknowledged:
            raise RowsBehind(
                f"this node acknowledged epoch {acknowledged}, {self._path} is as of {self.mark.epoch}: "
                f"restore it{NEXT}"
            )

    def seen(self) -> tuple[KnownEpoch, ...]:
        """Return the epoch of the rows, which the log must have."""
        return (KnownEpoch(self.mark.epoch, self.mark.state_id, str(self._path)),) if self.mark.state_id else ()

    # ------------------------------------------------------------------------------------------------ changes

    def __len__(self) -> int:
        self._take_in()
        return self._count

    def identify(self, table: str, table_id: str) -> None:
        with self._guarded():
            self._begin()
            number = self._numbers.get(table) or self._new(table)
            self._db.execute("UPDATE tables SET id = ? WHERE number = ?", (table_id, number))
        self.ids[table] = table_id

    def add(self, version: RowVersion) -> None:
        if self._failure is not None:
            raise self._failure
        clustering = packed_clustering(version.clustering_key)
        self._coming[version.table].append(
            (version.token, version.partition_key, clustering, version.timestamp, version.value)
        )
        self._comes += 1
        if self._comes >= COMING_MAX:
            self._take_in()

    def _take_in(self) -> None:
        """Insert all waiting versions into the tree."""
        if not self._comes:
            return
        with self._guarded():
            self._begin()
            for table, rows in self._coming.items():
                number = self._numbers.get(table) or self._new(table)
                added = self._db.executemany(_ADD, [(number, *row, _sum(number, *row)) for row in rows]).rowcount
                self._count += added
                self._versions[table] += added
        self._coming.clear()
        self._comes = 0

    def _new(self, table: str) -> int:
        number = max(self._numbers.values(), default=0) + 1
        self._db.execute("INSERT INTO tables VALUES (?, ?, 0, '')", (number, table))
        self._numbers[table] = number
        self._stored[table] = 0
        return number

    def drop(self, table: str, ranges: Iterable[Range]) -> int:
        self._take_in()
        number, dropped = self._numbers.get(table), 0
        if number is None:
            return 0
        with self._guarded():
            self._begin()
            for _, first, last in Spans({table: ranges}):
                dropped += self._db.execute(_DROP, (number, first, last)).rowcount
        self._count -= dropped
        self._versions[table] -= dropped
        self._frees |= dropped > 0
        return dropped

    def commit(self, mark: RowsMark, sync: bool = False) -> None:
        self._take_in()
        with self._guarded():
            self._begin()
            for table, versions in self._versions.items():
                if self._stored[table] != versions:
                    self._db.execute("UPDATE tables SET versions = ? WHERE name = ?", (versions, table))
                    self._stored[table] = versions
            self._write_mark(mark)
            self._db.execute("COMMIT")
            if sync:
                self._sync(mark)
            if self._frees:
                self._db.executescript(f"PRAGMA incremental_vacuum({FREED_PAGES})")
                self._frees = self._one("PRAGMA freelist_count") != (0,)
        self.mark = mark

    def _sync(self, mark: RowsMark) -> None:
        """Sync all commits so far: one synced commit makes the earlier commits of the log durable."""
        self._db.execute("PRAGMA synchronous = FULL")
        self._begin()
        self._write_mark(mark)
        self._db.execute("COMMIT")
        self._db.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        self._coming.clear()
        self._comes = 0
        self._db.close()

    # -------------------------------------------------------------------------------------------------- reads

    def listed(
        self, ranges: Iterable[Range], tables: Iterable[str] | None = None, after: RowVersion | None = None
    ) -> Iterator[RowVersion]:
        self._take_in()
        wanted, names = tuple(ranges), self._numbers.keys() if tables is None else self._numbers.keys() & set(tables)
        for table in sorted(names):
            if after is not None and table < after.table:
                continue
            begun = order(after)[1:] if after is not None and table == after.table else ()
            for _, first, last in Spans({table: wanted}):
                if begun and begun[0] >= first:
                    if begun[0] <= last:
                        yield from self._found(table, _AFTER, (self._numbers[table], last, *begun))
                else:
                    yield from self._found(table, _LIST, (self._numbers[table], first, last))

    def partition(
        self, table: str, token: Token, partition_key: bytes, bytes_max: int | None = None
    ) -> list[RowVersion] | None:
        self._take_in()
        number = self._numbers.get(table)
        if number is None:
            return []
        return bounded(self._found(table, _PARTITION, (number, token, partition_key)), bytes_max)

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
        self._take_in()
        number = self._numbers.get(table)
        if number is None:
            return []
        begun = () if below is None else order(below)[3:]
        query = _PAGE.format(">" if in_rows else "=", _BELOW if begun else "")
        found = self._found(table, query, (number, token, partition_key, *begun, count))
        return list(next(grouped(((one, len(one.value)) for one in found), bytes_max), ()))

    def remove(self, versions: Iterable[RowVersion]) -> None:
        self._take_in()
        with self._guarded():
            for version in versions:
                if (number := self._numbers.get(version.table)) is None:
                    continue
                self._begin()
                gone = self._db.execute(_REMOVE, (number, *order(version)[1:])).rowcount
                self._count -= gone
                self._versions[version.table] -= gone
                self._frees |= gone > 0

    def sizes(self, table: str, after: Token | None = None) -> Iterator[tuple[Token, int]]:
        self._take_in()
        number = self._numbers.get(table)
        if number is not None:
            with self._guarded():
                yield from self._db.execute(_SIZES, (number, _BELOW_ALL if after is None else after))

    def tables(self) -> list[str]:
        self._take_in()
        return sorted(table for table, versions in self._versions.items() if versions)

    def _found(self, table: str, query: str, asked: tuple[Any, ...]) -> Iterator[RowVersion]:
        number = self._numbers[table]
        with self._guarded():
            for token, key, clustering, at, value, total in self._db.execute(query, asked):
                if total != _sum(number, token, key, clustering, at, value):
                    raise sqlite3.DatabaseError(f"a row of {table} with token {token} does not have its sum")
                yield RowVersion(table, token, key, unpacked_clustering(clustering), at, value)

    # ----------------------------------------------------------------------------------------------- internals

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")

    def _one(self, query: str) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._db.execute(query).fetchone()
        return found

    def _write_mark(self, mark: RowsMark) -> None:
        fields = {name: getattr(mark, name) for name in ("cluster_id", "epoch", "state_id", "topic_id")}
        text = json.dumps({"node": self._of, **fields, "positions": sorted(mark.positions.items())})
        text = f"{{{ids_text(self._log)}, {text[1:]}"
        self._db.execute("INSERT OR REPLACE INTO mark VALUES (1, ?, ?)", (text, crc32(text.encode())))

    def _read_mark(self) -> RowsMark:
        text, total = self._one("SELECT mark, sum FROM mark")
        if total != crc32(str(text).encode()):
            raise sqlite3.DatabaseError("the mark does not have its sum")
        found: dict[str, Any] = json.loads(text)
        self._log = found.pop("log"), found.pop("was")
        self._of = found.pop("node")
        return RowsMark(**{**found, "positions": dict(found["positions"])})

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Convert errors of SQLite to RowsDamaged. The first error is final: later calls raise it again."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (sqlite3.Error, struct.error, ValueError, KeyError, TypeError) as error:
            self._failure = RowsDamaged(f"{self._path}: {error}: repair the disk, or restore the file{NEXT}")
            raise self._failure from error


def _sum(number: int, token: Token, key: bytes, clustering: bytes, at: int, value: bytes) -> int:
    head = _NUMBERS.pack(number, token, at, len(key), len(clustering))
    return crc32(b"".join((head, key, clustering, value)))
