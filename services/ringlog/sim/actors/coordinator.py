"""The coordinator on the simulated world: newest acknowledgement of each node, a look at each change, submissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.agents.coordinator_core import Known, Proposal, awaits_publication, prepared_in_full, propose
from ringlog.client.ack_book import AckBook
from ringlog.client.results import AppliedResult
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.values import GenerationId, Micros
from ringlog.sim.actors.role import NEWS_US, Worker
from ringlog.sim.broker import ACKS, CHANGES, Record, Tail
from ringlog.sim.client import SimClient, TimedOut
from ringlog.sim.memo import cached_ack, cached_change
from ringlog.sim.replica import Step
from ringlog.sim.world import MS, SECOND
from ringlog.wire.errors import WireError

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
        self._acks = AckBook()
        self._published = 0
        self._complete: tuple[GenerationId | None, Micros] = (None, 0)
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
        broker = self.sim.broker
        acks = yield from self.read(ACKS)
        self._take_acks(acks)
        self._tails = [
            broker.tail(self.host, ACKS, 0, acks[-1].offset + 1 if acks else 0, self._take_acks),
            broker.tail(self.host, CHANGES, 0, 0, self._take_changes),
        ]
        yield from self._client.start()
        while True:
            self.look()
            refused = False
            for proposal in propose(self._known()):
                yield from self.sim.moments.at("proposing", self.host)
                applied = yield from self._submit(proposal)
                refused = refused or not applied
            if refused:
                yield AFTER_REFUSAL_US
            else:
                waiting = awaits_publication(self.replica.state)
                yield self.replica.changed, PUBLICATION_POLL_US if waiting else NEWS_US

    def _known(self) -> Known:
        state, now = self.replica.state, self.direct.now()
        generation = prepared_in_full(state)
        if generation != self._complete[0]:
            self._complete = (generation, now)
        return Known(state, self._acks.newest(state), self._published, now, self._complete[1])

    def _submit(self, proposal: Proposal) -> Step:
        """Ask until there is an answer; False if it was not applied."""
        while True:
            self.look()
            try:
                answer = yield from self._client.submit(
                    proposal.command, SUBMIT_US, proposal.request_id, proposal.since_epoch
                )
                break
            except TimedOut:
                continue
        if not isinstance(answer, AppliedResult):
            return False
        while self.replica.state.epoch < answer.epoch:
            yield self.replica.changed
        return True

    def _take_acks(self, records: list[Record]) -> None:
        for record in records:
            try:
                ack = cached_ack(record.value)
            except WireError:
                continue
            self._acks.take(record.offset, ack)
        self.replica.changed.fire()

    def _take_changes(self, records: list[Record]) -> None:
        for record in records:
            if record.key == "epochs":
                change = cached_change(record.value)
                assert isinstance(change, EpochChange)
                self._published = change.epoch
