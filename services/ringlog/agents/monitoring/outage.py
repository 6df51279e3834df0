"""What an agent's log says of a broker that is away: one line when it begins, one when it is over.

The client library under faust repeats its complaints many times a second while it has no broker. The first one is worth
a line; the others only say that nothing has changed, and are counted. Who looks at the broker by itself
(``ringlog.log.replicas.topic_watch``) says when it answers again. A machine that is too busy for faust's threads is
counted likewise.

Where one broker of several is dead, the library complains of it and the others answer at once, over and over. So
these lines begin at most once in ``SELDOM_S``. The complaints of an outage that comes sooner are counted; it has its
lines, too, if it lasts until that time is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ringlog.runtime.logs import Seldom, get_logger

CLIENT = "aiokafka"
"""The library whose complaints are counted; what others say goes to the log as it is."""
LATE = "Thread keepalive is not responding"
"""What faust says about once a second of a thread that has not run for 3 s."""

log = get_logger(__name__)


class Outage(logging.Handler):
    """Knows whether the broker is away. A handler of the standard library's logs, too; safe from threads.

    ``on_trouble``: called when the client library begins to complain.
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
        self._seldom = Seldom(log, now)
        self._state = threading.Lock()
        self._since: float | None = None
        self._why = ""
        self._passed_over = 0
        self._told = False
        self._silent = False

    def be_silent(self) -> None:
        """The agent has said why it ends: what libraries complain of while they are taken down explains nothing."""
        self._silent = True

    def away(self, why: str) -> None:
        """The broker does not answer, or the client library says so."""
        with self._state:
            if self._since is None:
                self._since, self._why, self._passed_over, self._told = self._now(), why, 0, False
            else:
                self._passed_over += 1
            if not self._told:
                self._told = self._seldom.warn("broker_away", bootstrap=self._bootstrap, why=self._why)

    @property
    def shown(self) -> str:
        """For how long the broker has been away and what was said of it first; empty if it is not away."""
        with self._state:
            if self._since is None:
                return ""
            return f"the broker has been away for {self._now() - self._since:.0f} s: {self._why}"

    def answers(self) -> None:
        """The broker has answered."""
        with self._state:
            since, self._since = self._since, None
            passed_over, told = self._passed_over, self._told
        if since is not None and told:
            away_s = round(self._now() - since, 1)
            log.info("broker_answers_again", bootstrap=self._bootstrap, away_s=away_s, passed_over=passed_over)

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record of another library's log."""
        if self._silent:
            return
        if record.name.partition(".")[0] == CLIENT:
            self.away(record.getMessage().strip())
            self._on_trouble()
            return
        said = record.getMessage().strip()
        if LATE in said:
            self._seldom.warn("worker_thread_late", logger=record.name, said=said)
        else:
            log.error("worker", logger=record.name, said=said, exc_info=record.exc_info)


def take_over_logs(outage: Outage) -> None:
    """Send all that other libraries log from the level of errors on to ``outage``, and nothing below it anywhere."""
    root = logging.getLogger()
    root.handlers[:] = [outage]
    root.setLevel(logging.ERROR)
