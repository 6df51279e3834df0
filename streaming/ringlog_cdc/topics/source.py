"""Queries for offsets of topics: how far the mutations are processed, and where the CDC log ends.

Append times are set by the broker (``LogAppendTime``) in milliseconds. Elsewhere they are converted to microseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.adapter import STALE_METADATA_ERRORS
from ringlog.runtime.kafka.config import READER_GROUP, connection
from ringlog.runtime.logs import get_logger
from ringlog_cdc.errors import CdcError, StopRequested

REQUEST_TIMEOUT_S = 10.0
PATIENCE_S = 60.0
"""Same as the limit of Spark's own source for the ends of topics."""
LOOK_AGAIN_S = 0.2
"""Pause between two attempts."""

T = TypeVar("T")
log = get_logger(__name__)


class Offsets:
    """Client for offsets. Reads no records. For one thread at a time.

    Queries wait for an unavailable broker or a partition without a leader. Each query raises LogUnavailable after
    ``patience_s``, and StopRequested once ``stopping`` is set.
    """

    def __init__(
        self, bootstrap_servers: str, stopping: threading.Event | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self._bootstrap = bootstrap_servers
        self._stopping = stopping or threading.Event()
        self._patience_s = patience_s
        self._consumer = self._made()

    def _made(self) -> Consumer:
        """Return a new consumer."""
        return Consumer(
            {
                **connection(self._bootstrap),
                "group.id": READER_GROUP,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # offsets then end before open transactions
            }
        )

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _ask(self, topic: str, question: Callable[[Consumer], T]) -> T:
        """Ask the broker until it answers."""
        began = time.monotonic()
        waits = False
        while True:
            try:
                answer = question(self._consumer)
            except KafkaException as error:
                why, code = error.args[0].str(), error.args[0].code()
            else:
                if waits:
                    log.info("broker_answers_again", waited_for=f"offsets of {topic}")
                return answer
            if not waits:
                log.warning("broker_away", waits_for=f"offsets of {topic}", at_most_s=self._patience_s, why=why)
            waits = True
            if self._stopping.wait(LOOK_AGAIN_S):
                raise StopRequested
            if time.monotonic() - began >= self._patience_s:
                raise LogUnavailable(
                    f"cannot read the offsets of {topic}: {why}", "check that the broker is up, then start again"
                )
            # The client makes these errors up, and may repeat them against the broker's word. A new client asks again.
            if code in STALE_METADATA_ERRORS:
                self._consumer.close()
                self._consumer = self._made()

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            CdcError: ``topic_missing``.
        """

        def asked(consumer: Consumer) -> int:
            found = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
            if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(found.error)
            return len(found.partitions)

        count = self._ask(topic, asked)
        if not count:
            raise CdcError("topic_missing", f"topic {topic} does not exist", "run ringlog cluster repair-topics")
        return count

    def ends(self, topic: str) -> dict[int, int]:
        """Return partition to the offset of its next record."""
        return self._found(topic, OFFSET_END)

    def begins(self, topic: str) -> dict[int, int]:
        """Return partition to the offset of its first record."""
        return self._found(topic, OFFSET_BEGINNING)

    def begins_at(self, topic: str, time: int) -> dict[int, int]:
        """Return partition to the first offset appended at ``time`` (microseconds) or later, or else its end."""
        ends = self.ends(topic)
        found = self.later(topic, time // 1000)
        return {partition: end if (offset := found[partition]) is None else offset for partition, end in ends.items()}

    def later(self, topic: str, limit: int) -> dict[int, int | None]:
        """Return partition to the first offset appended at ``limit`` (milliseconds) or later, or else None."""
        # A writer without a promise asks for times before 1970. Brokers reserve negative times for special queries, and
        # reject unknown ones as an unsupported version.
        found = self._found(topic, max(limit, 0))
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def _found(self, topic: str, time: int) -> dict[int, int]:
        """Ask for the offsets of a time, or for the first or next offsets. One request to each broker answers."""
        places = [TopicPartition(topic, partition, time) for partition in range(self.partitions(topic))]

        def asked(consumer: Consumer) -> dict[int, int]:
            found = {}
            for place in consumer.offsets_for_times(places, timeout=REQUEST_TIMEOUT_S):
                if place.error is not None:
                    raise KafkaException(place.error)
                found[place.partition] = place.offset
            return found

        return self._ask(topic, asked)
