"""The coordinator's thread: performs the effects of ``ringlog.protocol.coordinator.coordinator`` on the topics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from ringlog.agents.maintenance.pruning import PruningThread
from ringlog.agents.monitoring.metrics import cluster_samples
from ringlog.agents.ports import Acknowledge, Ended
from ringlog.agents.roles.acks import AcksThread
from ringlog.agents.roles.epochs import EpochsReader
from ringlog.agents.roles.role import Offered
from ringlog.client.node_reports import LoadsReader
from ringlog.kernel.values import Micros, NodeId
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.topics import ACKS, topic_name
from ringlog.protocol.balancer.load_book import report_times
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.coordinator.coordinator import Forget, PublishedEpoch, UnstoredBytes, coordinate
from ringlog.protocol.coordinator.core import ROLE
from ringlog.runtime.logs import get_logger
from ringlog.runtime.monitoring.metrics import Sample
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
        self._loads: LoadsReader | None = None
        self._heard_at: dict[NodeId, Micros] = {}

    def figures(self) -> Iterator[Sample]:
        """What the state says of the cluster."""
        state = self.replica.state
        with self._looking:
            acks = self._shown.newest(state)
        yield from cluster_samples(state, acks, self.clock.now_us(), self._last_heard())
        yield from super().figures()

    def run_protocol(self) -> None:
        """Run the protocol, forever."""
        epochs = EpochsReader(self.settings, self.look)
        self.register_ack_handlers()
        if self.settings.metrics_port is not None:
            loads = LoadsReader(self.settings.bootstrap_servers, self.settings.cluster, self.look)
            self._heard_at, self._loads = report_times(loads.at_end()), loads
        self.driver.handlers |= {
            Forget: self._forget,
            PublishedEpoch: lambda _: epochs.newest(),
            UnstoredBytes: lambda _: self.replica.recent.since_mark,
        }
        pruning = PruningThread(
            self.settings.bootstrap_servers, self.settings.cluster, lambda: self.replica.state, self._client.submit
        )
        pruning.start()
        try:
            self.driver.run_steps(coordinate())
        finally:
            pruning.stop()
            epochs.close()
            with self._looking:
                if self._loads is not None:
                    self._loads.close()
                self._loads = None

    def _last_heard(self) -> dict[NodeId, Micros]:
        """Read on at each look: the coordinator itself may be waiting for the validator."""
        with self._looking:
            while self._loads is not None and (records := self._loads.new()):
                self._heard_at = report_times(records, self._heard_at)
            return self._heard_at

    def reset_acks(self) -> None:
        """Also forget the acknowledgements of the metrics."""
        super().reset_acks()
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
