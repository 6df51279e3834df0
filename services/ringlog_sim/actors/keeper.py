"""The simulated cache writer. It performs the effects of ``ringlog.protocol.followers.cache_writer``."""

from __future__ import annotations

from ringlog.cache.port import Confirmation, WriteOutcome
from ringlog.kernel.values import Micros
from ringlog.protocol.followers.cache_writer import AwaitNewer, NextOffset, StoredStamp, StoreView, maintain_cache
from ringlog.protocol.role import StartServing
from ringlog_sim.actors.role import Worker
from ringlog_sim.devices.broker import ANSWER_US, Answer
from ringlog_sim.devices.world import MS, SECOND, Unanswered
from ringlog_sim.replica import Step

BEAT_US: Micros = 2 * SECOND
RETRY_US: Micros = SECOND // 2
WRITE_US: Micros = 20 * MS
"""Duration of a write. Epochs that arrive during a write are written together."""


class CacheWriterWorker(Worker):
    """One instance of the cache writer."""

    role = "keeper"

    def work(self) -> Step:
        """Update the cache to the newest epoch. It does not end."""
        self.replica.at_once |= {StartServing: lambda _: None, NextOffset: lambda _: self.replica.position}
        self.replica.in_time |= {StoreView: self._store, StoredStamp: self._stored_stamp, AwaitNewer: self._rest}
        return self.replica.perform(maintain_cache(self.direct.steps))

    def _store(self, effect: StoreView) -> Step:
        sim, confirmation = self.sim, Confirmation(effect.state.state_id, effect.position, effect.confirmed_at)

        def ask(answer: Answer) -> None:
            if sim.cache_up:
                answer(sim.cache.apply(effect.write, confirmation))
                for check in sim.on_stored:
                    check.stored()

        try:
            written = yield from sim.world.call(self.host, sim.world.host("cache"), ask, ANSWER_US)
        except Unanswered:
            return None
        if written is WriteOutcome.APPLIED:
            for check in sim.on_cached:
                check.cached(effect.state)
        return written

    def _stored_stamp(self, _: StoredStamp) -> Step:
        sim = self.sim

        def ask(answer: Answer) -> None:
            if sim.cache_up:
                answer(sim.cache.confirmed())

        try:
            found = yield from sim.world.call(self.host, sim.world.host("cache"), ask, ANSWER_US)
        except Unanswered:
            return None
        return None if found is None else found[0]

    def _rest(self, effect: AwaitNewer) -> Step:
        if not effect.answered:
            yield RETRY_US
            return
        yield WRITE_US
        if effect.stored is self.replica.state:
            yield self.replica.changed, BEAT_US
