"""Retries while a node's broker does not answer, with one log line at the begin and one at the end.

A topic that seems to be missing may be known again soon to a broker that has just come back. Who follows the log halts
once it is certain that it is gone, and ends the wait by that; before anybody follows it, the wait itself is bounded.
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

log = get_logger("ringlog.node")


class BrokerRetry:
    """Repeats what the broker did not answer; for use by one thread. ``stopping``: ends every wait."""

    def __init__(self, waits_for: str, stopping: threading.Event) -> None:
        self._waits_for = waits_for
        self._stopping = stopping
        self._since: float | None = None

    def until_answered(self, step: Callable[[], T]) -> T | None:
        """Return the result of ``step``, however long the broker takes; None once the process is to stop.

        Other errors than LogUnavailable and TopicMissing pass.
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
        if self._since is None:
            self._since = time.monotonic()
            log.warning("broker_away", waits_for=self._waits_for, why=str(error))

    def _over(self) -> None:
        since, self._since = self._since, None
        if since is not None:
            log.info("broker_answers_again", waited_for=self._waits_for, away_s=round(time.monotonic() - since, 1))


def retry_until_answered(step: Callable[[Callable[[], None]], T], stopping: threading.Event) -> T | None:
    """Return the result of the first step on the metadata log; None once the process is to stop.

    A broker that is away is waited for, and then for ``MISSING_S`` to find the topic again. The step is given a
    function to call now and then while it gets on, and keeps what it has from one try to the next. Raises TopicMissing
    from a broker that was there all the time; other errors pass.
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
        return BrokerRetry("the metadata log", stopping).until_answered(once)
    except NotRetried as gave_up:
        raise gave_up.error from None
    except Stopped:
        return None


class Stopped(Exception):
    """The process is to stop."""


class NotRetried(Exception):
    """Carries an error out of the retry loop, which would retry it otherwise."""

    def __init__(self, error: TopicMissing) -> None:
        super().__init__(str(error))
        self.error = error
