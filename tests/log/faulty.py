"""A log that fails on order: the memory log's partner for tests of everything that appends.

The n-th append meets the n-th fault: records are lost, come twice, come late (when ``release`` is called), other
records slip in between, or the answer is lost although everything arrived. Deterministic: nothing is drawn, nothing
waits.

It scripts a broker and works on any log, requests and results too; it does not look into records. ``DelayableLog``
holds back entries of the metadata log by what they say and for whom, and waits; neither can stand in for the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ringlog.log.errors import LogUnavailable
from ringlog.log.port import LOOKUP_TIMEOUT_S, LogTail, MetadataLog, completed_future


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one append. Numbers are places within its records, from 0.

    ``lost``: never arrive. ``late``: arrive when released. ``twice``: arrive two times. ``before``: bytes of others
    that arrive right before that place. ``answer_lost``: the author hears nothing. An author also hears nothing if
    any record is missing.
    """

    lost: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    twice: frozenset[int] = frozenset()
    before: Mapping[int, bytes] = field(default_factory=dict)
    answer_lost: bool = False


NO_FAULT = Fault()


class FaultyLog:
    """A log with faults; without any left, as good as the one inside."""

    def __init__(self, inner: MetadataLog, faults: Iterable[Fault] = ()) -> None:
        self._inner = inner
        self._faults = list(faults)
        self._late: list[bytes] = []
        self._lock = threading.Lock()
        self.appends: list[tuple[bytes, ...]] = []

    @property
    def name(self) -> str:
        """The name of the log inside."""
        return self._inner.name

    def plan(self, *faults: Fault) -> None:
        """The next appends meet these faults."""
        with self._lock:
            self._faults.extend(faults)

    def append(self, records: Sequence[bytes]) -> None:
        """Append what the fault lets through, in order; raises LogUnavailable where the answer or a record is lost."""
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
            raise LogUnavailable(f"{self.name}: no answer", "its fate is unknown")

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """The same, as a future."""
        return completed_future(lambda: self.append(records))

    def release(self) -> int:
        """Let the late records arrive now; returns how many they were."""
        with self._lock:
            late, self._late = self._late, []
        self._inner.append(late)
        return len(late)

    def begin_offset(self) -> int:
        """Of the log inside."""
        return self._inner.begin_offset()

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        """Of the log inside."""
        return self._inner.end_offset(timeout_s)

    def identity(self) -> str:
        """Of the log inside."""
        return self._inner.identity()

    def kafka_id(self) -> str:
        """Of the log inside."""
        return self._inner.kafka_id()

    def verify(self) -> None:
        """Of the log inside."""
        self._inner.verify()

    def tail(self, from_offset: int) -> LogTail:
        """Of the log inside."""
        return self._inner.tail(from_offset)

    def close(self) -> None:
        """Close the log inside."""
        self._inner.close()
