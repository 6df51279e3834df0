"""A watch for topics that are deleted, or deleted and created again, while a process uses them.

A reader with an assigned partition is not notified when its topic is deleted. A reader in a consumer group only loses
its partition. If the topic is created again, a reader may continue as if nothing had happened. A process therefore
compares the ids of its topics regularly.

Invariant: an unanswered request is not evidence. A broker that has just started may not know all topics yet. So a topic
must be missing for ``MISSING_S``, or have the same other id in two consecutive checks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient

from ringlog.kernel.values import Value
from ringlog.log.errors import LogReplaced, LogUnavailable, TopicMissing
from ringlog.log.kafka.topics import admin_client, topic_ids
from ringlog.log.replicas.replica import MISSING_S, SUSPECT_S

WATCH_S = 5.0
AWAY_S = 1.0
LOOKUP_TIMEOUT_S = 5.0


class LostTopic(Value):
    """A topic that is missing or has another id than before (``was``).

    ``found`` is its present id, or None if it is missing.
    """

    topic: str
    was: str
    found: str | None

    def __str__(self) -> str:
        """Return the stable code and a description."""
        if self.found is None:
            return f"{TopicMissing.code}: topic {self.topic} was deleted"
        made_again = f"its id was {self.was} and is now {self.found}"
        return f"{LogReplaced.code}: topic {self.topic} was deleted and created again: {made_again}"


class TopicWatch:
    """A thread that checks the ids of topics every ``WATCH_S``.

    Args:
        ids: Topic name to expected id, most important topic first.
        lost: Called once, in the watch's thread, when a topic is certainly lost.
        away: Called with the reason after each check that the broker did not answer.
        answers: Called after each check that the broker answered.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        ids: Mapping[str, str],
        lost: Callable[[LostTopic], None],
        away: Callable[[str], None] = lambda _: None,
        answers: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap_servers
        self._ids = dict(ids)
        self._lost = lost
        self._on_away = away
        self._on_answers = answers
        self._clock = clock
        self._admin: AdminClient | None = None
        self._suspect: LostTopic | None = None
        self._suspected_since = 0.0
        self._away = False
        self._check_lock = threading.Lock()
        self._check_requested = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread and return at once."""
        threading.Thread(target=self._run, name="topic-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop checking."""
        self._stopping.set()
        self._check_requested.set()

    def request_check(self) -> None:
        """Request a check soon, because a request to the broker failed."""
        self._check_requested.set()

    def check_until_certain(self) -> LostTopic | None:
        """Check until the result is certain. Return the lost topic, or None.

        Returns at once if the topics look correct. Otherwise it repeats the check until the doubt is confirmed or
        resolved.
        """
        tick = threading.Event()
        while (found := self.check()) is None:
            if self._suspect is None:
                return None
            tick.wait(SUSPECT_S)
        return found

    def check(self) -> LostTopic | None:
        """Check once. Return a topic that is certainly lost, or None. Safe from threads."""
        with self._check_lock:
            try:
                found = self._ids_now()
            except LogUnavailable as error:
                self._admin = None  # A new client asks at once. The old one has a growing reconnect delay.
                self._suspect, self._away = None, True
                self._on_away(error.message)
                return None
            self._away = False
            self._on_answers()
            return self._compare_ids(found)

    def _compare_ids(self, found: Mapping[str, str | None]) -> LostTopic | None:
        wrong = next((LostTopic(name, was, found[name]) for name, was in self._ids.items() if found[name] != was), None)
        before, self._suspect = self._suspect, wrong
        if wrong is None:
            return None
        # A first observation only starts the doubt. A missing topic must stay missing; another id must be seen again.
        if wrong != before:
            self._suspected_since = self._clock()
            return None
        return wrong if wrong.found is not None or self._clock() - self._suspected_since >= MISSING_S else None

    def _ids_now(self) -> Mapping[str, str | None]:
        """Return the present topic ids, None for a missing topic. Raises LogUnavailable."""
        if self._admin is None:
            self._admin = admin_client(self._bootstrap)
        return topic_ids(self._admin, list(self._ids), LOOKUP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            lost = self.check()
            if lost is not None:
                self._lost(lost)
                return
            pause = SUSPECT_S if self._suspect is not None else AWAY_S if self._away else WATCH_S
            # In doubt, or while the broker is away, a wake-up adds no information. Only stop() ends the pause.
            (self._check_requested if pause == WATCH_S else self._stopping).wait(pause)
            self._check_requested.clear()
