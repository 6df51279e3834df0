"""The coordinator's thread: performs the effects of ``ringlog.protocol.coordinator`` on the topics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from ringlog.agents.cluster_figures import cluster_samples
from ringlog.agents.contract import Acknowledge, Ended
from ringlog.agents.shells.acks import AcksThread
from ringlog.agents.shells.epochs import EpochsReader
from ringlog.agents.shells.role import Offered
from ringlog.log.errors import LogUnavailable
from ringlog.log.topics import ACKS, topic_name
from ringlog.protocol.ack_book import AckBook
from ringlog.protocol.coordinator import Forget, PublishedEpoch, UnstoredBytes, coordinate
from ringlog.protocol.coordinator_core import ROLE
from ringlog.runtime.figures import Sample
from ringlog.runtime.logs import get_logger
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.records import NodeAck

log = get_logger(__name__)


class CoordinatorThread(AcksThread):
    """One instance of the coordinator."""

    role = ROLE

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        super().__init__(settings, acknowledge, ended)
        self._shown = AckBook()
        self._looking = threading.Lock()

    def figures(self) -> Iterator[Sample]:
        """What the state says of the cluster."""
        state = self.replica.state
        with self._looking:
            acks = self._shown.newest(state)
        yield from cluster_samples(state, acks, self.clock.now_us())
        yield from super().figures()

    def ask(self) -> None:
        """Perform the protocol, for ever."""
        epochs = EpochsReader(self.settings, self.look)
        self.hear()
        self.driver.handlers |= {
            Forget: self._forget,
            PublishedEpoch: lambda _: epochs.newest(),
            UnstoredBytes: lambda _: self.replica.recent.since_mark,
        }
        try:
            self.driver.carry_out(coordinate())
        finally:
            epochs.close()

    def begin_anew(self) -> None:
        """Nor does what is shown."""
        super().begin_anew()
        with self._looking:
            self._shown = AckBook()

    def _read(self, records: Iterable[Offered]) -> Iterator[tuple[int, NodeAck]]:
        """Who watches has acknowledgements of its own: a look changes what is remembered of them."""
        for offset, ack in super()._read(records):
            if self.settings.metrics_port is not None:
                with self._looking:
                    self._shown.take(offset, ack)
            yield offset, ack

    def _forget(self, effect: Forget) -> None:
        """A process that goes on speaking for such a node is not argued with: its last word goes at the next start."""
        try:
            for node in effect.nodes:
                self.producer.send(topic_name(self.settings.cluster, ACKS.suffix), None, key=node.encode())
        except LogUnavailable as error:
            log.warning("acks_not_forgotten", nodes=len(effect.nodes), why=error.message)
