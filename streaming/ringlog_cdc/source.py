"""Looking at the ends of topics: how far the mutations are processed, where the CDC log ends.

Append times are those of the broker (``LogAppendTime``) in milliseconds; everywhere else they count as that many whole
milliseconds in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ringlog_cdc.errors import CdcError
from ringlog_cdc.promises import covers

REQUEST_TIMEOUT_S = 10.0


class Offsets:
    """Asks the broker about offsets; reads no records. One thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "ringlog-cdc-offsets",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # a transaction that is open, or was given up, is not there
                "log_level": 2,
            }
        )

    def close(self) -> None:
        """Give up the connection."""
        self._consumer.close()

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; raises CdcError ``topic_missing``."""
        found = self._consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        if found.error is not None or not found.partitions:
            raise CdcError("topic_missing", f"topic {topic} does not exist", "found the cluster first")
        return len(found.partitions)

    def ends(self, topic: str) -> dict[int, int]:
        """Partition to the offset that its next record gets. Raises KafkaException."""
        ends = {}
        for partition in range(self.partitions(topic)):
            place = TopicPartition(topic, partition)
            ends[partition] = int(self._consumer.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S)[1])
        return ends

    def begins(self, topic: str) -> dict[int, int]:
        """Partition to the offset of its first record. Raises KafkaException."""
        begins = {}
        for partition in range(self.partitions(topic)):
            place = TopicPartition(topic, partition)
            begins[partition] = int(self._consumer.get_watermark_offsets(place, timeout=REQUEST_TIMEOUT_S)[0])
        return begins

    def begins_at(self, topic: str, time: int) -> dict[int, int]:
        """Partition to the offset of its first record that was appended at ``time`` (microseconds) or later, its end if
        there is none. Raises KafkaException.
        """
        ends = self.ends(topic)
        places = [TopicPartition(topic, partition, max(time, 0) // 1000) for partition in sorted(ends)]
        begins = {}
        for place in self._consumer.offsets_for_times(places, timeout=REQUEST_TIMEOUT_S):
            if place.error is not None:
                raise KafkaException(place.error)
            begins[place.partition] = place.offset if place.offset >= 0 else ends[place.partition]
        return begins

    def passed(self, topic: str, durable: Mapping[int, int], limit: int, clock_is_past: bool) -> bool:
        """True if ``durable`` (partition to offset) covers every record of ``topic`` appended before ``limit``
        (microseconds).

        A partition that holds a record of ``limit`` or later answers by itself. For another one the caller says
        whether the clock is safely past ``limit``; it must have looked at it before it calls this. Raises
        KafkaException.
        """
        limit_ms = -(-limit // 1000)
        places = [TopicPartition(topic, partition, limit_ms) for partition in range(self.partitions(topic))]
        ends = self.ends(topic)
        later: dict[int, int | None] = {}
        for place in self._consumer.offsets_for_times(places, timeout=REQUEST_TIMEOUT_S):
            if place.error is not None:
                raise KafkaException(place.error)
            later[place.partition] = place.offset if place.offset >= 0 else None
        return covers(durable, later, ends, clock_is_past)
