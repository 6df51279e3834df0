"""The poll rate of readers that do not need every entry at once.

One poll costs the process of an agent or a node about as much as 100 entries, and the broker as much as 10. A program
that waits for its commit needs each entry at once. An agent or a node that follows the log does not, and ten of them
share the processors with the committing program. A relaxed reader therefore has a budget of ``POLLS_MAX`` polls. It
regains one poll each ``PAUSE_US``:

- It sees occasional entries, and the steps of an operation, at once.

- In a stream of commits it polls once per ``PAUSE_US`` and takes all new records together. If a poll returns
  ``BATCH_RECORDS`` records, it polls once per ``BATCH_PAUSES * PAUSE_US``.

- A reader that is behind, so that a poll returns ``BACKLOG_RECORDS`` records, does not pause.

- While a caller in its process waits for the log (``PollPolicy.urgent``), it does not pause.

Its Kafka client must not prefetch during a pause: see ``ringlog.log.kafka.adapter.without_prefetch``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ringlog.kernel.values import Micros

POLLS_MAX: Final = 20
PAUSE_US: Final[Micros] = 20_000
BATCH_RECORDS: Final = 32
BATCH_PAUSES: Final = 3
BACKLOG_RECORDS: Final = 500


class PollBudget:
    """The budget of one reader. Only polls that returned records use it.

    The budget is computed from the times passed to ``pause_after`` and reads no clock.
    """

    def __init__(self, polls: int = POLLS_MAX, pause: Micros = PAUSE_US) -> None:
        self._pause = pause
        self._budget_us = polls * pause
        self._used_until: Micros | None = None

    def pause_after(self, now: Micros, records: int = 1) -> Micros:
        """Return how long to pause after a poll that returned this number of records.

        ``now`` must come from a monotonic clock.
        """
        if records >= BACKLOG_RECORDS:
            return 0
        cost = self._pause * (BATCH_PAUSES if records >= BATCH_RECORDS else 1)
        # A reader that was urgent and did not pause must not owe more than the pause of one poll.
        latest = now + self._budget_us + cost
        used = now if self._used_until is None else max(self._used_until, now)
        self._used_until = min(used + cost, latest)
        return max(self._used_until - now - self._budget_us, 0)


class PollPolicy:
    """The poll rate of one process's readers. Safe from threads.

    Each reader has its own ``PollBudget``.

    Args:
        is_relaxed: False: the readers never pause.
    """

    def __init__(self, is_relaxed: bool = False) -> None:
        self.is_relaxed = is_relaxed
        self._urgent_waits = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()

    @property
    def is_urgent(self) -> bool:
        """True while a caller waits for the log."""
        return self._urgent_waits > 0

    def begin_urgent(self) -> None:
        """End pauses of all readers: a caller waits for the log. Each call needs a matching ``end_urgent``."""
        if self.is_relaxed:
            with self._lock:
                self._urgent_waits += 1
                self._wake.set()

    def end_urgent(self) -> None:
        """Allow pauses again, if no other caller waits."""
        if self.is_relaxed:
            with self._lock:
                self._urgent_waits -= 1
                if not self._urgent_waits:
                    self._wake.clear()

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """Mark the duration of the ``with`` block as a wait for the log."""
        self.begin_urgent()
        try:
            yield
        finally:
            self.end_urgent()

    def pause(self, budget: PollBudget, found: Sequence[object]) -> None:
        """Pause after a poll, if the budget requires it. ``found`` contains the records of the poll."""
        if found and self.is_relaxed and (pause := budget.pause_after(time.monotonic_ns() // 1_000, len(found))):
            self._wake.wait(pause / 1e6)
