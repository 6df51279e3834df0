"""What the threads share that hear nodes' acknowledgements: all that there are, then what faust brings.

Where the files of keys change, the book begins anew (``NewAcks``): what was noted before they did is believed no more
than what comes after.

A role that needs no other effect has no thread of its own: its row in ``protocol.roles`` names its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ringlog.agents.contract import Acknowledge, Ended
from ringlog.agents.not_believed import NotBelieved
from ringlog.agents.shells.asking import REFUSED_MAX, WAITS_S, AskingThread
from ringlog.agents.shells.role import Offered
from ringlog.log.kafka import KafkaLog
from ringlog.log.topics import ACKS
from ringlog.protocol.coordinator import NewAcks, ReadAcks, Wait
from ringlog.protocol.roles import Role
from ringlog.runtime.figures import Sample
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import current
from ringlog.wire.ack_codes import NOT_BELIEVED_ENDS, WRONG_CODE, believed_ack
from ringlog.wire.errors import WireError
from ringlog.wire.incarnations import Heard
from ringlog.wire.records import RefusedProposal

NODES_SHOWN_MAX: Final = REFUSED_MAX
"""Nodes that are not believed are shown up to this number."""


class AcksThread(AskingThread):
    """One instance of such a role."""

    _masters: tuple[str, ...] = ()

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self._not_believed = NotBelieved()
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

    def _all_acks(self) -> Iterator[Heard]:
        self.begin_anew()
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            yield from self._read((record.offset, record.data) for record in self.read_to_end(acks))
        finally:
            acks.close()

    def _new_acks(self, effect: NewAcks) -> Iterator[Heard] | None:
        wait_s = WAITS_S[effect.wait]
        offered = self.rest(wait_s) if effect.wait is Wait.PAUSE else self.news(wait_s)
        if current().ack_masters != self._masters:
            self._answered(offered)  # they are in the topic, which is read again
            return None
        return self._heard(offered)

    def _heard(self, offered: list[Offered]) -> Iterator[Heard]:
        yield from self._read(offered)
        self._answered(offered)

    def _answered(self, offered: list[Offered]) -> None:
        for offset, _ in offered:
            self.acknowledge(offset)

    def _read(self, records: Iterable[Offered]) -> Iterator[Heard]:
        for offset, value in records:
            if not value:
                continue
            try:
                ack = believed_ack(value, self._masters)
            except WireError as error:
                self._pass_over(offset, error)
            else:
                self._not_believed.believes(ack.node)
                yield offset, ack

    def _pass_over(self, offset: int, error: WireError) -> None:
        if error.code == WRONG_CODE:
            self._not_believed.passes_over(error.field, self.clock.now_us(), self.replica.state.nodes)
            self.seldom.warn(
                "ack_not_believed", offset=offset, node=error.field, why=error.rule, ends=NOT_BELIEVED_ENDS
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
