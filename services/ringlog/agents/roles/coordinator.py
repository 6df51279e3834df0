"""The coordinator's thread: performs the effects of ``ringlog.protocol.coordinator.coordinator`` on the topics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from ringlog.agents.maintenance.pruning import PruningThread
from ringlog.agents.maintenance.writer_lag import WriterLagThread
from ringlog.agents.monitoring.metrics import cluster_samples
from ringlog.agents.ports import Acknowledge, Ended
from ringlog.agents.roles.acks import AcksThread
from ringlog.agents.roles.epochs import EpochsReader
from ringlog.agents.roles.role import InboxRecord
from ringlog.client.node_reports import LoadsReader
from ringlog.kernel.values import Micros, NodeId
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.topics import ACKS, topic_name
from ringlog.protocol.balancer.load_book import report_times
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.coordinator.coordinator import DeleteAcks, PublishedEpoch, UnstoredBytes, coordinate
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
        self._metrics_acks = AckBook()
        self._metrics_lock = threading.Lock()
        self._loads: LoadsReader | None = None
        self._reported_at: dict[NodeId, Micros] = {}
        self._writer_lag = WriterLagThread(settings.bootstrap_servers, lambda: self.replica.state)

    def figures(self) -> Iterator[Sample]:
        """Yield the metrics of the cluster's state, and of ignored acknowledgements."""
        state = self.replica.state
        with self._metrics_lock:
            acks = self._metrics_acks.newest(state)
        now, lags = self.clock.now_us(), self._writer_lag.lags
        yield from cluster_samples(state, acks, now, self._report_times(), lags)
        yield from super().figures()

    def run_protocol(self) -> None:
        """Run the protocol, forever."""
        epochs = EpochsReader(self.settings, self.check_active)
        self.register_ack_handlers()
        if self.settings.metrics_port is not None:
            loads = LoadsReader(self.settings.bootstrap_servers, self.settings.cluster, self.check_active)
            self._reported_at, self._loads = report_times(loads.at_end()), loads
            self._writer_lag.start()
        self.driver.handlers |= {
            DeleteAcks: self._delete_acks,
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
            self._writer_lag.stop()
            epochs.close()
            with self._metrics_lock:
                if self._loads is not None:
                    self._loads.close()
                self._loads = None

    def _report_times(self) -> dict[NodeId, Micros]:
        """Return the time of each node's last load report. Reads here, because the main thread may wait for long."""
        with self._metrics_lock:
            while self._loads is not None and (records := self._loads.new()):
                self._reported_at = report_times(records, self._reported_at)
            return self._reported_at

    def reset_acks(self) -> None:
        """Also forget the acknowledgements of the metrics."""
        super().reset_acks()
        with self._metrics_lock:
            self._metrics_acks = AckBook()

    def _read(self, records: Iterable[InboxRecord]) -> Iterator[tuple[int, NodeAck]]:
        """Also add the acknowledgements to the book of the metrics. ``AckBook.newest`` changes its book."""
        for offset, ack in super()._read(records):
            if self.settings.metrics_port is not None:
                with self._metrics_lock:
                    self._metrics_acks.take(offset, ack)
            yield offset, ack

    def _delete_acks(self, effect: DeleteAcks) -> None:
        """Delete the acknowledgements of nodes that have left. A later one is deleted at the next start."""
        try:
            for node in effect.nodes:
                self.producer.send(topic_name(self.settings.cluster, ACKS.suffix), None, key=node.encode())
        except LogUnavailable as error:
            log.warning("acks_not_forgotten", nodes=len(effect.nodes), why=error.message)
