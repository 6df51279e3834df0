"""The coordinator on the simulated world: performs the effects of ``ringlog.protocol.coordinator``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.values import Micros
from ringlog.protocol.coordinator import Forget, NewAcks, Note, PublishedEpoch, ReadAcks, Submit, Wait, coordinate
from ringlog.protocol.role import Accept
from ringlog.protocol.submission import NoAnswer
from ringlog.sim.actors.role import NEWS_US, Worker
from ringlog.sim.broker import ACKS, CHANGES, Record, Tail
from ringlog.sim.client import SimClient
from ringlog.sim.memo import cached_ack, cached_change
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, SECOND
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation
    from ringlog.sim.world import Host

SUBMIT_US: Micros = 5 * SECOND
AFTER_REFUSAL_US: Micros = 500 * MS
PUBLICATION_POLL_US: Micros = 100 * MS


class CoordinatorWorker(Worker):
    """One instance of the coordinator."""

    role = "coordinator"

    def __init__(self, sim: Simulation, host: Host, committed: int) -> None:
        super().__init__(sim, host, committed)
        self._inbox: list[Record] = []
        self._published = 0
        self._read = 0
        self._tails: list[Tail] = []
        self._client = SimClient(sim, host, self.instance, self.replica)

    def close(self) -> None:
        """Let go of readers."""
        super().close()
        self._client.close()
        for tail in self._tails:
            tail.close()

    def work(self) -> Step:
        """Look at every change, for ever."""
        self.replica.at_once |= {
            Forget: lambda _: None,
            PublishedEpoch: lambda _: self._published,
            Note: lambda _: None,
        }
        self.replica.in_time |= {
            ReadAcks: self._all_acks,
            Accept: self._accept,
            Submit: self._submit,
            NewAcks: self._new_acks,
        }
        return self.replica.perform(coordinate())

    def _all_acks(self, _: ReadAcks) -> Step:
        records = yield from self.read(ACKS)
        self._read = records[-1].offset + 1 if records else 0
        return _acks(records)

    def _accept(self, _: Accept) -> Step:
        broker = self.sim.broker
        self._tails = [
            broker.tail(self.host, ACKS, 0, self._read, self._take_acks),
            broker.tail(self.host, CHANGES, 0, 0, self._take_changes),
        ]
        yield from self._client.start()

    def _submit(self, effect: Submit) -> Step:
        proposal = effect.proposal
        try:
            return (
                yield from self._client.submit(proposal.command, SUBMIT_US, proposal.request_id, proposal.since_epoch)
            )
        except NoAnswer:
            return None

    def _new_acks(self, effect: NewAcks) -> Step:
        if effect.wait is Wait.PAUSE:
            yield AFTER_REFUSAL_US
        elif effect.wait is not Wait.NOTHING:
            yield self.replica.changed, PUBLICATION_POLL_US if effect.wait is Wait.PUBLICATION else NEWS_US
        heard, self._inbox = self._inbox, []
        return _acks(heard)

    def _take_acks(self, records: list[Record]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()

    def _take_changes(self, records: list[Record]) -> None:
        for record in records:
            if record.key == "epochs":
                change = cached_change(record.value)
                assert isinstance(change, EpochChange)
                self._published = change.epoch


def _acks(records: list[Record]) -> list[tuple[int, NodeAck]]:
    heard = []
    for record in records:
        try:
            heard.append((record.offset, cached_ack(record.value)))
        except WireError:
            continue
    return heard
