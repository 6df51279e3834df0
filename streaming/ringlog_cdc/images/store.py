"""States of rows on disk: one SQLite file a source partition, one transaction a plan part.

All writes of a base key lie in one source partition, in order, and one task carries out a source partition of a part.
So each file has one user at a time; what it holds is what the writes before its *position*, an offset, have left.

- A part moves the position from its begin to its end. What it changed is kept as it was before, until Spark has
  committed the batch for good: a part that is carried out again begins with the states that it had. The driver goes
  back before a part, however far; a task at most to the begin of its own, for another attempt may have done it.
- A part that begins beyond the position means that states were lost, by a deleted file or an older copy of it; one
  before everything that can be taken back, that the file belongs to another checkpoint. Neither is guessed about.
- A task that comes too late finds a position behind its part, or a newer incarnation of the writer, and stops.

States count for good when the part does: its transaction is on disk before its task ends, and so before the driver
marks the part as carried out. What a process that ended left in the write-ahead log may come from memory alone, if a
sync had failed: it is copied into the file, and synced there, before anybody learns of it.

Forgotten states are swept away in slices, some with each part, by a cursor that goes round the file.
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

from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.errors import CdcError
from ringlog_cdc.images.state import is_common

MARSHAL = 2
"""The version of ``marshal`` without references: later Pythons read it."""

CHANGES_MAX = 40_000
"""N changed states are written before more are fetched; twice as many before any other is changed."""
HELD_BYTES_MAX = 48 << 20
"""Likewise, of what was fetched and of the writes that went by since."""

CACHE = "cache_size = -65536"
ALL_INTO_THE_FILE = "wal_checkpoint(TRUNCATE)"
ASKED_TOGETHER = 500
SWEPT_LEAST = 100
SWEPT_FOR_EACH = 2
"""States that a part looks at whether they are forgotten, at least and for each state that it adds."""

SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE states (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE parts (start INTEGER PRIMARY KEY, about TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE undo (start INTEGER, number INTEGER, changes BLOB NOT NULL, PRIMARY KEY (start, number))",
)


class ImagesLost(CdcError):
    """The states of rows are not those that the plans say."""

    def __init__(self, partition: int, message: str) -> None:
        super().__init__(
            "images_lost",
            f"source partition {partition}: {message}",
            "bring back images/ of the checkpoint; or begin without, with --images-anew: rows then have no preimage "
            "until they are written again",
        )


class ImageStore:
    """The states of a source partition: ``rewind``, ``begin``, states, ``commit``; ``close`` gives up what is open."""

    def __init__(self, folder: Path, partition: int) -> None:
        """Waits for the process that uses the file. Raises ImagesLost, or CdcError ``images_elsewhere``."""
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
        try:
            self._lock = (folder / f"{self.partition}.lock").open("w")
        except FileNotFoundError as error:
            raise CdcError(
                "images_elsewhere",
                f"{folder} is not on this machine",
                "the checkpoint must be a folder that all executors see under the same path",
            ) from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._base = sqlite3.connect(folder / f"{self.partition}.db", isolation_level=None)
        try:
            # Nobody else is there: no memory need be shared, which files on other hosts could not.
            settings = "locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL", CACHE
            for pragma in (*settings, ALL_INTO_THE_FILE):
                self._base.execute(f"PRAGMA {pragma}")
        except sqlite3.DatabaseError as error:
            self.close()
            raise ImagesLost(self.partition, f"the file of its rows is none: {error}") from error

    def close(self) -> None:
        """Give up what was begun and not committed."""
        if self._base.in_transaction:
            self._base.execute("ROLLBACK")
        self._base.close()
        self._lock.close()

    # ---------------------------------------------------------------------------------------------------- a part

    def rewind(self, start: int, born: int, owner: int) -> None:
        """Before a part, by the driver: states are those of offset ``start`` again, or of the first one.

        ``born``: the offset at which images begin in this partition; ``owner``: epoch at which the writer's incarnation
        was registered. Raises ImagesLost, or CdcError ``images_taken``.
        """
        self._base.execute("BEGIN IMMEDIATE")
        if not self._is_there():
            if start != born:
                raise ImagesLost(self.partition, f"no states of rows, which begin at {born}; it goes on at {start}")
            for statement in SCHEMA:
                self._base.execute(statement)
            self._set({"position": born, "owner": 0, "numbers": {}, "next": 0, "common": [], "cursor": ""})
        known = self._load()
        self._go_to(start, owner)
        if self._about == known:
            self._base.execute("ROLLBACK")
            return
        self._set(self._about)
        self._base.execute("COMMIT")

    def begin(self, start: int, end: int, owner: int) -> None:
        """A part from offset ``start`` to before ``end``, for the first time or once more; likewise."""
        self._base.execute("BEGIN IMMEDIATE")
        if not self._is_there():
            raise ImagesLost(self.partition, "no states of rows, and the driver has some")
        position = self._load()["position"]
        if position > end:
            raise CdcError("images_taken", f"states of partition {self.partition} are of {position}, behind {end}")
        self._go_to(start, owner)
        self._base.execute("INSERT INTO parts VALUES (?, ?)", (start, json.dumps(self._about, sort_keys=True)))
        self._common = {bytes.fromhex(number) for number in self._about["common"]}
        self._start = start

    def _is_there(self) -> bool:
        return self._base.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone() is not None

    def _go_to(self, start: int, owner: int) -> None:
        """Load what is known, and undo the parts from ``start`` on."""
        self.check_owner(owner)
        self._about = self._load()
        while (position := self._about["position"]) > start:
            self._take_back(start, position)
        if self._about["position"] < start:
            raise ImagesLost(self.partition, f"states of rows up to {self._about['position']}; it goes on at {start}")
        self._about["owner"] = owner

    def commit(self, end: int, now: int, kept_from: int) -> None:
        """The part that was begun ends before offset ``end``, and its last write was appended at ``now``.

        Parts that begin before ``kept_from`` are never carried out again.
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
        """The offset up to which writes count; -1 if the file has no states."""
        return int(self._load()["position"]) if self._is_there() else -1

    def check_owner(self, owner: int) -> None:
        """Raise CdcError ``images_taken`` if a writer that was registered later has states here."""
        if self._is_there() and self._load()["owner"] > owner:
            raise CdcError("images_taken", f"states of partition {self.partition} have a newer writer than this one")

    def keep_only(self, tables: Iterable[tuple[str, str]]) -> None:
        """Forget all tables but those of these (full names, ids): for the others, writes may have gone by."""
        kept = {json.dumps(table) for table in tables}
        self._about["numbers"] = {name: n for name, n in self._about["numbers"].items() if name in kept}

    def _load(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self._base.execute("SELECT name, value FROM about")}

    def _set(self, about: dict[str, Any]) -> None:
        rows = [(name, json.dumps(value, sort_keys=True)) for name, value in about.items()]
        self._base.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    def _take_back(self, start: int, position: int) -> None:
        """Undo the newest part, which ends at ``position`` and does not begin before ``start``."""
        newest = self._base.execute("SELECT start, about FROM parts ORDER BY start DESC LIMIT 1").fetchone()
        if newest is None or newest[0] < start:
            raise ImagesLost(self.partition, f"states of rows up to {position}; it goes on at {start}, too far back")
        chunks = self._base.execute("SELECT changes FROM undo WHERE start = ? ORDER BY number DESC", (newest[0],))
        for (chunk,) in chunks.fetchall():
            self._write(marshal.loads(chunk).items())
        self._base.execute("DELETE FROM undo WHERE start = ?", (newest[0],))
        self._base.execute("DELETE FROM parts WHERE start = ?", (newest[0],))
        self._about = json.loads(newest[1]) | {"owner": self._about["owner"]}

    # ---------------------------------------------------------------------------------------------------- states

    def number(self, name: str, table: ImageTable) -> int:
        """What stands for a table in keys; a table made anew under the same name has another one."""
        known: dict[str, int] = self._about["numbers"]
        found = known.get(json.dumps((name, table.id)))
        if found is None:
            found = known[json.dumps((name, table.id))] = self._about["next"]
            self._about["next"] += 1
        return found

    def forget(self, name: str, table: str) -> None:
        """Forget the states of the table with that full name and id, if there are any."""
        number: int | None = self._about["numbers"].get(json.dumps((name, table)))
        if number is None or number in self._emptied:
            return
        # The number stays: writes that are on their way through this part may have it already.
        for key in self.under(number.to_bytes(4, "big")):
            self.put(key, None)
        self._emptied.add(number)

    def get(self, key: bytes) -> Any:
        """The state of that key, None if there is none."""
        if key in self._changed:
            return self._changed[key]
        data = self._stored[key] if key in self._stored else self._look(key)
        return None if data is None else marshal.loads(data)

    def _look(self, key: bytes) -> bytes | None:
        found = self._base.execute("SELECT value FROM states WHERE key = ?", (key,)).fetchone()
        self._stored[key] = None if found is None else found[0]
        return self._stored[key]

    def has_common(self, key: bytes) -> bool:
        """False if no partition of the key's table has a state of what its rows have in common."""
        return key[:4] in self._common

    def expect(self, size: int) -> None:
        """Writes of this number of bytes are next: what they leave finds room."""
        self._held_bytes += size
        if self._held_bytes > HELD_BYTES_MAX:
            self._flush()
            self._held_bytes = size

    def fetch(self, keys: Iterable[bytes]) -> None:
        """Make states of these keys quick to get."""
        if len(self._changed) >= CHANGES_MAX:
            self._flush()
        # What has changed was stored before.
        stored = self._stored
        wanted = sorted({key for key in keys if key not in stored})
        for at in range(0, len(wanted), ASKED_TOGETHER):
            some = wanted[at : at + ASKED_TOGETHER]
            stored.update(dict.fromkeys(some))
            places = ",".join("?" * len(some))
            stored.update(self._base.execute(f"SELECT key, value FROM states WHERE key IN ({places})", some))
        self._held_bytes += sum(len(stored[key] or b"") for key in wanted)

    def put(self, key: bytes, value: Any) -> None:
        """Keep a state; None: none."""
        if key not in self._changed:
            if len(self._changed) >= 2 * CHANGES_MAX:
                self._flush()
            if key not in self._stored:
                self._look(key)
        self._changed[key] = value
        if self._emptied and value is not None:
            self._emptied.discard(int.from_bytes(key[:4], "big"))
        if key[-1] == 0 and is_common(key):
            self._common.add(key[:4])

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """The keys that begin with it, in their order."""
        self._flush()
        behind = (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
        rows = self._base.execute("SELECT key FROM states WHERE key >= ? AND key < ? ORDER BY key", (prefix, behind))
        return [key for (key,) in rows]

    def _flush(self) -> None:
        """Write what changed, and how it was before."""
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
        ordered = sorted(states, key=itemgetter(0))
        kept = [item for item in ordered if item[1] is not None]
        self._base.executemany("INSERT OR REPLACE INTO states VALUES (?, ?)", kept)
        gone = [(key,) for key, value in ordered if value is None]
        self._base.executemany("DELETE FROM states WHERE key = ?", gone)

    def _sweep(self, now: int) -> None:
        """Delete what is forgotten among the next states after the cursor, and those of tables that are no more."""
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
