"""Workers that read acknowledgements: first all records of the topic, then those that faust delivers.

When the key files change, the book starts again (``NewAcks``), because earlier records must be checked with the new
keys. A role without other effects has no class here: its row in ``protocol.roles`` names its steps (``PlainThread``).

``RejectedAcks`` lists the nodes whose acknowledgements are ignored because their MAC is missing or wrong, until a valid
one arrives. The agent's status shows them in the form of a rejected proposal, so every operator sees them. A client can
invent nodes. So the status shows registered nodes only, and at most ``NODES_MAX`` nodes are kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, Protocol

from ringlog.agents.ports import Acknowledge, Ended
from ringlog.agents.roles.controller import REFUSED_MAX, WAITS_S, ControllerThread
from ringlog.agents.roles.role import InboxRecord
from ringlog.kernel.values import Micros, NodeId
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import ACKS
from ringlog.protocol.controller import Wait
from ringlog.protocol.coordinator.ack_book import NewAcks, ReadAcks
from ringlog.protocol.roles import Role
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import current
from ringlog.wire.acks import ACK_REJECTED, REJECTED_ACK_REMEDY, WRONG_CODE, ReceivedAck, verified_ack
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck, RefusedProposal

NODES_MAX: Final = 10_000


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class RejectedAcks:
    """The nodes with rejected acknowledgements. One thread writes, any thread may read. ``records``: the total."""

    def __init__(self) -> None:
        self.records = 0
        self._since: dict[NodeId, Micros] = {}

    def clear(self) -> None:
        """Forget the nodes, because all records are read again."""
        self._since = {}

    def record_accepted(self, node: NodeId) -> None:
        """Record a valid acknowledgement of a node."""
        self._since.pop(node, None)

    def record_rejected(self, node: NodeId, now: Micros, known: Container[NodeId]) -> None:
        """Record an acknowledgement of ``node`` without a valid MAC. ``known``: the registered nodes."""
        self.records += 1
        if len(self._since) >= NODES_MAX and node not in self._since:
            # Make room for registered nodes: a client may have filled the list with invented ones.
            self._since = {one: since for one, since in self._since.items() if one in known}
        if len(self._since) < NODES_MAX:
            self._since.setdefault(node, now)

    def shown(self, known: Mapping[NodeId, _Named]) -> tuple[RefusedProposal, ...]:
        """Return a rejection for each registered node, in the order of their first rejected record."""
        found = [(node, since) for node, since in self._since.copy().items() if node in known]
        return tuple(
            RefusedProposal(known[node].name, NodeAck.__name__, ACK_REJECTED, REJECTED_ACK_REMEDY, since)
            for node, since in found
        )


NODES_SHOWN_MAX: Final = REFUSED_MAX
"""The most nodes with rejected acknowledgements in a status."""


class AcksThread(ControllerThread):
    """One instance of a role that reads acknowledgements."""

    _masters: tuple[str, ...] = ()

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self._rejected_acks = RejectedAcks()
        super().__init__(settings, acknowledge, ended)

    def register_ack_handlers(self) -> None:
        """Register the handlers of the effects about acknowledgements."""
        self.driver.handlers |= {ReadAcks: lambda _: self._all_acks(), NewAcks: self._new_acks}

    def figures(self) -> Iterator[Sample]:
        """Yield the number of acknowledgements that were ignored because of their MAC."""
        yield Sample("ringlog_acks_rejected", self._rejected_acks.records)

    def refused(self) -> tuple[RefusedProposal, ...]:
        """Return the rejected proposals, and the nodes whose acknowledgements are ignored."""
        return (*super().refused(), *self._rejected_acks.shown(self.replica.state.nodes)[:NODES_SHOWN_MAX])

    def reset_acks(self) -> None:
        """Forget the collected acknowledgements, and load the keys."""
        self._masters = current().ack_masters
        self._rejected_acks.clear()

    def _all_acks(self) -> Iterator[ReceivedAck]:
        """Yield all acknowledgements of the topic."""
        self.reset_acks()
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            yield from self._read((record.offset, record.data) for record in self.read_to_end(acks))
        finally:
            acks.close()

    def _new_acks(self, effect: NewAcks) -> Iterator[ReceivedAck] | None:
        """Return the acknowledgements since the last call; None if the keys have changed: all must be read again."""
        wait_s = WAITS_S[effect.wait]
        offered = self.records_after_pause(wait_s) if effect.wait is Wait.PAUSE else self.wait_for_records(wait_s)
        if current().ack_masters != self._masters:
            self._acknowledge_all(offered)  # the topic contains them, and is read again
            return None
        return self._read_new(offered)

    def _read_new(self, offered: list[InboxRecord]) -> Iterator[ReceivedAck]:
        """Yield the acknowledgements of these records, then mark the records as handled."""
        yield from self._read(offered)
        self._acknowledge_all(offered)

    def _acknowledge_all(self, offered: list[InboxRecord]) -> None:
        for offset, _ in offered:
            self.acknowledge(offset)

    def _read(self, records: Iterable[InboxRecord]) -> Iterator[ReceivedAck]:
        """Yield the valid acknowledgements of these records."""
        for offset, value in records:
            if not value:
                continue
            try:
                ack = verified_ack(value, self._masters)
            except WireError as error:
                self._reject(offset, error)
            else:
                self._rejected_acks.record_accepted(ack.node)
                yield offset, ack

    def _reject(self, offset: int, error: WireError) -> None:
        if error.code == WRONG_CODE:
            self._rejected_acks.record_rejected(error.field, self.clock.now_us(), self.replica.state.nodes)
            self.warnings.warn(
                "ack_not_believed", offset=offset, node=error.field, why=error.rule, ends=REJECTED_ACK_REMEDY
            )
        else:
            self.warnings.warn("unreadable_ack", offset=offset, why=str(error))


class PlainThread(AcksThread):
    """One instance of a role without other effects."""

    def __init__(self, row: Role, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self.role = row.name
        self._protocol = row.protocol()
        super().__init__(settings, acknowledge, ended)

    def run_protocol(self) -> None:
        """Run the protocol, forever."""
        self.register_ack_handlers()
        self.driver.run_steps(self._protocol())
