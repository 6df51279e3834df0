"""The simulated publisher. It performs the effects of ``ringlog.protocol.followers.publisher``.

All change topics are one partition here. A record's key is its topic. Its value is the bytes for the topic, after the
record's own key, which the check needs. No topic is recreated, so no record is ever missing.

It reads the log itself, from the last published epoch on. In production, the replica's ``Feed`` passes the same records
between threads, and also falls back to reading. Here there is one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.model.state import ClusterState
from ringlog.log.folding import follow
from ringlog.protocol.followers.publisher import (
    Announce,
    HaltDiverged,
    LastPublished,
    NextStates,
    Restore,
    StartFollowing,
    publish,
)
from ringlog.protocol.role import StartServing
from ringlog_sim.actors.role import Worker
from ringlog_sim.devices.broker import CHANGES, METADATA, SimRecord
from ringlog_sim.devices.memo import cached_change
from ringlog_sim.devices.world import Signal
from ringlog_sim.replica import Step


class PublisherWorker(Worker):
    """One instance of the change publisher."""

    role = "publisher"
    written = CHANGES

    def work(self) -> Step:
        """Publish every epoch once. It does not end."""
        self._inbox: list[SimRecord] = []
        self._news = Signal()
        handlers: dict[type, Callable[[Any], Any]] = {
            StartServing: lambda _: None,
            Restore: lambda _: None,
            HaltDiverged: self._diverge,
            StartFollowing: self._follow,
        }
        self.replica.at_once |= handlers
        self.replica.in_time |= {
            LastPublished: lambda _: self._last_published(),
            NextStates: lambda _: self._next_states(),
            Announce: lambda effect: self.transact(effect.changes),
        }
        return self.replica.perform(publish(self.direct.steps, self.sim.changes))

    def _diverge(self, effect: HaltDiverged) -> None:
        self.sim.broken("publisher", effect.why)

    def _follow(self, effect: StartFollowing) -> ClusterState:
        start = self.sim.begin(self.name, 0 if effect.last is None else effect.last.epoch - 1)
        self._state = self.sim.log.states[start.state.epoch]
        self.tails.append(self.sim.broker.tail(self.host, METADATA, 0, start.position, self._take))
        return self._state

    def _take(self, records: list[SimRecord]) -> None:
        self._inbox.extend(records)
        self._news.fire()

    def _next_states(self) -> Step:
        if not self._inbox:
            yield self._news
        states = [(made.before, made.after) for made in follow(self._inbox, self._state, self.sim.judge)]
        self._state = states[-1][1]
        self._inbox.clear()
        return states

    def _last_published(self) -> Step:
        records = yield from self.read(CHANGES)
        newest = next((record for record in reversed(records) if record.key == "epochs"), None)
        if newest is None:
            return None
        change = cached_change(newest.value)
        assert isinstance(change, EpochChange)
        return change
