"""The port of a log: one totally ordered, append-only sequence of records.

The metadata topic is such a log. The requests and results topics are, too, because each has one partition. The adapters
``MemoryLog`` and ``KafkaLog`` pass the same suite (``tests/system/test_log_conformance.py``). So do the simulator's
broker and a ``DelayableLog`` without rules around either adapter.

Invariant: offsets ascend, but control records leave gaps between them. A reader therefore compares its *position* (the
next offset to read, past any gap) with the end of the log. It never compares the number of records or the last offset
that it saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from ringlog.kernel.values import Value
from ringlog.log.errors import LogError

LOOKUP_TIMEOUT_S = 10.0


class LogRecord(Value):
    """One record. ``data`` is empty for a record without a value (a tombstone).

    ``at`` is the record's time in microseconds, or 0 if the log has no times. The topic's settings decide whether it is
    the author's or the broker's time.
    """

    offset: int
    data: bytes
    at: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogRecord) and (other.offset, other.data) == (self.offset, self.data)

    def __hash__(self) -> int:
        return hash((self.offset, self.data))


class LogTail(Protocol):
    """A reader of the log, for use by one thread."""

    @property
    def position(self) -> int:
        """The offset that will be read next. Every record before it has been returned."""
        ...

    def poll(self, timeout_s: float, records_max: int = 1_000) -> Sequence[LogRecord]:
        """Wait up to ``timeout_s`` for the first record and return the available records in order, at most
        ``records_max``.

        If the broker does not answer, the result is empty and the position stays the same.

        Raises:
            LogTruncated: The log no longer contains the position.
        """
        ...

    def close(self) -> None:
        """Close the reader's connections."""
        ...


def completed_future(act: Callable[[], None]) -> Future[None]:
    """Run an append that waits for its answer, and return the answer as a completed future.

    Adapters whose ``append`` blocks implement ``append_async`` with this function.
    """
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
        """The name shown to users: the topic's name."""
        ...

    def append(self, records: Sequence[bytes]) -> None:
        """Append the records in this order and return when all are acknowledged.

        Raises:
            LogUnavailable: A record was not acknowledged. Any of the records may be in the log, or may still arrive.
        """
        ...

    def append_async(self, records: Sequence[bytes]) -> Future[None]:
        """Append the records without waiting.

        The future completes with the answer, or raises as ``append`` does. Records that the same thread hands over
        later have greater offsets.
        """
        ...

    def begin_offset(self) -> int:
        """Return the offset of the oldest record. Raises LogUnavailable."""
        ...

    def end_offset(self, timeout_s: float = LOOKUP_TIMEOUT_S) -> int:
        """Return the offset after the last record that readers can see now. Raises LogUnavailable, TopicMissing."""
        ...

    def identity(self) -> str:
        """Return the topic id. A topic that is deleted and created again under the same name has another id.

        Raises LogUnavailable, TopicMissing.
        """
        ...

    def kafka_id(self) -> str:
        """Return the id that the brokers' storage got when it was formatted; empty if the brokers do not report one.

        Another Kafka cluster has another id, and so does a Kafka cluster whose storage was wiped. Raises
        LogUnavailable.
        """
        ...

    def verify(self) -> None:
        """Check that the topic's settings keep every entry permanently and in order.

        Raises TopicMisconfigured, TopicMissing.
        """
        ...

    def tail(self, from_offset: int) -> LogTail:
        """Return a reader that begins at ``from_offset``. It does not join a consumer group."""
        ...

    def close(self) -> None:
        """Close all connections. Unacknowledged records may or may not have been written."""
        ...
