"""What the threads share that hear nodes' acknowledgements: all that there are, then what faust brings.

A role that needs no other effect has no thread of its own: its row in ``protocol.roles`` names its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ringlog.agents.contract import Acknowledge, Ended
from ringlog.agents.shells.asking import WAITS_S, AskingThread
from ringlog.agents.shells.role import Offered
from ringlog.log.kafka import KafkaLog
from ringlog.log.topics import ACKS
from ringlog.protocol.coordinator import NewAcks, ReadAcks, Wait
from ringlog.protocol.roles import Role
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import current
from ringlog.wire.ack_codes import WRONG_CODE, believed_ack
from ringlog.wire.errors import WireError
from ringlog.wire.records import NodeAck

NOT_BELIEVED: Final = (
    "give the node its ack.key, made of a line of this process's ack.master; if it has it, somebody else writes for it"
)


class AcksThread(AskingThread):
    """One instance of such a role."""

    wrong_codes = 0
    """Acknowledgements that were passed over since they had no code by the key of their node."""

    def hear(self) -> None:
        """From now on the effects about acknowledgements are performed."""
        self.driver.handlers |= {ReadAcks: lambda _: self._all_acks(), NewAcks: self._new_acks}

    def _all_acks(self) -> Iterator[tuple[int, NodeAck]]:
        acks = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, ACKS)
        try:
            yield from self._read((record.offset, record.data) for record in self.read_to_end(acks))
        finally:
            acks.close()

    def _new_acks(self, effect: NewAcks) -> Iterator[tuple[int, NodeAck]]:
        wait_s = WAITS_S[effect.wait]
        offered = self.rest(wait_s) if effect.wait is Wait.PAUSE else self.news(wait_s)
        yield from self._read(offered)
        for offset, _ in offered:
            self.acknowledge(offset)

    def _read(self, records: Iterable[Offered]) -> Iterator[tuple[int, NodeAck]]:
        masters = current().ack_masters
        for offset, value in records:
            if not value:
                continue
            try:
                ack = believed_ack(value, masters)
            except WireError as error:
                self._pass_over(offset, error)
            else:
                yield offset, ack

    def _pass_over(self, offset: int, error: WireError) -> None:
        if error.code == WRONG_CODE:
            self.wrong_codes += 1
            self.seldom.warn("ack_not_believed", offset=offset, node=error.field, why=error.rule, ends=NOT_BELIEVED)
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
