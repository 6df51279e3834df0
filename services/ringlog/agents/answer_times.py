"""How many requests wait at the validator, how long it takes to answer them, and how long to have entries in the log.

Measured by one clock, the process's own, from when a record of requests is read to when all of it is answered: the
times that clients write into their records are those of their machines. One thread notes, any may look.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from ringlog.runtime.figures import Durations, Sample
from ringlog.wire.records import APPLIED, EXPIRED, REJECTED


class AnswerTimes:
    """All times in seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._open: deque[tuple[int, int, float]] = deque()
        self._waiting = 0
        self._sent: float | None = None
        self._outcomes = Counter({APPLIED: 0, REJECTED: 0, EXPIRED: 0})
        self._answered = Durations()
        self._committed = Durations()

    def arrived(self, offset: int, requests: int, now: float) -> None:
        """A record of requests came in."""
        self._open.append((offset, requests, now))
        self._waiting += requests

    def sent(self, now: float) -> None:
        """Entries were appended; more of them may follow before their fates are known."""
        if self._sent is None:
            self._sent = now

    def settled(self, outcome: str) -> None:
        """One request has its answer."""
        self._outcomes[outcome] += 1

    def committed(self, now: float) -> None:
        """The fates of what was sent are final."""
        if self._sent is not None:
            self._committed.add(now - self._sent)
            self._sent = None

    def acknowledged(self, offset: int, now: float) -> None:
        """All records up to this offset are answered."""
        while self._open and self._open[0][0] <= offset:
            _, requests, since = self._open.popleft()
            self._waiting -= requests
            self._answered.add(now - since)

    def samples(self) -> Iterator[Sample]:
        """The figures."""
        yield Sample("ringlog_validator_waiting_requests", self._waiting)
        yield Sample("ringlog_validator_answer_seconds", self._answered)
        yield Sample("ringlog_validator_commit_seconds", self._committed)
        yield from (Sample("ringlog_validator_answers", self._outcomes[one], (one,)) for one in sorted(self._outcomes))
