"""How often a reader that has no hurry looks into a log that moves fast.

Each look costs the process of an agent or a node about as much as 100 entries, and the broker as much as 10. A program
that waits for its commit wants each entry at once; an agent or a node that follows does not, and ten of them share the
processors with who commits. So such a reader has ``LOOKS`` looks to spare, and gets one more each ``PAUSE``:

- What happens now and then, and the steps of an operation, it sees at once.
- In a stream of commits it looks once in ``PAUSE`` and takes what came meanwhile together; in one so dense that a look
  brings ``DENSE`` records, once in ``DENSE_PAUSES`` of them.
- Who is behind, so that a look brings ``BEHIND`` records, does not rest.
- While something of its process waits for the log (``Pace.hurry``) it never rests.

Its Kafka client must not fetch ahead meanwhile: see ``ringlog.log.kafka.adapter.at_ease``.
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
    """The rule, without a clock: looks that brought something are counted against what is to spare."""

    def __init__(self, looks: int = LOOKS, pause: Micros = PAUSE) -> None:
        self._pause = pause
        self._spare = looks * pause
        self._used_until: Micros | None = None

    def rest(self, now: Micros, records: int = 1) -> Micros:
        """One more look has brought this many records; how long to rest before the next. ``now``: of a clock that does
        not go back.
        """
        if records >= BEHIND:
            return 0
        cost = self._pause * (DENSE_PAUSES if records >= DENSE else 1)
        latest = now + self._spare + cost  # who did not rest when it was time owes nothing
        used = now if self._used_until is None else max(self._used_until, now)
        self._used_until = min(used + cost, latest)
        return max(self._used_until - now - self._spare, 0)


class Pace:
    """The pace of one process's readers. Safe from threads; each reader rests with ``LooksToSpare`` of its own.

    ``is_at_ease``: False: nobody ever rests.
    """

    def __init__(self, is_at_ease: bool = False) -> None:
        self.is_at_ease = is_at_ease
        self._hurries = 0
        self._lock = threading.Lock()
        self._goes_on = threading.Event()

    @property
    def is_in_hurry(self) -> bool:
        """True while something waits for the log."""
        return self._hurries > 0

    def begin_hurry(self) -> None:
        """Something waits for the log: who rests goes on. Each such call is followed by one of ``end_hurry``."""
        if self.is_at_ease:
            with self._lock:
                self._hurries += 1
                self._goes_on.set()

    def end_hurry(self) -> None:
        """It waits no more."""
        if self.is_at_ease:
            with self._lock:
                self._hurries -= 1
                if not self._hurries:
                    self._goes_on.clear()

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """As long as this lasts something waits for the log."""
        self.begin_hurry()
        try:
            yield
        finally:
            self.end_hurry()

    def rest(self, looks: LooksToSpare, found: Sequence[object]) -> None:
        """A look has brought this: rest, if it is time for that."""
        if found and self.is_at_ease and (pause := looks.rest(time.monotonic_ns() // 1_000, len(found))):
            self._goes_on.wait(pause / 1e6)
