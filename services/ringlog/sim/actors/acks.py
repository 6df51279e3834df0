"""What the simulated workers share that hear nodes' acknowledgements: all that there are, then what comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.values import Micros
from ringlog.protocol.coordinator import NewAcks, ReadAcks, Wait
from ringlog.protocol.role import Accept
from ringlog.protocol.roles import Role
from ringlog.sim.actors.asking import AFTER_REFUSAL_US, AskingWorker
from ringlog.sim.actors.role import NEWS_US
from ringlog.sim.broker import ACKS, SimRecord, SimTail
from ringlog.sim.memo import cached_ack
from ringlog.sim.replica import Step
from ringlog.sim.world import MS
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation
    from ringlog.sim.world import SimHost

PUBLICATION_POLL_US: Micros = 100 * MS


class AcksWorker(AskingWorker):
    """One instance of such a role."""

    def __init__(self, sim: Simulation, host: SimHost, committed: int) -> None:
        super().__init__(sim, host, committed)
        self._inbox: list[SimRecord] = []
        self._read = 0
        self.replica.in_time |= {ReadAcks: self._all_acks, Accept: self._accept, NewAcks: self._new_acks}

    def listen(self) -> list[SimTail]:
        """Hear what comes in from now on."""
        return [self.sim.broker.tail(self.host, ACKS, 0, self._read, self._take_acks)]

    def _accept(self, _: Accept) -> Step:
        self.tails += self.listen()
        yield from self.client.start()

    def _all_acks(self, _: ReadAcks) -> Step:
        records = yield from self.read(ACKS)
        self._read = records[-1].offset + 1 if records else 0
        return heard(records)

    def _new_acks(self, effect: NewAcks) -> Step:
        if effect.wait is Wait.PAUSE:
            yield AFTER_REFUSAL_US
        elif effect.wait is not Wait.NOTHING:
            yield self.replica.changed, PUBLICATION_POLL_US if effect.wait is Wait.PUBLICATION else NEWS_US
        came, self._inbox = self._inbox, []
        return heard(came)

    def _take_acks(self, records: list[SimRecord]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()


def plain_worker(row: Role) -> type[AcksWorker]:
    """The workers of a role without a shell: its row names its steps."""

    class PlainWorker(AcksWorker):
        """One instance of it."""

        role = row.name

        def work(self) -> Step:
            """Perform the protocol, for ever."""
            return self.replica.perform(row.protocol()())

    return PlainWorker


def heard(records: list[SimRecord]) -> list[tuple[int, NodeAck]]:
    """(offset, acknowledgement) of records of the topic."""
    found = []
    for record in records:
        try:
            found.append((record.offset, cached_ack(record.value)))
        except WireError:
            continue
    return found
