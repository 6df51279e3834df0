"""States of rows on disk: one SQLite file per source partition, one transaction per plan part.

All writes of a base key are in one source partition, in order, and one task processes a source partition of a part.
Each file thus has one user at a time. It contains the result of all writes before its *position*, an offset.

Invariants:

* A part moves the position from its start to its end. The previous values of its changes are kept until Spark has
  committed the batch. A replayed part thus starts with the same states. The driver can go back before a part, however
  far. A task goes back to its own start at most, since another attempt may have finished the part.
* A part that starts after the position means that states were lost, by a deleted file or an older copy. A part that
  starts before everything that can be undone means that the file belongs to another checkpoint. Both stop the job.
* A task that comes too late finds a position after its part, or a newer incarnation of the writer, and stops.
* States are durable before the driver marks the part as done, because the transaction is on disk before the task ends.
  After a crash, the write-ahead log may only have been in memory, if a sync had failed. It is copied into the file and
  synced before the first read.

Expired states are deleted in slices, some with each part, by a cursor that cycles through the file.
"""

from __future__ import annotations

import fcntl
import json
import marshal
import sqlite3
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from ringlog_cdc.definition.image_states import is_common
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.errors import CdcError
from ringlog_cdc.stored_files import VERSIONS, check_version

MARSHAL = 2
"""Version of ``marshal`` without references. Later versions of Python can read it."""

CHANGES_MAX = 40_000
"""Changed states that are written before more are fetched. At twice as many, they are written before any further
change.
"""
HELD_BYTES_MAX = 48 << 20
"""The same limit in bytes, for fetched states and the writes since."""

CACHE = "cache_size = -65536"
"""SQLite's page cache: 64 MiB."""
ALL_INTO_THE_FILE = "wal_checkpoint(TRUNCATE)"
"""Copies the whole write-ahead log into the file, with a sync."""
ASKED_TOGETHER = 500
"""Keys per query."""
SWEPT_LEAST = 100
SWEPT_FOR_EACH = 2
"""Number of states that a part checks for expiry: at least ``SWEPT_LEAST``, plus this number per added state. Above 1,
the sweep outpaces growth.
"""

