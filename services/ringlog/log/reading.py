"""Reading a log to its present end, without waiting for ever: readers do not notice that a broker is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ringlog.log.errors import LogUnavailable
from ringlog.log.port import LogRecord, MetadataLog, Tail

POLL_S = 0.2
SILENCE_S = 30.0


def read_to_end(
    log: MetadataLog, tail: Tail, *, silence_s: float = SILENCE_S, look: Callable[[], None] = lambda: None
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
