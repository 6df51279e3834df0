"""What time it is: the one place where processes read a clock.

Wall time goes into entries (``at``) and is shown to people; monotonic time drives retries and deadlines. Neither
decides anything about safety: a wrong clock makes a process look too early or too late. What one that was ahead leaves
in the log, an operator can take back (``kernel.commands.cdc.clock``).

A port: the clocks below and a simulated host's pass one suite (``tests/runtime/test_clock_conformance.py``).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from ringlog.kernel.values import Micros


class Clock(Protocol):
    """Wall time and monotonic time."""

    def now_us(self) -> Micros:
        """Microseconds since 1970-01-01 UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_us(self) -> Micros:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Seconds on the machine's monotonic clock."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when it is set; for rehearsals, models and tests. Safe from threads."""

    __slots__ = ("_lock", "_now_us")

    def __init__(self, now_us: Micros = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._lock = threading.Lock()

    def now_us(self) -> Micros:
        """The instant it was set to."""
        return self._now_us

    def monotonic(self) -> float:
        """The same instant in seconds."""
        return self._now_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds`` (not negative)."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back: seconds={seconds}")
        with self._lock:
            self._now_us += round(seconds * 1_000_000)
