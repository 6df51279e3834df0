"""The poll rate of readers that do not need every entry at once.

One poll costs the process of an agent or a node about as much as 100 entries, and the broker as much as 10. A program
that waits for its commit needs each entry at once. An agent or a node that follows the log does not, and ten of them
share the processors with the committing program. A relaxed reader therefore has a budget of ``LOOKS`` polls. It regains
one poll each ``PAUSE``:

- It sees occasional entries, and the steps of an operation, at once.

- In a stream of commits it polls once per ``PAUSE`` and takes all new records together. If a poll returns ``DENSE``
  records, it polls once per ``DENSE_PAUSES * PAUSE``.

- A reader that is behind, so that a poll returns ``BEHIND`` records, does not pause.

- While a caller in its process waits for the log (``Pace.hurry``), it does not pause.

Its Kafka client must not prefetch during a pause: see ``ringlog.log.kafka.adapter.at_ease``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ringlog.kernel.values import Micros

LOOKS: Final = 20
PAUSE: Final[Micros] = 20_000
DENSE: Final = 32
DENSE_PAUSES: Final = 3
BEHIND: Final = 500


class LooksToSpare:
    """The budget of one reader. Only polls that returned records use it.

    The budget is computed from the times passed to ``rest`` and reads no clock.
    """

    def __init__(self, looks: int = LOOKS, pause: Micros = PAUSE) -> None:
        self._pause = pause
        self._spare = looks * pause
        self._used_until: Micros | None = None

    def rest(self, now: Micros, records: int = 1) -> Micros:
        """Return how long to pause after a poll that returned this number of records.

        ``now`` must come from a monotonic clock.
        """
        if records >= BEHIND:
            return 0
        cost = self._pause * (DENSE_PAUSES if records >= DENSE else 1)
        # A reader that was urgent and did not pause must not owe more than the pause of one poll.
        latest = now + self._spare + cost
        used = now if self._used_until is None else max(self._used_until, now)
        self._used_until = min(used + cost, latest)
        return max(self._used_until - now - self._spare, 0)


class Pace:
    """The poll rate of one process's readers. Safe from threads.

    Each reader has its own ``LooksToSpare``.

    Args:
        is_at_ease: False: the readers never pause.
    """

    def __init__(self, is_at_ease: bool = False) -> None:
        self.is_at_ease = is_at_ease
        self._hurries = 0
        self._lock = threading.Lock()
        self._goes_on = threading.Event()

    @property
    def is_in_hurry(self) -> bool:
        """True while a caller waits for the log."""
        return self._hurries > 0

    def begin_hurry(self) -> None:
        """End pauses of all readers: a caller waits for the log. Each call needs a matching ``end_hurry``."""
        if self.is_at_ease:
            with self._lock:
                self._hurries += 1
                self._goes_on.set()

    def end_hurry(self) -> None:
        """Allow pauses again, if no other caller waits."""
        if self.is_at_ease:
            with self._lock:
                self._hurries -= 1
                if not self._hurries:
                    self._goes_on.clear()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Mark the duration of the ``with`` block as a wait for the log."""
        self.begin_hurry()
        try:
            yield
        finally:
            self.end_hurry()

    def rest(self, looks: LooksToSpare, found: Sequence[object]) -> None:
        """Pause after a poll, if the budget requires it. ``found`` contains the records of the poll."""
        if found and self.is_at_ease and (pause := looks.rest(time.monotonic_ns() // 1_000, len(found))):
            self._goes_on.wait(pause / 1e6)
