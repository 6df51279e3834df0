"""Reading a log to its present end, without waiting for ever: readers do not notice that a broker is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.port import LogRecord, LogTail, MetadataLog

POLL_S = 0.2
SILENCE_S = 30.0


class NamedEnd(Protocol):
    """What has a name and an end."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def end_offset(self) -> int:
        """The offset after the last record."""
        ...


def read_to_end(
    log: NamedEnd, tail: LogTail, *, silence_s: float = SILENCE_S, look: Callable[[], None] = lambda: None
) -> Iterator[LogRecord]:
    """The records from the tail's position to the present end; ``look`` is called before each wait and may raise.

    Raises LogUnavailable if the position does not move for ``silence_s``.
    """
    end = log.end_offset()
    moved = time.monotonic()
    while (position := tail.position) < end:
        look()
        yield from tail.poll(min(POLL_S, silence_s))
        if tail.position > position:
            moved = time.monotonic()
        elif time.monotonic() - moved >= silence_s:
            raise LogUnavailable(
                f"{log.name}: nothing came for {silence_s:.0f} s at offset {position} of {end}", "is the broker up?"
            )


def record_at(log: MetadataLog, offset: int, timeout_s: float) -> LogRecord | None:
    """The record at that offset; None if nothing stands there. Raises LogUnavailable, LogTruncated."""
    tail = log.tail(offset)
    try:
        found = tail.poll(timeout_s, 1)
    finally:
        tail.close()
    if not found and tail.position <= offset:
        raise LogUnavailable(f"{log.name}: offset {offset} was not read", "is the broker up?")
    return found[0] if found and found[0].offset == offset else None


def bounds_of_what_is_there(log: MetadataLog) -> tuple[int, int]:
    """Begin and end of a topic whose id was just read: a reader's client may still believe there is none."""
    try:
        return log.begin_offset(), log.end_offset()
    except TopicMissing as error:
        raise LogUnavailable(f"{log.name} is there, and its end is unknown", "is the broker up?") from error
