"""The log lines about an unavailable broker: one at the start of an outage, one at its end.

Without a broker, the client library under faust logs errors many times a second. The first one becomes a line. The
others show nothing new, and are only counted. ``ringlog.log.replicas.topic_watch`` polls the broker, and reports when
it answers again. Errors about faust's threads on an overloaded machine are reduced in the same way.

If one broker of several is down, the library reports it again and again, while the others answer at once. So at most
one outage in ``WARNING_INTERVAL_S`` gets lines. Errors of an outage that begins sooner are only counted. If it lasts
until that time has passed, it gets its lines.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ringlog.runtime.logs import RateLimitedWarnings, get_logger

CLIENT = "aiokafka"
"""The library whose errors are counted. Errors of other libraries go to the log unchanged."""
LATE = "Thread keepalive is not responding"
"""A part of faust's message, about once a second, about a thread that has not run for 3 s."""

log = get_logger(__name__)


class Outage(logging.Handler):
    """The state of the broker, for any thread. Also a handler of the standard library's logs.

    ``on_trouble``: called when the client library logs an error.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        on_trouble: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logging.ERROR)
        self._bootstrap = bootstrap_servers
        self._on_trouble = on_trouble
        self._now = now
        self._warnings = RateLimitedWarnings(log, now)
        self._state = threading.Lock()
        self._since: float | None = None
        self._why = ""
        self._passed_over = 0
        self._reported = False
        self._silent = False

    def drop_records(self) -> None:
        """Drop all further records. The agent has logged its end, and errors during the shutdown explain nothing."""
        self._silent = True

    def record_failure(self, why: str) -> None:
        """Record that the broker does not answer, or that the client library says so."""
        with self._state:
            if self._since is None:
                self._since, self._why, self._passed_over, self._reported = self._now(), why, 0, False
            else:
                self._passed_over += 1
            if not self._reported:
                self._reported = self._warnings.warn("broker_away", bootstrap=self._bootstrap, why=self._why)

    @property
    def shown(self) -> str:
        """The duration and the first error of the present outage; empty if there is none."""
        with self._state:
            if self._since is None:
                return ""
            return f"the broker has not answered for {self._now() - self._since:.0f} s: {self._why}"

    def record_answer(self) -> None:
        """Record that the broker has answered."""
        with self._state:
            since, self._since = self._since, None
            passed_over, reported = self._passed_over, self._reported
        if since is not None and reported:
            away_s = round(self._now() - since, 1)
            log.info("broker_answers_again", bootstrap=self._bootstrap, away_s=away_s, passed_over=passed_over)

    def emit(self, record: logging.LogRecord) -> None:
        """Handle one log record of another library."""
        if self._silent:
            return
        if record.name.partition(".")[0] == CLIENT:
            self.record_failure(record.getMessage().strip())
            self._on_trouble()
            return
        said = record.getMessage().strip()
        if LATE in said:
            self._warnings.warn("worker_thread_late", logger=record.name, said=said)
        else:
            log.error("worker", logger=record.name, said=said, exc_info=record.exc_info)


def redirect_library_logs(outage: Outage) -> None:
    """Send all errors of other libraries to ``outage``, and drop their lower levels."""
    root = logging.getLogger()
    root.handlers[:] = [outage]
    root.setLevel(logging.ERROR)