SCHEMA = (
    f"PRAGMA user_version = {VERSIONS['images']}",
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE states (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE parts (start INTEGER PRIMARY KEY, about TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE undo (start INTEGER, number INTEGER, changes BLOB NOT NULL, PRIMARY KEY (start, number))",
)
"""``undo`` has the previous values of a part's changes, in chunks. ``parts`` has ``about`` as it was before the
part.
"""


class ImagesLost(CdcError):
    """The stored states do not match the plans."""

    def __init__(self, partition: int, message: str) -> None:
        super().__init__(
            "images_lost",
            f"source partition {partition}: {message}",
            (
                "restore images/ of the checkpoint, or pass --reset-images: rows then have no preimage until "
                "the next write to them"
            ),
        )


class ImageStore:
    """The states of one source partition.

    Call ``rewind`` or ``begin``, then the methods of ``States``, then ``commit``. ``close`` rolls back an open
    transaction.
    """

    def __init__(self, folder: Path, partition: int) -> None:
        """Open the file. Waits for the process that uses it.

        Raises:
            ImagesLost: The file is not a database.
            CdcError: ``images_elsewhere``: the folder is not on this machine. ``checkpoint_version``.
        """
        self.partition = partition
        self._open(folder)
        self._stored: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, Any] = {}
        self._held_bytes = 0
        self._about: dict[str, Any] = {}
        self._common: set[bytes] = set()
        self._emptied: set[int] = set()
        self._start = self._chunks = self._added = 0

    def _open(self, folder: Path) -> None:
        """Lock and open the file, and copy a leftover write-ahead log into it."""
        try:
            self._lock = (folder / f"{self.partition}.lock").open("w")
        except FileNotFoundError as error:
            raise CdcError(
                "images_elsewhere",
                f"{folder} does not exist on this machine",
                "put the checkpoint in a folder that all executors see under the same path",
            ) from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        path = folder / f"{self.partition}.db"
        self._base = sqlite3.connect(path, isolation_level=None)
        try:
            # The lock excludes other processes. In exclusive mode SQLite needs no shared memory, which files on remote
            # hosts could not provide.
            settings = "locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL", CACHE
            for pragma in (*settings, ALL_INTO_THE_FILE):
                self._base.execute(f"PRAGMA {pragma}")
            if self._is_there():
                (version,) = self._base.execute("PRAGMA user_version").fetchone()
                check_version("images", version or None, path)
        except CdcError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self.close()
            raise ImagesLost(self.partition, f"the file of row states is not readable: {error}") from error

    def close(self) -> None:
        """Roll back an open transaction and release the file."""
        if self._base.in_transaction:
            self._base.execute("ROLLBACK")
        self._base.close()
        self._lock.close()

    # ---------------------------------------------------------------------------------------------------- a part

    def rewind(self, start: int, born: int, owner: int) -> None:
        """Reset the states to those of an offset, before a part. Called by the driver.

        Args:
            start: Start of the part.
            born: Offset where images begin in this partition.
            owner: Epoch of the registration of the writer's incarnation.

        Raises:
            ImagesLost: The states of ``start`` are not available.
            CdcError: ``images_taken``: a newer writer owns the states.
        """
        self._base.execute("BEGIN IMMEDIATE")
        if not self._is_there():
            if start != born:
                raise ImagesLost(
                    self.partition, f"no stored row states; they start at offset {born}, and the part starts at {start}"
                )
            for statement in SCHEMA:
                self._base.execute(statement)
            self._set({"position": born, "owner": 0, "numbers": {}, "next": 0, "common": [], "cursor": ""})
        known = self._load()
        self._go_to(start, owner)
        # Nothing changed: without a commit there is nothing to sync.
        if self._about == known:
            self._base.execute("ROLLBACK")
            return
        self._set(self._about)
        self._base.execute("COMMIT")

    def begin(self, start: int, end: int, owner: int) -> None:
        """Start a part, for the first time or again. Called by a task.

        Args:
            start: First offset of the part.
            end: Offset after the part.
            owner: Epoch of the registration of the writer's incarnation.

        Raises:
            ImagesLost: The states of ``start`` are not available.
            CdcError: ``images_taken``: a newer writer owns the states, or they are past this part.
        """
        self._base.execute("BEGIN IMMEDIATE")
        if not self._is_there():
            raise ImagesLost(self.partition, "this worker sees no stored row states, but the driver has some")
        position = self._load()["position"]
        if position > end:
            raise CdcError(
                "images_taken",
                f"states of partition {self.partition} are at offset {position}, past the end {end} of this part",
            )
        self._go_to(start, owner)
        self._base.execute("INSERT INTO parts VALUES (?, ?)", (start, json.dumps(self._about, sort_keys=True)))
        self._common = {bytes.fromhex(number) for number in self._about["common"]}
        self._start = start

    def _is_there(self) -> bool:
        return self._base.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone() is not None

    def _go_to(self, start: int, owner: int) -> None:
        """Load the metadata, and undo the parts from ``start`` on."""
        self.check_owner(owner)
        self._about = self._load()
        while (position := self._about["position"]) > start:
            self._take_back(start, position)
        if self._about["position"] < start:
            raise ImagesLost(
                self.partition,
                f"row states end at offset {self._about['position']}, before the start {start} of the part",
            )
        self._about["owner"] = owner

    def commit(self, end: int, now: int, kept_from: int) -> None:
        """Commit the current part.

        Args:
            end: Offset after the part.
            now: Append time of its last write, microseconds.
            kept_from: Parts that start before this offset are never replayed. Their undo data is deleted.
        """
        if self._chunks or self._changed:
            self._sweep(now)
        self._flush()
        for table in ("undo", "parts"):
            self._base.execute(f"DELETE FROM {table} WHERE start < ?", (kept_from,))
        self._set(self._about | {"position": end, "common": sorted(number.hex() for number in self._common)})
        self._base.execute("COMMIT")

    @property
    def position(self) -> int:
        """Offset of the first write that is not in the states. -1 if the file has no states."""
        return int(self._load()["position"]) if self._is_there() else -1

    def check_owner(self, owner: int) -> None:
        """Raise CdcError ``images_taken`` if a later incarnation of the writer owns the states."""
        if self._is_there() and self._load()["owner"] > owner:
            raise CdcError("images_taken", f"a newer writer owns the states of partition {self.partition}")

    def keep_only(self, tables: Iterable[tuple[str, str]]) -> None:
        """Drop all tables except these (full name, id). The others may have missed writes."""
        kept = {json.dumps(table) for table in tables}
        self._about["numbers"] = {name: n for name, n in self._about["numbers"].items() if name in kept}

    def _load(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self._base.execute("SELECT name, value FROM about")}

    def _set(self, about: dict[str, Any]) -> None:
        rows = [(name, json.dumps(value, sort_keys=True)) for name, value in about.items()]
        self._base.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    def _take_back(self, start: int, position: int) -> None:
        """Undo the newest part, which ends at ``position`` and must not start before ``start``."""
        newest = self._base.execute("SELECT start, about FROM parts ORDER BY start DESC LIMIT 1").fetchone()
        if newest is None or newest[0] < start:
            raise ImagesLost(
                self.partition, f"row states at offset {position} cannot be reverted to the start {start} of the part"
            )
        chunks = self._base.execute("SELECT changes FROM undo WHERE start = ? ORDER BY number DESC", (newest[0],))
        for (chunk,) in chunks.fetchall():
            self._write(marshal.loads(chunk).items())
        self._base.execute("DELETE FROM undo WHERE start = ?", (newest[0],))
        self._base.execute("DELETE FROM parts WHERE start = ?", (newest[0],))
        self._about = json.loads(newest[1]) | {"owner": self._about["owner"]}

    # ---------------------------------------------------------------------------------------------------- states

    def number(self, name: str, table: ImageTable) -> int:
        """Return the number of a table in keys. A table recreated with the same name gets another one."""
        known: dict[str, int] = self._about["numbers"]
        found = known.get(json.dumps((name, table.id)))
        if found is None:
            found = known[json.dumps((name, table.id))] = self._about["next"]
            self._about["next"] += 1
        return found

    def forget(self, name: str, table: str) -> None:
        """Drop the states of the table with this full name and id, if it has any."""
        number: int | None = self._about["numbers"].get(json.dumps((name, table)))
        if number is None or number in self._emptied:
            return
        # The number stays, because writes later in this part may already use it.
        for key in self.under(number.to_bytes(4, "big")):
            self.put(key, None)
        self._emptied.add(number)

    def get(self, key: bytes) -> Any:
        """Return the state of a key, or None."""
        if key in self._changed:
            return self._changed[key]
        data = self._stored[key] if key in self._stored else self._look(key)
        return None if data is None else marshal.loads(data)

    def _look(self, key: bytes) -> bytes | None:
        """Read a state from the file, and remember it for ``undo``."""
        found = self._base.execute("SELECT value FROM states WHERE key = ?", (key,)).fetchone()
        self._stored[key] = None if found is None else found[0]
        return self._stored[key]

    def has_common(self, key: bytes) -> bool:
        """Return False if no partition of the key's table has common state."""
        return key[:4] in self._common

    def expect(self, size: int) -> None:
        """Make room for the states of the next ``size`` bytes of writes."""
        self._held_bytes += size
        if self._held_bytes > HELD_BYTES_MAX:
            self._flush()
            self._held_bytes = size

    def fetch(self, keys: Iterable[bytes]) -> None:
        """Prefetch the states of these keys, many per query."""
        if len(self._changed) >= CHANGES_MAX:
            self._flush()
        # A changed key is in ``stored`` too.
        stored = self._stored
        wanted = sorted({key for key in keys if key not in stored})
        for at in range(0, len(wanted), ASKED_TOGETHER):
            some = wanted[at : at + ASKED_TOGETHER]
            # Keys without a state are remembered as None, so they are not read again.
            stored.update(dict.fromkeys(some))
            places = ",".join("?" * len(some))
            stored.update(self._base.execute(f"SELECT key, value FROM states WHERE key IN ({places})", some))
        self._held_bytes += sum(len(stored[key] or b"") for key in wanted)

    def put(self, key: bytes, value: Any) -> None:
        """Store a state. None deletes it."""
        if key not in self._changed:
            if len(self._changed) >= 2 * CHANGES_MAX:
                self._flush()
            # The previous value is needed for ``undo``.
            if key not in self._stored:
                self._look(key)
        self._changed[key] = value
        if self._emptied and value is not None:
            self._emptied.discard(int.from_bytes(key[:4], "big"))
        if key[-1] == 0 and is_common(key):
            self._common.add(key[:4])

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """Return the keys with this prefix, in ascending order."""
        self._flush()
        # The smallest key after all keys with the prefix. The first byte belongs to a small table number: no overflow.
        behind = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
        rows = self._base.execute("SELECT key FROM states WHERE key >= ? AND key < ? ORDER BY key", (prefix, behind))
        return [key for (key,) in rows]

    def _flush(self) -> None:
        """Write the changed states, and their previous values to ``undo``."""
        if self._changed:
            before = {key: self._stored[key] for key in self._changed}
            self._base.execute(
                "INSERT INTO undo VALUES (?, ?, ?)", (self._start, self._chunks, marshal.dumps(before, MARSHAL))
            )
            self._write(
                (key, None if value is None else marshal.dumps(value, MARSHAL)) for key, value in self._changed.items()
            )
            self._chunks += 1
            self._added += sum(1 for value in before.values() if value is None)
        self._stored, self._changed, self._held_bytes = {}, {}, 0

    def _write(self, states: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write states in the order of their keys, which keeps accesses to the tree local."""
        ordered = sorted(states, key=itemgetter(0))
        kept = [item for item in ordered if item[1] is not None]
        self._base.executemany("INSERT OR REPLACE INTO states VALUES (?, ?)", kept)
        gone = [(key,) for key, value in ordered if value is None]
        self._base.executemany("DELETE FROM states WHERE key = ?", gone)

    def _sweep(self, now: int) -> None:
        """Delete states after the cursor that have expired or whose table is gone."""
        self._flush()
        tables = {number.to_bytes(4, "big") for number in self._about["numbers"].values()}
        cursor, slice_size = bytes.fromhex(self._about["cursor"]), SWEPT_LEAST + self._added * SWEPT_FOR_EACH
        found = self._base.execute(
            "SELECT key, value FROM states WHERE key > ? ORDER BY key LIMIT ?", (cursor, slice_size)
        ).fetchall()
        for key, data in found:
            if key[:4] not in tables or marshal.loads(data)[0] <= now:
                self._stored[key] = data
                self.put(key, None)
        self._about["cursor"] = found[-1][0].hex() if len(found) == slice_size else ""
