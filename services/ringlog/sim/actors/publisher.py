"""The publisher on the simulated world: one transaction for each epoch, resumed where ``epochs`` ends.

All change topics are one partition here; a record's key is its topic, its value the bytes that the topic gets (with
the record's own key before them, for the check).
"""

from __future__ import annotations

from typing import Any

from ringlog.agents.publisher_core import ahead, starts_from
from ringlog.kernel.changes import EpochChange
from ringlog.sim.actors.role import Worker
from ringlog.sim.broker import CHANGES, METADATA, Fenced, Record, Tail
from ringlog.sim.memo import cached_change
from ringlog.sim.replica import Step
from ringlog.sim.world import Ended, Signal, Unanswered


class PublisherWorker(Worker):
    """One instance of the publisher."""

    role = "publisher"
    _tail: Tail | None = None

    def work(self) -> Step:
        """Publish every epoch once, for ever."""
        yield from self.confirm()
        epoch = yield from self.initialise()
        last = yield from self._last_published()
        why = ahead(last, (yield from self.replica.barrier()))
        if why is not None:
            self.sim.broken("publisher", why)
        self.look()
        inbox: list[Record] = []
        news = Signal()

        def take(records: list[Record]) -> None:
            inbox.extend(records)
            news.fire()

        state, resumed = self.sim.log.states[self.sim.preloaded], last is None
        if not resumed:
            resumed = starts_from(last, state)
        self._tail = self.sim.broker.tail(self.host, METADATA, 0, self.sim.preloaded, take)
        while True:
            if not inbox:
                yield news
            self.look()
            taken = list(inbox)
            inbox.clear()
            for record in taken:
                self.look()
                before, (_, folded) = state, self.sim.folded(state, record.value)
                state = folded.state
                if resumed and state is not before:
                    yield from self._publish(epoch, self.sim.changes(before, state))
                elif not resumed:
                    resumed = starts_from(last, state)

    def close(self) -> None:
        """Let go of readers."""
        super().close()
        if self._tail is not None:
            self._tail.close()

    def _publish(self, epoch: int, values: list[tuple[str, Any]]) -> Step:
        yield from self.sim.moments.at("announcing", self.host)
        try:
            yield from self.sim.broker.transact(self.host, self.role, epoch, CHANGES, values)
        except Fenced:
            raise Ended("fenced") from None
        except Unanswered:
            raise Ended("a transaction has no answer") from None

    def _last_published(self) -> Step:
        while True:
            try:
                records = yield from self.sim.broker.read(self.host, CHANGES)
                break
            except Unanswered:
                self.look()
        newest = next((record for record in reversed(records) if record.key == "epochs"), None)
        if newest is None:
            return None
        change = cached_change(newest.value)
        assert isinstance(change, EpochChange)
        return change
