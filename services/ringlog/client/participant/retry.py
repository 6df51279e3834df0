"""Retries while the broker does not answer. Log lines at growing intervals say so, and one says when it is over.

A broker that has just restarted may report an existing topic as missing. A process that follows the log halts once the
topic is certainly gone, which ends the wait. Before it follows the log, the wait itself has a limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.replicas.replica import MISSING_S
from ringlog.runtime.logs import get_logger

T = TypeVar("T")
RETRY_S = 0.5
REPEAT_S, REPEAT_MOST_S = 5.0, 60.0
"""Seconds between two log lines of one wait: the first time, and at most. Each time is twice the last one."""

log = get_logger("ringlog.node")


class BrokerRetry:
    """Repeats calls that the broker did not answer. Not thread-safe.

    Args:
        waits_for: The name of the missing thing in log messages.
        stopping: Ends every wait.
        diagnose: Returns why the broker does not answer. May raise an error, which ends the wait.
    """

    def __init__(self, waits_for: str, stopping: threading.Event, diagnose: Callable[[], str] = lambda: "") -> None:
        self._waits_for = waits_for
        self._stopping = stopping
        self._diagnose = diagnose
        self._since: float | None = None
        self._next, self._repeat_s = 0.0, REPEAT_S

    def until_answered(self, step: Callable[[], T]) -> T | None:
        """Return the result of ``step``, or None once the process is to stop.

        Retries LogUnavailable and TopicMissing without a limit. Other errors are raised.
        """
        while not self._stopping.is_set():
            try:
                found = step()
            except (LogUnavailable, TopicMissing) as error:
                self._waiting(error)
                self._stopping.wait(RETRY_S)
            else:
                self._over()
                return found
        return None

    def _waiting(self, error: Exception) -> None:
        now = time.monotonic()
        since = self._since = now if self._since is None else self._since
        if now >= self._next:
            why = "; ".join(filter(None, (str(error), self._diagnose())))
            log.warning("broker_away", waits_for=self._waits_for, why=why, away_s=round(now - since, 1))
            self._next, self._repeat_s = time.monotonic() + self._repeat_s, min(2 * self._repeat_s, REPEAT_MOST_S)

    def _over(self) -> None:
        since, self._since = self._since, None
        self._next, self._repeat_s = 0.0, REPEAT_S
        if since is not None:
            log.info("broker_answers_again", waited_for=self._waits_for, away_s=round(time.monotonic() - since, 1))


def retry_until_answered(
    step: Callable[[Callable[[], None]], T], stopping: threading.Event, diagnose: Callable[[], str] = lambda: ""
) -> T | None:
    """Return the result of the first access to the metadata log, or None once the process is to stop.

    Waits for an unavailable broker. After it is back, the topic may be missing for up to ``MISSING_S``.

    Args:
        step: Receives a function to call periodically, which ends the step if the process is to stop. Keeps its
            progress between attempts.
        diagnose: See ``BrokerRetry``.

    Raises:
        TopicMissing: A broker that was available all the time has no such topic. Other errors are raised as well.
    """
    missing_until = 0.0

    def check_stopping() -> None:
        if stopping.is_set():
            raise Stopped

    def once() -> T:
        nonlocal missing_until
        try:
            return step(check_stopping)
        except TopicMissing as error:
            if time.monotonic() >= missing_until:
                raise NotRetried(error) from error
            raise
        except LogUnavailable:
            missing_until = time.monotonic() + MISSING_S
            raise

    try:
        return BrokerRetry("the metadata log", stopping, diagnose).until_answered(once)
    except NotRetried as gave_up:
        raise gave_up.error from None
    except Stopped:
        return None


class Stopped(Exception):
    """The process is to stop."""


class NotRetried(Exception):
    """Carries an error out of the retry loop, which would otherwise retry it."""

    def __init__(self, error: TopicMissing) -> None:
        super().__init__(str(error))
        self.error = error
