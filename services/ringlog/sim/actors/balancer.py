"""The balancer on the simulated world: performs the effects of ``ringlog.protocol.balancer``."""

from __future__ import annotations

from ringlog.protocol.balancer import ROLE, NewLoads, ReadLoads, balance
from ringlog.protocol.coordinator import Wait
from ringlog.protocol.load_book import Heard
from ringlog.protocol.role import Accept
from ringlog.sim.actors.asking import AFTER_REFUSAL_US, AskingWorker
from ringlog.sim.actors.role import NEWS_US
from ringlog.sim.broker import LOAD, SimRecord
from ringlog.sim.memo import cached_load
from ringlog.sim.replica import Step


class BalancerWorker(AskingWorker):
    """One instance of the balancer."""

    role = ROLE

    def work(self) -> Step:
        """Look at every change, for ever."""
        self._inbox: list[SimRecord] = []
        self._read = 0
        self.replica.in_time |= {ReadLoads: self._all_loads, Accept: self._accept, NewLoads: self._new_loads}
        return self.replica.perform(balance())

    def _all_loads(self, _: ReadLoads) -> Step:
        records = yield from self.read(LOAD)
        self._read = records[-1].offset + 1 if records else 0
        return heard(records)

    def _accept(self, _: Accept) -> Step:
        self.tails.append(self.sim.broker.tail(self.host, LOAD, 0, self._read, self._take))
        yield from self.client.start()

    def _new_loads(self, effect: NewLoads) -> Step:
        if effect.wait is Wait.PAUSE:
            yield AFTER_REFUSAL_US
        elif effect.wait is not Wait.NOTHING and not self._inbox:
            yield self.replica.changed, NEWS_US
        came, self._inbox = self._inbox, []
        return heard(came)

    def _take(self, records: list[SimRecord]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()


def heard(records: list[SimRecord]) -> list[Heard]:
    """The records as the balancer takes them."""
    return [Heard(cached_load(record.value), record.time) for record in records]
