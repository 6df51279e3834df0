"""A log with scripted faults around a memory log, for tests of all writers.

The n-th append meets the n-th fault: the log loses records, writes them twice or late (on ``release``), inserts other
records, or loses the answer. The faults are deterministic and never wait.

The log scripts a broker and works for the log, the requests and the results; it does not decode records.
``DelayableLog`` delays entries of the metadata log by content and receiver, and waits. Neither replaces the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from ringlog.kernel.values import Value, field
from ringlog.log.errors import LogUnavailable
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogTail, MetadataLog, completed_future


class Fault(Value):
    """The fault of one append. Numbers are indexes of its records, from 0.

    ``lost``: never arrive. ``late``: arrive on release. ``twice``: arrive two times. ``before``: other bytes that
    arrive just before that index. ``answer_lost``: the author gets no answer. The author also gets no answer if a
    record is missing.
    """

    lost: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    twice: frozenset[int] = frozenset()
    before: Mapping[int, bytes] = field(default_factory=dict)
    answer_lost: bool = False


NO_FAULT = Fault()


class FaultyLog:
    """A log with faults; after the last fault it behaves like the inner log."""

    def __init__(self, inner: MetadataLog, faults: Iterable[Fault] = ()) -> None:
        self._inner = inner
        self._faults = list(faults)
        self._late: list[bytes] = []
        self._lock = threading.Lock()
        self.appends: list[tuple[bytes, ...]] = []

    @property
    def name(self) -> str:
        """Return the name of the inner log."""
        return self._inner.name

    def plan(self, *faults: Fault) -> None:
        """Set the faults of the next appends."""
        with self._lock:
            self._faults.extend(faults)

    def append(self, records: Sequence[bytes]) -> None:
        """Append the records that the fault passes, in order. Raises LogUnavailable if the answer or a record
        is lost.
        """
        with self._lock:
            fault = self._faults.pop(0) if self._faults else NO_FAULT
            self.appends.append(tuple(records))
            through: list[bytes] = []
            for place, data in enumerate(records):
                if place in fault.before:
                    through.append(fault.before[place])
                if place in fault.late:
                    self._late.append(data)
                elif place not in fault.lost:
                    through.extend([data] * (2 if place in fault.twice else 1))
        self._inner.append(through)
        if fault.lost or fault.late or fault.answer_lost:
            raise LogUnavailable(f"{self.name}: no answer", "the outcome is unknown")

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """Append as ``append`` does and return a future."""
        return completed_future(lambda: self.append(records))

    def release(self) -> int:
        """Append the late records now and return their number."""
        with self._lock:
            late, self._late = self._late, []
        self._inner.append(late)
        return len(late)

    def begin_offset(self) -> int:
        """Return the begin offset of the inner log."""
        return self._inner.begin_offset()

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        """Return the end offset of the inner log."""
        return self._inner.end_offset(timeout_s)

    def identity(self) -> str:
        """Return the identity of the inner log."""
        return self._inner.identity()

    def kafka_id(self) -> str:
        """Return the Kafka id of the inner log."""
        return self._inner.kafka_id()

    def verify(self) -> None:
        """Verify the inner log."""
        self._inner.verify()

    def tail(self, from_offset: int) -> LogTail:
        """Return a tail of the inner log."""
        return self._inner.tail(from_offset)

    def close(self) -> None:
        """Close the inner log."""
        self._inner.close()
