"""A log in memory: the port's adapter for tests, rehearsals and models, with the failures that a real one has.

``gap`` makes the hole in the offsets that a control record leaves; ``truncate`` and ``replace`` do what must never
happen to a metadata topic, so that tests can see a replica halt.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future

from ringlog.log.errors import LogTruncated
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogRecord, answered_at_once


class MemoryLog:
    """Records in a list; readers wait on a condition."""

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
        """The name it was given."""
        return self._name

    def append(self, records: Sequence[bytes]) -> None:
        """Append all records, in order; never fails."""
        with self._changed:
            for data in records:
                self._records.append(LogRecord(self._end, data))
                self._end += 1
            self._changed.notify_all()

    def hand_over(self, records: Sequence[bytes]) -> Future[None]:
        """The same."""
        return answered_at_once(lambda: self.append(records))

    def begin_offset(self) -> int:
        """The offset of the oldest record kept."""
        return self._begin

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:  # noqa: ARG002
        """The offset after the last record."""
        return self._end

    def identity(self) -> str:
        """A UUID, another one after ``replace``."""
        return self._identity

    def kafka_id(self) -> str:
        """``memory``, or what a test makes of ``kafka``."""
        return self.kafka

    def verify(self) -> None:
        """A list in memory has no settings."""

    def tail(self, from_offset: int) -> MemoryTail:
        """A reader from ``from_offset`` on."""
        return MemoryTail(self, from_offset)

    def close(self) -> None:
        """Nothing to let go of."""

    def gap(self, offsets: int = 1) -> None:
        """Skip ``offsets`` offsets, as the markers of transactions do."""
        with self._changed:
            self._end += offsets
            self._changed.notify_all()

    def truncate(self, end: int) -> None:
        """Lose every record from offset ``end`` on."""
        with self._changed:
            self._records = [record for record in self._records if record.offset < end]
            self._end = min(self._end, end)
            self._changed.notify_all()

    def delete_before(self, begin: int) -> None:
        """Lose every record before offset ``begin``, as a retention would."""
        with self._changed:
            self._records = [record for record in self._records if record.offset >= begin]
            self._begin = begin
            self._changed.notify_all()

    def replace(self) -> None:
        """Be another topic of the same name: same length, another id."""
        with self._changed:
            self._identity = str(uuid.uuid4())
            self._changed.notify_all()

    def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
        """The next records from ``position`` and the position after them.

        Waits for the first up to ``timeout_s`` seconds.
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
    """A compacted topic in memory: ``put`` and ``compact`` beside what a log does."""

    def __init__(self, name: str = "memory.snapshots") -> None:
        super().__init__(name)
        self._keys: dict[int, str] = {}

    def put(self, key: str, data: bytes | None) -> int:
        """Append; None takes the key out. Returns the offset."""
        with self._changed:
            offset = self._end
            self._keys[offset] = key
            self.append([data or b""])
            return offset

    def compact(self) -> None:
        """Keep the last record of each key, unless that takes it out, as a broker may at any time."""
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
        """The offset that will be read next."""
        return self._position

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        """What is there from the position on, after waiting up to ``timeout_s`` seconds for the first."""
        records, self._position = self._log.read(self._position, timeout_s, records_max)
        return records

    def close(self) -> None:
        """Nothing to let go of."""
