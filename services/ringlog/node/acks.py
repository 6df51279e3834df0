"""Acknowledgements of a node: durable first, then published, again until the broker has taken the newest one."""

from __future__ import annotations

import time

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ringlog.kernel.history import state_id_at
from ringlog.kernel.settings import setting
from ringlog.log.topics import topic_name
from ringlog.node.data_side import DataSide
from ringlog.node.due import Due
from ringlog.node.errors import NodeFailed
from ringlog.node.holder import Holder
from ringlog.node.identity import NodeFolder
from ringlog.node.tries import news_of
from ringlog.protocol.tablet_steps import tablet_reports
from ringlog.runtime.clock import Clock
from ringlog.runtime.kafka_config import connection
from ringlog.wire.records import NodeAck, encode_node_ack

DELIVERY_MS = 20_000
AGAIN_S = 2.0

log = structlog.get_logger("ringlog.node")


class Acks:
    """Publishes to the cluster's acks, as the incarnation of ``folder``; not for several threads."""

    def __init__(self, bootstrap: str, cluster: str, folder: NodeFolder, clock: Clock) -> None:
        self._topic = topic_name(cluster, "acks")
        self._folder = folder
        self._clock = clock
        self._due = Due(folder.node)
        self._failed = False
        self._bootstrap = bootstrap
        self._not_before = 0.0
        self._producer = self._connected()

    def _connected(self) -> Producer:
        return Producer(
            {
                **connection(self._bootstrap),
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": DELIVERY_MS,
                "log_level": 2,
            }
        )

    def publish(self, holder: Holder, data: DataSide) -> None:
        """Acknowledge the epoch that rows and cells have come to, and the streams received, if that is due.

        A topic that is missing for now is tried again: it may be made again while the node works. Raises NodeFailed.
        """
        self._producer.poll(0)
        if time.monotonic() < self._not_before:
            return
        with holder.lock:
            epoch = min(holder.state.epoch, data.acknowledgeable())
            reports = tuple(holder.reports[name] for name in sorted(holder.reports) if data.received(name))
            reports += tablet_reports(holder.state, holder.node)
            tries = data.tries.told()
            news = news_of(tries, setting(holder.state, "stream_tries_max"))
            words = (tuple(report.operation for report in reports), news)
            now = time.monotonic_ns() // 1_000
            if epoch == 0 or not (self._failed or self._due.is_due(holder.state, epoch, words, now)):
                return
            cluster_id, rows = holder.state.cluster_id, len(holder.store)
            state_id = state_id_at(holder.state, epoch)
        self._folder.keep(cluster_id, epoch, state_id)
        at = self._clock.now_us()
        ack = NodeAck(
            cluster_id, holder.node, self._folder.incarnation, epoch, epoch, reports, rows, at, tries, state_id
        )
        self._failed = False
        self._due.sent(epoch, words, now)
        try:
            self._producer.produce(
                self._topic, encode_node_ack(ack), key=holder.node.encode(), on_delivery=self._delivered
            )
        except KafkaException as error:
            # A client that has once learned that a topic is missing may believe it for minutes: begin with a new one.
            log.warning("acknowledgement waits", topic=self._topic, why=error.args[0].str())
            self._failed, self._not_before = True, time.monotonic() + AGAIN_S
            self._producer = self._connected()
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            return
        if error.fatal():
            raise NodeFailed(f"acknowledgements cannot be published any more: {error}")
        self._failed = True

    def close(self) -> None:
        """Give what is under way a moment."""
        self._producer.flush(5)
