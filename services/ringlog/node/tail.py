"""The mutations topic as a node reads it: all partitions, from where its rows end, in order.

A position is the offset below which a partition has been read; the end of a partition counts as read too, so that
offsets which hold no record (markers of transactions) are no gap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ringlog.log.appended import ends_of
from ringlog.log.errors import LogError, LogUnavailable, TopicMissing
from ringlog.log.topics import admin_client, describe, topic_name
from ringlog.node.errors import NodeFailed, RowsForeign
from ringlog.node.protocol.turn import Tailed
from ringlog.node.store import RowsMark, reads_from
from ringlog.runtime.kafka_config import connection
from ringlog.runtime.logs import get_logger

RECORDS_PER_POLL = 2_000
POLL_S = 0.05
LOOK_S = 10.0
HEAR_S = 1.0
ASK_S = 5.0
log = get_logger("ringlog.node")
_LOST = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._AUTO_OFFSET_RESET)


class MutationsTail:
    """One consumer without a group's coordination; ``begin`` and ``ends`` are offsets by partition, at the start.

    ``ids``: the topic's name and id then.
    """

    def __init__(self, bootstrap: str, cluster: str, node: str) -> None:
        self._topic = topic_name(cluster, "mutations")
        self._consumer = Consumer(
            {
                **connection(bootstrap),
                "group.id": f"{cluster}.node.{node}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "log_level": 2,
            }
        )
        self._bootstrap = bootstrap
        self.ids: dict[str, str] = {}
        self.begin: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self._heard: dict[int, int] = {}
        self._heard_at = 0.0
        self._admin: AdminClient | None = None

    def assign(self, kept: RowsMark) -> None:
        """Begin to read where the rows of ``kept`` end. Raises LogUnavailable (it may be called again), NodeFailed if a
        broker knows no such topic, RowsForeign if it is not the one that they are from.
        """
        try:
            self.ids[self._topic] = describe(admin_client(self._bootstrap), [self._topic], LOOK_S)[self._topic].topic_id
            metadata = self._consumer.list_topics(self._topic, timeout=LOOK_S).topics[self._topic]
            if metadata.error is not None:
                raise LogUnavailable(f"topic {self._topic}: {metadata.error.str()}", "is the broker up?")
            for partition in sorted(metadata.partitions):
                found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=LOOK_S)
                self.begin[partition], self.ends[partition] = found
            self._check(kept)
            places = reads_from(self.begin, kept.positions)
            self._consumer.assign([TopicPartition(self._topic, p, o) for p, o in places.items()])
        except TopicMissing as error:
            raise NodeFailed(str(error)) from error
        except KafkaException as error:
            raise LogUnavailable(f"topic {self._topic}: {error.args[0].str()}", "is the broker up?") from error

    def _check(self, kept: RowsMark) -> None:
        """Is this the topic that was read, and does it hold what was read?"""
        if kept.topic_id and kept.topic_id != self.topic_id:
            raise RowsForeign(
                f"the rows are of topic {kept.topic_id}, {self._topic} is {self.topic_id} now: it was made anew; "
                "replace the node by a new one"
            )
        short = {p: end for p, end in self.ends.items() if end < kept.positions.get(p, 0)}
        if short:
            raise RowsForeign(
                f"{self._topic} ends at {short}, the rows have what was at {dict(kept.positions)}: the broker lost "
                "records; replace the node by a new one"
            )

    @property
    def topic_id(self) -> str:
        """The id that the topic had when reading began."""
        return self.ids.get(self._topic, "")

    def take(self) -> list[Tailed]:
        """What has come, within a moment: nothing from a broker that is away. Raises NodeFailed if records are lost."""
        found = []
        for message in self._consumer.consume(RECORDS_PER_POLL, POLL_S):
            error = message.error()
            if error is not None and (error.fatal() or error.code() in _LOST):
                raise NodeFailed(f"the mutations topic is not what it was: {error}")
            partition, offset = message.partition(), message.offset()
            if partition is None or offset is None or offset < 0:
                continue
            if error is None:
                found.append(Tailed(partition, offset, message.value() or b"", message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:
                found.append(Tailed(partition, offset, None))
        self._hear()
        return found

    def ends_now(self) -> dict[int, int] | None:
        """Where the partitions end, asked by a client of its own, from any thread; None without an answer."""
        try:
            self._admin = self._admin or admin_client(self._bootstrap)
            return ends_of(self._admin, self._topic, ASK_S)
        except LogError as error:
            log.warning("nobody says where the mutations end", why=error.message)
            return None

    def _hear(self) -> None:
        """Note now and then where the client has heard that the partitions end; asks nobody.

        In the thread that reads: while one consumes, such a call of another stops both for ever.
        """
        if time.monotonic() < self._heard_at + HEAR_S:
            return
        self._heard_at = time.monotonic()
        heard = {}
        for partition in self.ends:
            with suppress(KafkaException):  # nothing was fetched of it yet
                place = TopicPartition(self._topic, partition)
                heard[partition] = self._consumer.get_watermark_offsets(place, cached=True)[1]
        self._heard = heard

    def behind(self, positions: Mapping[int, int]) -> int | None:
        """How many offsets lie between these positions and the ends that the client had heard of by the last ``take``;
        None before it has. From any thread.
        """
        known = {partition: end for partition, end in self._heard.items() if end >= 0 and partition in positions}
        return sum(max(0, end - positions[partition]) for partition, end in known.items()) if known else None

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()
