"""Publication of a node's acknowledgements: performs ``ringlog.node.protocol.acks`` on Kafka.

Records carry a MAC (``with_mac``) if the node's trust file has a key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ringlog.client.participant.retry import Stopped
from ringlog.files import FULL
from ringlog.kernel.values import Epoch
from ringlog.log.kafka.producer import TOO_LARGE, producer_config, too_large
from ringlog.log.kafka.topics import topic_name
from ringlog.node.protocol.acks import Keep, News, PublishAcknowledgement, TopicEnds
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.logs import get_logger
from ringlog.runtime.monitoring.open_connections import NO_DESCRIPTORS
from ringlog.runtime.trust import current
from ringlog.wire.acks import with_mac
from ringlog.wire.records import NodeAck, encode_node_ack

DELIVERY_S = 20.0
AGAIN_S = 2.0
POLL_S = 0.5
END_S = 5.0

log = get_logger("ringlog.node")


class Acks:
    """Publishes to the acks topic of the cluster, for the one thread that performs the steps.

    Waits of that thread raise Stopped once ``stopping`` is set.

    Args:
        keep: Writes an epoch to disk before it is acknowledged.
        ends: Returns the end offsets of the mutations topic.

    Attributes:
        wakeup: Wakes the thread.
    """

    def __init__(
        self,
        bootstrap: str,
        cluster: str,
        keep: Callable[[str, Epoch, str], None],
        ends: Callable[[], Mapping[int, int] | None],
        stopping: threading.Event,
    ) -> None:
        self.wakeup = threading.Event()
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
        while not self.wakeup.wait(POLL_S):
            self._raise_if_stopped()
        self.wakeup.clear()
        self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    def _kept(self, keep: Callable[[], None]) -> None:
        """Write an acknowledged epoch to disk. Retry while the disk is full or no file descriptor is free."""
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
        """Publish an acknowledgement and return True if the broker confirmed it. Raises NodeFailed.

        A missing topic is not an error, because it may be created again while the node runs.
        """
        value, keys, delivered = encode_node_ack(ack), current().ack_keys, list[KafkaError | None]()
        if keys:
            value = with_mac(value, keys[0])

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            delivered.append(error)

        try:
            self._producer.produce(self._topic, value, key=ack.node.encode(), on_delivery=on_delivery)
        except KafkaException as error:
            # A producer may cache for minutes that a topic is missing, so create a new one.
            self._say(error.args[0], len(value))
            self._producer = self._connected()
            self._stopping.wait(AGAIN_S)
            return False
        while not delivered:
            self._producer.poll(POLL_S)
            self._raise_if_stopped()
        (failed,) = delivered
        if failed is not None and failed.fatal():
            raise NodeFailed(f"acknowledgements can no longer be published: {failed}")
        if failed is not None:
            self._say(failed, len(value))
        return failed is None

    def _say(self, error: KafkaError, size: int) -> None:
        """Log a failed publication.

        After an oversized record, the node continues to serve its epoch, but no barrier passes for it.
        """
        if error.code() in TOO_LARGE:
            refused = too_large(self._topic, None, size)
            log.error("record_too_large", topic=self._topic, bytes=size, why=refused.message, ends=refused.hint)
        else:
            log.warning("acknowledgement waits", topic=self._topic, why=error.str())

    def close(self) -> None:
        """Wait briefly for records in flight."""
        self._producer.flush(END_S)
