"""Are the topics that a process lives on still the ones that it started with?

A reader that is assigned a partition hears nothing when its topic is deleted, and one of a consumer group only loses
its partition; a topic that was made again may be read on as if nothing had happened. So a process that depends on a
topic looks at its id, now and then.

A broker that gives no answer shows nothing, and one that has just started may not know all its topics yet: a topic must
be missing for ``MISSING_S``, and another id be seen twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from ringlog.log.errors import LogReplaced, LogUnavailable, TopicMissing
from ringlog.log.kafka.topics import admin_client, topic_ids
from ringlog.log.replicas.replica import MISSING_S, SUSPECT_S

WATCH_S = 5.0
AWAY_S = 1.0
LOOKUP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A topic that is not the one it was (id ``was``); ``found``: its id now, None if it is missing."""

    topic: str
    was: str
    found: str | None

    def __str__(self) -> str:
        """The stable code, and what happened."""
        if self.found is None:
            return f"{TopicMissing.code}: topic {self.topic} was deleted"
        made_again = f"its id was {self.was}, now it is {self.found}"
        return f"{LogReplaced.code}: topic {self.topic} was deleted and made again: {made_again}"


class TopicWatch:
    """Looks at the topics of ``ids`` (name -> id, the most important first) every ``WATCH_S``, in a thread of its own.

    ``lost``: called once, in that thread, when it is certain that one of them is gone. ``away``, ``answers``: called
    after each look that the broker did not answer, with the reason, or did.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        ids: Mapping[str, str],
        lost: Callable[[Lost], None],
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
        self._doubt: Lost | None = None
        self._since = 0.0
        self._away = False
        self._looking = threading.Lock()
        self._trouble = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to look; returns at once."""
        threading.Thread(target=self._run, name="topic-watch", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._trouble.set()

    def wake(self) -> None:
        """Look soon: somebody has had trouble with the broker."""
        self._trouble.set()

    def verdict(self) -> Lost | None:
        """Is a topic gone? Takes as long as it takes to be certain: no time if nothing speaks for it."""
        tick = threading.Event()
        while (found := self.look()) is None:
            if self._doubt is None:
                return None
            tick.wait(SUSPECT_S)
        return found

    def look(self) -> Lost | None:
        """One look; None while nothing is certain. Safe from threads."""
        with self._looking:
            try:
                found = self._ids_now()
            except LogUnavailable as error:
                self._admin = None  # a new one asks at once, without waiting as long as the last one has waited
                self._doubt, self._away = None, True
                self._on_away(error.message)
                return None
            self._away = False
            self._on_answers()
            return self._judge(found)

    def _judge(self, found: Mapping[str, str | None]) -> Lost | None:
        wrong = next((Lost(name, was, found[name]) for name, was in self._ids.items() if found[name] != was), None)
        before, self._doubt = self._doubt, wrong
        if wrong is None:
            return None
        if wrong != before:
            self._since = self._clock()
            return None
        return wrong if wrong.found is not None or self._clock() - self._since >= MISSING_S else None

    def _ids_now(self) -> Mapping[str, str | None]:
        """The topics' ids as they are now; None where a broker says that there is none. Raises LogUnavailable."""
        if self._admin is None:
            self._admin = admin_client(self._bootstrap)
        return topic_ids(self._admin, list(self._ids), LOOKUP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            lost = self.look()
            if lost is not None:
                self._lost(lost)
                return
            pause = SUSPECT_S if self._doubt is not None else AWAY_S if self._away else WATCH_S
            # While it is known that something is wrong, more trouble brings nothing new.
            (self._trouble if pause == WATCH_S else self._stopping).wait(pause)
            self._trouble.clear()
