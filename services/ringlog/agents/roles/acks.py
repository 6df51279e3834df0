"""The parts that workers with acknowledgements share: all records of the topic first, then those that faust delivers.

When the key files change, the book starts again (``NewAcks``), because earlier records must be checked with the new
keys. A role without other effects has no thread of its own: its row in ``protocol.roles`` names its steps.

``RejectedAcks`` lists the nodes whose acknowledgements are ignored because their code is missing or wrong, until a
valid one arrives. The agent's status shows them in the form of a rejected proposal, so every operator sees them.
Anybody can invent nodes: only those of the directory are shown, and of others at most ``NODES_MAX`` are kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, Protocol

from ringlog.agents.ports import Acknowledge, Ended
from ringlog.agents.roles.asking import REFUSED_MAX, WAITS_S, AskingThread
from ringlog.agents.roles.role import Offered
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
    """For one thread that hears; any may look. ``records``: how many were passed over."""

    def __init__(self) -> None:
        self.records = 0
        self._since: dict[NodeId, Micros] = {}

    def begin_anew(self) -> None:
        """All is read again."""
        self._since = {}

    def believes(self, node: NodeId) -> None:
        """Its newest word is its own."""
        self._since.pop(node, None)

    def passes_over(self, node: NodeId, now: Micros, known: Container[NodeId]) -> None:
        """A record of ``node`` has no right code. ``known``: the nodes of the directory."""
        self.records += 1
        if len(self._since) >= NODES_MAX and node not in self._since:
            self._since = {one: since for one, since in self._since.items() if one in known}
        if len(self._since) < NODES_MAX:
            self._since.setdefault(node, now)

    def shown(self, known: Mapping[NodeId, _Named]) -> tuple[RefusedProposal, ...]:
        """Those of the directory, who has waited longest first."""
        found = [(node, since) for node, since in self._since.copy().items() if node in known]
        return tuple(
            RefusedProposal(known[node].name, NodeAck.__name__, ACK_REJECTED, REJECTED_ACK_REMEDY, since)
            for node, since in found
        )


NODES_SHOWN_MAX: Final = REFUSED_MAX
"""Nodes that are not believed are shown up to this number."""


class AcksThread(AskingThread):
    """One instance of such a role."""

    _masters: tuple[str, ...] = ()

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self._not_believed = RejectedAcks()
        super().__init__(settings, acknowledge, ended)

    def hear(self) -> None:
        """From now on the effects about acknowledgements are performed."""
        self.driver.handlers |= {ReadAcks: lambda _: self._all_acks(), NewAcks: self._new_acks}

    def figures(self) -> Iterator[Sample]:
        """How many acknowledgements were passed over since they had no code by the key of their node."""
        yield Sample("ringlog_acks_not_believed", self._not_believed.records)

    def refused(self) -> tuple[RefusedProposal, ...]:
        """The nodes that are not believed, too."""
        return (*super().refused(), *self._not_believed.shown(self.replica.state.nodes)[:NODES_SHOWN_MAX])

    def begin_anew(self) -> None:
        """What was noted of acknowledgements counts no more."""
        self._masters = current().ack_masters
        self._not_believed.begin_anew()

    def _all_acks(self) -> Iterator[ReceivedAck]:
        self.begin_anew()
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            yield from self._read((record.offset, record.data) for record in self.read_to_end(acks))
        finally:
            acks.close()

    def _new_acks(self, effect: NewAcks) -> Iterator[ReceivedAck] | None:
        wait_s = WAITS_S[effect.wait]
        offered = self.rest(wait_s) if effect.wait is Wait.PAUSE else self.news(wait_s)
        if current().ack_masters != self._masters:
            self._answered(offered)  # they are in the topic, which is read again
            return None
        return self._heard(offered)

    def _heard(self, offered: list[Offered]) -> Iterator[ReceivedAck]:
        yield from self._read(offered)
        self._answered(offered)

    def _answered(self, offered: list[Offered]) -> None:
        for offset, _ in offered:
            self.acknowledge(offset)

    def _read(self, records: Iterable[Offered]) -> Iterator[ReceivedAck]:
        for offset, value in records:
            if not value:
                continue
            try:
                ack = verified_ack(value, self._masters)
            except WireError as error:
                self._pass_over(offset, error)
            else:
                self._not_believed.believes(ack.node)
                yield offset, ack

    def _pass_over(self, offset: int, error: WireError) -> None:
        if error.code == WRONG_CODE:
            self._not_believed.passes_over(error.field, self.clock.now_us(), self.replica.state.nodes)
            self.seldom.warn(
                "ack_not_believed", offset=offset, node=error.field, why=error.rule, ends=REJECTED_ACK_REMEDY
            )
        else:
            self.seldom.warn("unreadable_ack", offset=offset, why=str(error))


class PlainThread(AcksThread):
    """One instance of a role without a shell."""

    def __init__(self, row: Role, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self.role = row.name
        self._protocol = row.protocol()
        super().__init__(settings, acknowledge, ended)

    def ask(self) -> None:
        """Perform the protocol, for ever."""
        self.hear()
        self.driver.carry_out(self._protocol())
