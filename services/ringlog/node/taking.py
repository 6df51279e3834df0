"""Streams that nobody takes: a call of which no message is taken for a while, or that lasts too long, is ended.

A message goes out when the other side has room for it. Who asks for a stream without a deadline and does not read would
hold a thread of the server, and one of the few places for streams, for as long as he lives. So each call is watched
while a message of it waits to be taken, and as a whole; who was cut off may ask again, from where he was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

SILENCE_S = 20.0
"""So long may one message wait to be taken."""
STREAM_S = 300.0
"""So long may one call last; those of our own nodes are shorter."""


class Watched:
    """One call; ``cancel`` ends it. ``close`` it."""

    def __init__(self, cancel: Callable[[], object], silence_s: float = SILENCE_S, most_s: float = STREAM_S) -> None:
        self._cancel = cancel
        self._silence_s = silence_s
        self._ends = time.monotonic() + most_s
        self._waits_since: float | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._arm(min(silence_s, most_s))

    def taken(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """The messages, each of which is waited for until it is taken."""
        for message in messages:
            self._waits_since = time.monotonic()
            yield message
            self._waits_since = None

    def close(self) -> None:
        """The call is over."""
        with self._lock:
            self._is_closed = True
            self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            now, since = time.monotonic(), self._waits_since
            ends = self._ends if since is None else min(self._ends, since + self._silence_s)
            if now < ends:
                self._arm(min(ends - now, self._silence_s))
                return
        self._cancel()
