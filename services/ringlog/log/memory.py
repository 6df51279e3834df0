"""A log in memory: the port's adapter for tests, rehearsals and models.

It can also produce the failures of a real log. ``gap`` leaves a hole in the offsets, as a control record does.
``truncate`` and ``replace`` do to a topic what must never happen to a metadata topic, so that tests can check that a
replica halts.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future

from ringlog.log.errors import LogTruncated
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord, completed_future


class MemoryLog:
    """A list of records. Readers wait on a condition variable."""

    def __init__(self, name: str = "memory.metadata") -> None:
        self._name = name
        self._identity = str(uuid.uuid4())
        self.kafka = "memory"
        self._records: list[LogRecord] = []
        self._begin = 0
        self._end = 0
        self._changed = threading.Condition()

    @property
    def name(self) -> str:
        return self._name

    def append(self, records: Sequence[bytes]) -> None:
        """Append all records in order. Never fails."""
        with self._changed:
            for data in records:
                self._records.append(LogRecord(self._end, data))
                self._end += 1
            self._changed.notify_all()

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """Append all records in order and return a completed future."""
        return completed_future(lambda: self.append(records))

    def begin_offset(self) -> int:
        """Return the offset of the oldest record."""
        return self._begin

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:  # noqa: ARG002
        """Return the offset after the last record."""
        return self._end

    def identity(self) -> str:
        """Return a UUID that ``replace`` changes."""
        return self._identity

    def kafka_id(self) -> str:
        """Return the attribute ``kafka``, which tests may set. Default: ``memory``."""
        return self.kafka

    def verify(self) -> None:
        """Do nothing: a list in memory has no settings."""

    def tail(self, from_offset: int) -> MemoryTail:
        """Return a reader that begins at ``from_offset``."""
        return MemoryTail(self, from_offset)

    def close(self) -> None:
        """Do nothing. A list in memory has nothing to close."""

    def gap(self, offsets: int = 1) -> None:
        """Skip ``offsets`` offsets, as transaction markers do."""
        with self._changed:
            self._end += offsets
            self._changed.notify_all()

    def truncate(self, end: int) -> None:
        """Delete every record from offset ``end`` on."""
        with self._changed:
            self._records = [record for record in self._records if record.offset < end]
            self._end = min(self._end, end)
            self._changed.notify_all()

    def delete_before(self, begin: int) -> None:
        """Delete every record before offset ``begin``, as retention does."""
        with self._changed:
            self._records = [record for record in self._records if record.offset >= begin]
            self._begin = begin
            self._changed.notify_all()

    def replace(self) -> None:
        """Change the topic id, as a topic that is deleted and created again does. The records stay."""
        with self._changed:
            self._identity = str(uuid.uuid4())
            self._changed.notify_all()

    def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
        """Return the next records from ``position``, and the position after them.

        Waits up to ``timeout_s`` for the first record. Raises LogTruncated if the log does not contain the position.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if position > self._end or position < self._begin:
                    raise LogTruncated(
                        f"{self._name}: position {position} is not between {self._begin} and {self._end}",
                    )
                found = self._from(position, records_max)
                if found:
                    complete = found[-1] is self._records[-1]
                    return found, self._end if complete else found[-1].offset + 1
                if position < self._end:
                    return [], self._end
                left = deadline - time.monotonic()
                if left <= 0:
                    return [], position
                self._changed.wait(left)

    def _from(self, position: int, records_max: int) -> list[LogRecord]:
        low, high = 0, len(self._records)
        while low < high:
            middle = (low + high) // 2
            if self._records[middle].offset < position:
                low = middle + 1
            else:
                high = middle
        return self._records[low : low + records_max]


class MemoryKeyed(MemoryLog):
    """A compacted topic in memory: a log with keys, ``put`` and ``compact``."""

    def __init__(self, name: str = "memory.snapshots") -> None:
        super().__init__(name)
        self._keys: dict[int, str] = {}

    def put(self, key: str, data: bytes | None) -> int:
        """Append a record under a key and return its offset. None deletes the key."""
        with self._changed:
            offset = self._end
            self._keys[offset] = key
            self.append([data or b""])
            return offset

    def compact(self) -> None:
        """Keep only the last record of each key, and no deleted keys. A broker may do this at any time."""
        with self._changed:
            last = {key: offset for offset, key in sorted(self._keys.items())}
            self._records = [one for one in self._records if last[self._keys[one.offset]] == one.offset and one.data]
            self._keys = {one.offset: self._keys[one.offset] for one in self._records}


class MemoryTail:
    """A reader of a MemoryLog."""

    __slots__ = ("_log", "_position")

    def __init__(self, log: MemoryLog, position: int) -> None:
        self._log = log
        self._position = position

    @property
    def position(self) -> int:
        return self._position

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        """Wait up to ``timeout_s`` for the first record and return the available records."""
        records, self._position = self._log.read(self._position, timeout_s, records_max)
        return records

    def close(self) -> None:
        """Do nothing. A list in memory has nothing to close."""
