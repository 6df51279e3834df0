"""Publishes acknowledgements of a node: performs ``ringlog.node.protocol.acks`` on Kafka. They have a code by the
node's key, where its file of trust has one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ringlog.files import FULL
from ringlog.kernel.values import Epoch
from ringlog.log.kafka.producer import TOO_LARGE, producer_config, too_large
from ringlog.log.kafka.topics import topic_name
from ringlog.node.errors import NodeFailed
from ringlog.node.protocol.acks import Keep, News, PublishAcknowledgement, TopicEnds
from ringlog.node.retry import Stopped
from ringlog.runtime.logs import get_logger
from ringlog.runtime.monitoring.open_connections import NO_DESCRIPTORS
from ringlog.runtime.trust import current
from ringlog.wire.acks import coded
from ringlog.wire.records import NodeAck, encode_node_ack

DELIVERY_S = 20.0
AGAIN_S = 2.0
POLL_S = 0.5
END_S = 5.0

log = get_logger("ringlog.node")


class Acks:
    """Publishes to the cluster's acks, for the one thread that performs the steps; ``news`` wakes it, ``keep`` has on
    disk what is about to be acknowledged, ``ends`` says where the mutations end.

    Raises Stopped where that thread waits once ``stopping`` is set.
    """

    def __init__(
        self,
        bootstrap: str,
        cluster: str,
        keep: Callable[[str, Epoch, str], None],
        ends: Callable[[], Mapping[int, int] | None],
        stopping: threading.Event,
    ) -> None:
        self.news = threading.Event()
        self._topic = topic_name(cluster, "acks")
        self._stopping = stopping
        self._bootstrap = bootstrap
        self._producer = self._connected()
        self.handlers: dict[type, Callable[[Any], Any]] = {
            News: lambda _: self._await_news(),
            Keep: lambda effect: self._kept(partial(keep, effect.cluster_id, effect.epoch, effect.state_id)),
            TopicEnds: lambda _: ends(),
            PublishAcknowledgement: lambda effect: self._publish(effect.ack),
        }

    def _connected(self) -> Producer:
        return Producer(producer_config(self._bootstrap, "node-acks", DELIVERY_S))

    def _await_news(self) -> None:
        while not self.news.wait(POLL_S):
            self._raise_if_stopped()
        self.news.clear()
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    def _kept(self, keep: Callable[[], None]) -> None:
        """Write to the disk; while it is full or the process has no free descriptors, wait: nothing is acknowledged."""
        is_reported = False
        while True:
            try:
                return keep()
            except OSError as error:
                if error.errno not in FULL | NO_DESCRIPTORS:
                    raise
                if not is_reported:
                    log.error("acknowledgement waits", why=str(error), ends="free disk space or file descriptors")
                is_reported = True
            self._stopping.wait(AGAIN_S)
            self._raise_if_stopped()

    def _publish(self, ack: NodeAck) -> bool:
        """Whether it is there for certain. A topic that is missing for now is tried again: it may be made again while
        the node works. Raises NodeFailed.
        """
        value, keys, delivered = encode_node_ack(ack), current().ack_keys, list[KafkaError | None]()
        if keys:
            value = coded(value, keys[0])

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            delivered.append(error)

        try:
            self._producer.produce(self._topic, value, key=ack.node.encode(), on_delivery=on_delivery)
        except KafkaException as error:
            # A client that has once learned that a topic is missing may believe it for minutes: begin with a new one.
            self._say(error.args[0], len(value))
            self._producer = self._connected()
            self._stopping.wait(AGAIN_S)
            return False
        while not delivered:
            self._producer.poll(POLL_S)
            self._raise_if_stopped()
        (failed,) = delivered
        if failed is not None and failed.fatal():
            raise NodeFailed(f"acknowledgements cannot be published any more: {failed}")
        if failed is not None:
            self._say(failed, len(value))
        return failed is None

    def _say(self, error: KafkaError, size: int) -> None:
        """Of one that is too large: the node goes on to serve at its epoch, and no gate passes for it."""
        if error.code() in TOO_LARGE:
            refused = too_large(self._topic, None, size)
            log.error("record_too_large", topic=self._topic, bytes=size, why=refused.message, ends=refused.hint)
        else:
            log.warning("acknowledgement waits", topic=self._topic, why=error.str())

    def close(self) -> None:
        """Give what is under way a moment."""
        self._producer.flush(END_S)
