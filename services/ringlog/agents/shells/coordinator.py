"""The coordinator's thread: performs the effects of ``ringlog.protocol.coordinator`` on the topics."""

from __future__ import annotations

from ringlog.agents.shells.acks import AcksThread
from ringlog.agents.shells.epochs import EpochsReader
from ringlog.log.errors import LogUnavailable
from ringlog.log.topics import ACKS, topic_name
from ringlog.protocol.coordinator import Forget, PublishedEpoch, coordinate
from ringlog.protocol.coordinator_core import ROLE
from ringlog.runtime.logs import get_logger

log = get_logger(__name__)


class CoordinatorThread(AcksThread):
    """One instance of the coordinator."""

    role = ROLE

    def ask(self) -> None:
        """Perform the protocol, for ever."""
        epochs = EpochsReader(self.settings, self.look)
        self.hear()
        self.driver.handlers |= {Forget: self._forget, PublishedEpoch: lambda _: epochs.newest()}
        try:
            self.driver.carry_out(coordinate())
        finally:
            epochs.close()

    def _forget(self, effect: Forget) -> None:
        """A process that goes on speaking for such a node is not argued with: its last word goes at the next start."""
        try:
            for node in effect.nodes:
                self.producer.send(topic_name(self.settings.cluster, ACKS.suffix), None, key=node.encode())
        except LogUnavailable as error:
            log.warning("acks_not_forgotten", nodes=len(effect.nodes), why=error.message)
