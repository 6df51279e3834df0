"""Simulated workers of the roles that submit commands: coordinator, balancer, and roles without their own effects.

They perform the effects of ``ringlog.protocol.coordinator`` and ``ringlog.protocol.balancer``. Each worker has a client
on its own replica. It first reads all acknowledgements (or load reports) and then the new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.changes import EpochChange
from ringlog.kernel.model.principals import FIRST_KEY
from ringlog.kernel.values import Micros
from ringlog.protocol.balancer.balancer import ROLE, NewLoads, ReadLoads, balance
from ringlog.protocol.balancer.load_book import ReceivedLoad
from ringlog.protocol.controller import ReportRejections, Submit, Wait
from ringlog.protocol.coordinator.ack_book import NewAcks, ReadAcks
from ringlog.protocol.coordinator.coordinator import DeleteAcks, PublishedEpoch, UnstoredBytes, coordinate
from ringlog.protocol.role import StartServing
from ringlog.protocol.roles import Role
from ringlog.protocol.submission.submission import NoAnswer
from ringlog.wire.errors import WireError
from ringlog.wire.ids import derived_request_id
from ringlog.wire.records import NodeAck
from ringlog_sim.actors.role import NEWS_US, Worker
from ringlog_sim.client import SimClient
from ringlog_sim.devices.broker import ACKS, CHANGES, LOAD, SimRecord, SimTail
from ringlog_sim.devices.memo import cached_ack, cached_change, cached_load
from ringlog_sim.devices.world import MS, SECOND
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.devices.world import SimHost
    from ringlog_sim.simulation import Simulation


SUBMIT_US: Micros = 5 * SECOND
AFTER_REFUSAL_US: Micros = 500 * MS


class ControllerWorker(Worker):
    """One instance of a role that submits commands."""

    def __init__(self, sim: Simulation, host: SimHost, committed: int) -> None:
        super().__init__(sim, host, committed)
        self.client = SimClient(sim, host, self.instance, self.replica, principal=self.role)
        self.replica.at_once |= {ReportRejections: lambda _: None}
        self.replica.in_time |= {Submit: self._submit}

    def close(self) -> None:
        """Close the readers."""
        super().close()
        self.client.close()

    def _submit(self, effect: Submit) -> Step:
        proposal, ring = effect.proposal, self.sim.shared["keys"]
        secret = ring and derived_request_id(ring.key(self.role, FIRST_KEY).key, proposal.request_id)
        request_id = secret or proposal.request_id
        try:
            return (yield from self.client.submit(proposal.command, SUBMIT_US, request_id, proposal.since_epoch))
        except NoAnswer:
            return None


PUBLICATION_POLL_US: Micros = 100 * MS


class AcksWorker(ControllerWorker):
    """One instance of a role that reads acknowledgements."""

    def __init__(self, sim: Simulation, host: SimHost, committed: int) -> None:
        super().__init__(sim, host, committed)
        self._inbox: list[SimRecord] = []
        self._read = 0
        self.replica.in_time |= {ReadAcks: self._all_acks, StartServing: self._start_serving, NewAcks: self._new_acks}

    def listen(self) -> list[SimTail]:
        """Start to read new records."""
        return [self.sim.broker.tail(self.host, ACKS, 0, self._read, self._take_acks)]

    def _start_serving(self, _: StartServing) -> Step:
        self.tails += self.listen()
        yield from self.client.start()

    def _all_acks(self, _: ReadAcks) -> Step:
        records = yield from self.read(ACKS)
        self._read = records[-1].offset + 1 if records else 0
        return decoded_acks(records)

    def _new_acks(self, effect: NewAcks) -> Step:
        if effect.wait is Wait.PAUSE:
            yield AFTER_REFUSAL_US
        elif effect.wait is not Wait.NOTHING:
            yield self.replica.changed, PUBLICATION_POLL_US if effect.wait is Wait.PUBLICATION else NEWS_US
        came, self._inbox = self._inbox, []
        return decoded_acks(came)

    def _take_acks(self, records: list[SimRecord]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()


def plain_worker(row: Role) -> type[AcksWorker]:
    """Return a worker class for a role without its own shell. The role's table row names its protocol."""

    class PlainWorker(AcksWorker):
        """One instance of the role."""

        role = row.name

        def work(self) -> Step:
            """Perform the role's protocol. It does not end."""
            return self.replica.perform(row.protocol()())

    return PlainWorker


def decoded_acks(records: list[SimRecord]) -> list[tuple[int, NodeAck]]:
    """Return (offset, acknowledgement) of the readable records of the topic."""
    found = []
    for record in records:
        try:
            found.append((record.offset, cached_ack(record.value)))
        except WireError:
            continue
    return found


class CoordinatorWorker(AcksWorker):
    """One instance of the coordinator."""

    role = "coordinator"
    _published = 0

    def work(self) -> Step:
        """Perform the coordinator's protocol on every change. It does not end."""
        self.replica.at_once |= {
            DeleteAcks: lambda _: None,
            PublishedEpoch: lambda _: self._published,
            UnstoredBytes: lambda _: self.replica.recent.since_mark,
        }
        return self.replica.perform(coordinate())

    def listen(self) -> list[SimTail]:
        """Start to read new records, including published epochs."""
        return [*super().listen(), self.sim.broker.tail(self.host, CHANGES, 0, 0, self._take_changes)]

    def _take_changes(self, records: list[SimRecord]) -> None:
        for record in records:
            if record.key == "epochs":
                change = cached_change(record.value)
                assert isinstance(change, EpochChange)
                self._published = change.epoch


class BalancerWorker(ControllerWorker):
    """One instance of the balancer."""

    role = ROLE

    def work(self) -> Step:
        """Perform the balancer's protocol on every change. It does not end."""
        self._inbox: list[SimRecord] = []
        self._read = 0
        self.replica.in_time |= {
            ReadLoads: self._all_loads,
            StartServing: self._start_serving,
            NewLoads: self._new_loads,
        }
        return self.replica.perform(balance())

    def _all_loads(self, _: ReadLoads) -> Step:
        records = yield from self.read(LOAD)
        self._read = records[-1].offset + 1 if records else 0
        return decoded_loads(records)

    def _start_serving(self, _: StartServing) -> Step:
        self.tails.append(self.sim.broker.tail(self.host, LOAD, 0, self._read, self._take))
        yield from self.client.start()

    def _new_loads(self, effect: NewLoads) -> Step:
        if effect.wait is Wait.PAUSE:
            yield AFTER_REFUSAL_US
        elif effect.wait is not Wait.NOTHING and not self._inbox:
            yield self.replica.changed, NEWS_US
        came, self._inbox = self._inbox, []
        return decoded_loads(came)

    def _take(self, records: list[SimRecord]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()


def decoded_loads(records: list[SimRecord]) -> list[ReceivedLoad]:
    """Return the records in the balancer's form."""
    return [ReceivedLoad(cached_load(record.value), record.time) for record in records]
