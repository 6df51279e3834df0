"""The CDC topic keeps rows for as long as their tables promise: the job sees to it while it runs.

A ``ttl`` that is raised, a table whose rows live longer than those of the others: the topic follows within moments,
and the broker deletes nothing that is younger than the retention it had before. Where the job may not change the
topic's settings it says what is missing, and goes on: readers notice a row that is gone, and never pass over it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient

from ringlog.kernel.generations.expiry import log_retention
from ringlog.kernel.state import ClusterState
from ringlog.log.errors import LogError
from ringlog.log.retention import keep_at_least

Emit = Callable[..., None]


class RetentionKeeper:
    """Raises a topic's retention to what a state promises; asks the broker only when that has changed."""

    def __init__(self, admin: AdminClient, topic: str, emit: Emit) -> None:
        self._admin = admin
        self._topic = topic
        self._emit = emit
        self._seen: tuple[Any, ...] = ()
        self._kept: tuple[int | None, ...] = ()

    def keep(self, state: ClusterState) -> None:
        """See the module. Never raises because of the broker; a line of the progress tells what was done, or not."""
        seen = (state.tables, state.past_ttls, state.generations)
        if len(self._seen) == len(seen) and all(old is new for old, new in zip(self._seen, seen, strict=True)):
            return
        self._seen = seen
        seconds = log_retention(state)
        if self._kept == (seconds,):
            return
        try:
            before = keep_at_least(self._admin, self._topic, seconds)
        except LogError as error:
            self._emit("retention", topic=self._topic, seconds=seconds, kept=False, error=str(error))
            return
        self._kept = (seconds,)
        if not before.covers(seconds):
            self._emit("retention", topic=self._topic, seconds=seconds, kept=True, before_ms=before.ms)
