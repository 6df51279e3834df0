"""Are the topics that an agent lives on still the ones that it started with?

Every agent's process looks, whether it acts or stands by: a stand-by follows no log that could tell, and who reads the
deleted topic by its consumer group only loses its partition. What is found ends the process in one way for all roles:

- the metadata topic was deleted, or made again: the log is gone, and nothing may be written in its place. Halted.
- another topic that the role reads or writes was deleted, or made again: crashed, with the command that makes it again.
  Started again, the agent waits until all topics are there, and begins with what the topic holds then.

A broker that gives no answer shows nothing, and one that has just started may not know all its topics yet: a topic must
be missing for ``MISSING_S``, and another id be seen twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ringlog.agents.exits import CRASHED, HALTED, End
from ringlog.agents.outage import Outage
from ringlog.log.errors import LogReplaced, LogUnavailable, TopicMissing
from ringlog.log.replica import MISSING_S, SUSPECT_S
from ringlog.log.topics import admin_client, describe
from ringlog.runtime.settings import Settings

WATCH_S = 5.0
AWAY_S = 1.0
LOOKUP_TIMEOUT_S = 5.0

RESTORE = "restore its records under this name, or found a cluster under another one; nothing goes on without the log"
MAKE_AGAIN = "`ringlog cluster found {cluster}` makes it again; this agent waits for it when it is started again"
BEGIN_AGAIN = "started again, this agent begins with what it holds now"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A topic that is not the one it was, and since when (seconds); ``found``: its id now, None if it is missing."""

    topic: str
    found: str | None
    since: float


def record_path(settings: Settings, role: str) -> Path:
    """Where an agent remembers which log it has read, and how far."""
    return settings.data_dir / "agents" / f"{settings.cluster}.{role}.json"


def deleted(cluster: str, topic: str, *, metadata: bool) -> End:
    """How an agent ends whose topic is not there any more."""
    detail = f"{TopicMissing.code}: topic {topic} was deleted"
    return (
        End(HALTED, f"{detail} ({RESTORE})")
        if metadata
        else End(CRASHED, f"{detail} ({MAKE_AGAIN.format(cluster=cluster)})")
    )


def replaced(topic: str, was: str, found: str, *, metadata: bool) -> End:
    """How an agent ends whose topic has another id than before."""
    detail = f"{LogReplaced.code}: topic {topic} was deleted and made again: its id was {was}, now it is {found}"
    return End(HALTED, f"{detail} ({RESTORE})") if metadata else End(CRASHED, f"{detail} ({BEGIN_AGAIN})")


class TopicWatch:
    """Looks at the topics of ``ids`` (name -> id, the metadata topic first) every ``WATCH_S``, in a thread of its own.

    ``lost``: called once, in that thread, when it is certain that one of them is gone.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        ids: Mapping[str, str],
        lost: Callable[[End], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outage = Outage(bootstrap_servers, self._wake)
        self._bootstrap = bootstrap_servers
        self._cluster = cluster
        self._ids = dict(ids)
        self._metadata = next(iter(self._ids))
        self._lost = lost
        self._clock = clock
        self._doubt: Doubt | None = None
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

    def verdict(self, end: End) -> End:
        """The end of an agent that gave up: what is wrong with its topics, if that is why; else ``end`` itself."""
        tick = threading.Event()
        while (found := self.look()) is None:
            if self._doubt is None:
                return end
            tick.wait(SUSPECT_S)
        return found

    def look(self) -> End | None:
        """One look; None while nothing is certain. Safe from threads."""
        with self._looking:
            try:
                found = {name: self._id_of(name) for name in self._ids}
            except LogUnavailable as error:
                self._doubt, self._away = None, True
                self.outage.away(error.message)
                return None
            self._away = False
            self.outage.answers()
            return self._judge(found)

    def _judge(self, found: Mapping[str, str | None]) -> End | None:
        wrong = next((name for name, known in self._ids.items() if found[name] != known), None)
        before, self._doubt = self._doubt, None
        if wrong is None:
            return None
        now = found[wrong]
        if before is None or (before.topic, before.found) != (wrong, now):
            self._doubt = Doubt(wrong, now, self._clock())
            return None
        self._doubt = before
        metadata = wrong == self._metadata
        if now is not None:
            return replaced(wrong, self._ids[wrong], now, metadata=metadata)
        if self._clock() - before.since < MISSING_S:
            return None
        return deleted(self._cluster, wrong, metadata=metadata)

    def _id_of(self, name: str) -> str | None:
        """A topic's id as it is now; None if a broker says that there is none. Raises LogUnavailable."""
        try:
            return describe(admin_client(self._bootstrap), [name], LOOKUP_TIMEOUT_S)[name].topic_id
        except TopicMissing:
            return None

    def _wake(self) -> None:
        self._trouble.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            end = self.look()
            if end is not None:
                self._lost(end)
                return
            pause = SUSPECT_S if self._doubt is not None else AWAY_S if self._away else WATCH_S
            # While it is known that something is wrong, complaints of the client library bring nothing new.
            (self._trouble if pause == WATCH_S else self._stopping).wait(pause)
            self._trouble.clear()
