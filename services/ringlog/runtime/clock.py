"""A port for wall-clock and monotonic time, with adapters for the machine and for tests.

Wall-clock time goes into entries (``at``) and into output for people. Monotonic time drives retries and deadlines.

Invariant: safety does not depend on either. A wrong clock only makes a process act too early or too late. An operator
can take back timestamps that a fast clock has written into the log (``kernel.commands.cdc.clock``).

The adapters of this module and the clock of a simulated host pass the same suite
(``tests/runtime/test_clock_conformance.py``).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from ringlog.kernel.values import Micros


class Clock(Protocol):
    """Wall-clock time and monotonic time."""

    def now_us(self) -> Micros:
        """Return microseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back. Only differences are meaningful."""
        ...


class SystemClock:
    """The clocks of the machine."""

    __slots__ = ()

    def now_us(self) -> Micros:
        """Return microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds of the machine's monotonic clock."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when it is set, for rehearsals, models and tests. Safe from threads."""

    __slots__ = ("_lock", "_now_us")

    def __init__(self, now_us: Micros = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._lock = threading.Lock()

    def now_us(self) -> Micros:
        """Return the time that was set."""
        return self._now_us

    def monotonic(self) -> float:
        """Return the same time in seconds."""
        return self._now_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Advance the clock. Raises ValueError if ``seconds`` is negative."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: seconds={seconds}")
        with self._lock:
            self._now_us += round(seconds * 1_000_000)
