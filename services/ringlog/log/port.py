"""The port of a log: one totally ordered sequence of records that is only ever appended to.

The metadata topic is one; so are requests and results, which have one partition as well. Two adapters, ``MemoryLog``
and ``KafkaLog``, pass the same suite (``tests/system/test_log_conformance.py``), and so do ``DelayableLog`` around
either while no rule holds anything, and the simulator's broker.

Offsets ascend, but need not be dense: control records leave gaps. That is why a reader compares its *position* (the
offset it reads next, past any gap) with the end, and never the number or the last offset of the records it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ringlog.log.errors import LogError

LOOKUP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. ``data`` is empty for a record without value (a tombstone).

    ``at``: the record's time in microseconds, 0 where the log has none; it is the broker's in topics that say so.
    """

    offset: int
    data: bytes
    at: int = field(default=0, compare=False)


class LogTail(Protocol):
    """One reader of the log, for use by one thread."""

    @property
    def position(self) -> int:
        """The offset that will be read next: every record before it has been returned."""
        ...

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        """Wait up to ``timeout_s`` for the first record; return what is there, at most ``records_max``, in order.

        Raises LogTruncated if the position is not in the log any more. A broker that does not answer is no error
        here: the result is empty, and polling goes on where it was.
        """
        ...

    def close(self) -> None:
        """Let go of the reader's connections."""
        ...


def answered_at_once(act: Callable[[], None]) -> Future[None]:
    """What ``hand_over`` gives where the append itself waits for the answer: its outcome, already there."""
    future: Future[None] = Future()
    try:
        act()
        future.set_result(None)
    except LogError as error:
        future.set_exception(error)
    return future


class MetadataLog(Protocol):
    """An append-only, totally ordered log. Safe from threads."""

    @property
    def name(self) -> str:
        """What people call it: the topic's name."""
        ...

    def append(self, records: Sequence[bytes]) -> None:
        """Append the records in this order, and return when all are acknowledged.

        Raises LogUnavailable when one was not: any of them may be in the log already, or may still get there.
        """
        ...

    def hand_over(self, records: Sequence[bytes]) -> Future[None]:
        """As ``append``, without waiting: the future has the answer, or raises as ``append`` does.

        What is handed over later, by the same thread, comes later in the log.
        """
        ...

    def begin_offset(self) -> int:
        """The offset of the oldest record kept. Raises LogUnavailable."""
        ...

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        """The offset after the last record that readers may see now. Raises LogUnavailable, TopicMissing."""
        ...

    def identity(self) -> str:
        """The topic's own id, which another topic of the same name does not have.

        Raises LogUnavailable, TopicMissing.
        """
        ...

    def kafka_id(self) -> str:
        """The id that the brokers' storage was once formatted with: another Kafka, or a wiped one, has another.

        Empty if the brokers tell none. Raises LogUnavailable.
        """
        ...

    def verify(self) -> None:
        """Raises TopicMisconfigured or TopicMissing unless the topic keeps every entry, in order, for ever."""
        ...

    def tail(self, from_offset: int) -> LogTail:
        """A reader that begins at ``from_offset``, without joining any group."""
        ...

    def close(self) -> None:
        """Let go of connections; unacknowledged records may or may not have been written."""
        ...
