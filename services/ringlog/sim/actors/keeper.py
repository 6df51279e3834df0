"""The cache keeper on the simulated world: behind a read barrier, the difference to its last write, or everything."""

from __future__ import annotations

from ringlog.agents.keeper_core import Keeper, learn, next_write
from ringlog.cache.port import Confirmation, Written
from ringlog.cache.projection import Delta, Full
from ringlog.kernel.values import Micros
from ringlog.sim.actors.role import Worker
from ringlog.sim.broker import ANSWER_US, Answer
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, SECOND, Unanswered

BEAT_US: Micros = 2 * SECOND
RETRY_US: Micros = SECOND // 2
WRITE_US: Micros = 20 * MS
"""What a write takes; epochs that come meanwhile are written together."""


class KeeperWorker(Worker):
    """One instance of the cache keeper."""

    role = "keeper"

    def work(self) -> Step:
        """Keep the cache at the newest epoch, for ever."""
        keeper = Keeper()
        while True:
            try:
                keeper = yield from self._write(keeper)
                yield WRITE_US
                if keeper.known is self.replica.state:
                    yield self.replica.changed, BEAT_US
            except Unanswered:
                keeper = Keeper()
                yield RETRY_US
            self.look()

    def _write(self, keeper: Keeper) -> Step:
        sim = self.sim
        confirmed_at = self.direct.now()
        state = yield from self.replica.barrier()
        confirmation = Confirmation(state.state_id, self.replica.position, confirmed_at)
        yield from sim.moments.at("caching", self.host)
        written = yield from self._apply(next_write(keeper, state), confirmation)
        if written is Written.BASE_MISSING:
            written = yield from self._apply(next_write(Keeper(), state), confirmation)
        if written is Written.APPLIED:
            for check in sim.on_cached:
                check.cached(state)
        return learn(state, written)

    def _apply(self, write: Delta | Full, confirmation: Confirmation) -> Step:
        sim = self.sim

        def ask(answer: Answer) -> None:
            if sim.cache_up:
                answer(sim.cache.apply(write, confirmation))
                for check in sim.on_stored:
                    check.stored()

        return (yield from sim.world.call(self.host, sim.world.host("cache"), ask, ANSWER_US))
