"""Bounded reads of a log up to its present end.

A Kafka reader does not notice that its broker is gone: it only returns no records. These functions raise LogUnavailable
if nothing arrives for some time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.port import LogRecord, LogTail, MetadataLog

POLL_S = 0.2
SILENCE_S = 30.0
"""Seconds without progress after which a read fails."""


class NamedEnd(Protocol):
    """An object with a name and an end offset."""

    @property
    def name(self) -> str:
        """The name shown to users."""
        ...

    def end_offset(self) -> int:
        """Return the offset after the last record."""
        ...


def read_to_end(
    log: NamedEnd, tail: LogTail, *, silence_s: float = SILENCE_S, check: Callable[[], None] = lambda: None
) -> Iterator[LogRecord]:
    """Read the records from the tail's position to the present end of the log.

    Args:
        check: Called before each wait. May raise to stop the read.

    Raises:
        LogUnavailable: The position did not move for ``silence_s``.
    """
    end = log.end_offset()
    moved = time.monotonic()
    while (position := tail.position) < end:
        check()
        yield from tail.poll(min(POLL_S, silence_s))
        if tail.position > position:
            moved = time.monotonic()
        elif time.monotonic() - moved >= silence_s:
            raise LogUnavailable(
                f"{log.name}: no record arrived for {silence_s:.0f} s at offset {position} of {end}",
                "check that the broker is up",
            )


def record_at(log: MetadataLog, offset: int, timeout_s: float) -> LogRecord | None:
    """Return the record at an offset, or None if the offset has no record. Raises LogUnavailable, LogTruncated."""
    tail = log.tail(offset)
    try:
        found = tail.poll(timeout_s, 1)
    finally:
        tail.close()
    if not found and tail.position <= offset:
        raise LogUnavailable(f"{log.name}: offset {offset} was not read", "check that the broker is up")
    return found[0] if found and found[0].offset == offset else None


def visible_bounds(log: MetadataLog) -> tuple[int, int]:
    """Return the begin and end offsets of a topic that is known to exist.

    A client may report an existing topic as missing for a while. This function then raises LogUnavailable, not
    TopicMissing.
    """
    try:
        return log.begin_offset(), log.end_offset()
    except TopicMissing as error:
        raise LogUnavailable(f"{log.name} exists, but its end is unknown", "check that the broker is up") from error
