"""A node's reader of the mutations topic: all partitions in order, from the end of the node's rows.

All records below a position have been read. The end of a partition is also an item, so offsets without a record
(transaction markers) leave no gap.

An operator may add partitions to the topic, and producers use them immediately. The node checks for new partitions
every ``COUNT_S`` and reads each from its beginning, so that all nodes have the same rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from ringlog.log.errors import LogError, LogUnavailable, TopicMissing
from ringlog.log.kafka.topic_state import ends_of
from ringlog.log.kafka.topics import admin_client, describe, topic_name
from ringlog.node.protocol.mutation_loop import TailItem
from ringlog.node.rows.store import RowsMark, reads_from
from ringlog.protocol.nodes.errors import NodeFailed, RowsForeign
from ringlog.runtime.kafka.config import READER_GROUP, connection
from ringlog.runtime.logs import get_logger

RECORDS_PER_POLL = 2_000
POLL_S = 0.05
METADATA_TIMEOUT_S = 10.0
ENDS_CHECK_S = 1.0
ASK_S = 5.0
COUNT_S = 5.0
COUNT_TIMEOUT_S = 1.0
log = get_logger("ringlog.node")
_LOST = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._AUTO_OFFSET_RESET)


class MutationsTail:
    """A consumer of all partitions, without group coordination.

    Attributes:
        ids: The name and the id of the topic when reading began.
        begin: Begin offsets by partition when reading began.
        ends: End offsets by partition when reading began.
    """

    def __init__(self, bootstrap: str, cluster: str) -> None:
        self._topic = topic_name(cluster, "mutations")
        self._consumer = Consumer(
            {
                **connection(bootstrap),
                "group.id": READER_GROUP,
                "enable.auto.commit": False,
                # Deleted records must end the node. Resetting the offset would skip them silently.
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        self._bootstrap = bootstrap
        self.ids: dict[str, str] = {}
        self.begin: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self._client_ends: dict[int, int] = {}
        self._client_ends_at = 0.0
        self._counted_at = math.inf  # not before reading begins
        self._admin: AdminClient | None = None

    def assign(self, kept: RowsMark) -> None:
        """Begin to read at the end of the rows of ``kept``.

        Raises:
            LogUnavailable: The broker does not answer. The call may be repeated.
            NodeFailed: The topic does not exist.
            RowsForeign: The rows come from another topic, or the topic has lost records.
        """
        try:
            self.ids[self._topic] = describe(admin_client(self._bootstrap), [self._topic], METADATA_TIMEOUT_S)[
                self._topic
            ].topic_id
            metadata = self._consumer.list_topics(self._topic, timeout=METADATA_TIMEOUT_S).topics[self._topic]
            if metadata.error is not None:
                raise LogUnavailable(f"topic {self._topic}: {metadata.error.str()}", "check that the broker is up")
            for partition in sorted(metadata.partitions):
                found = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, partition), timeout=METADATA_TIMEOUT_S
                )
                self.begin[partition], self.ends[partition] = found
            self._check(kept)
            places = reads_from(self.begin, kept.positions)
            self._consumer.assign([TopicPartition(self._topic, p, o) for p, o in places.items()])
            self._counted_at = time.monotonic()
        except TopicMissing as error:
            raise NodeFailed(str(error)) from error
        except KafkaException as error:
            raise LogUnavailable(
                f"topic {self._topic}: {error.args[0].str()}", "check that the broker is up"
            ) from error

    def _check(self, kept: RowsMark) -> None:
        """Check that this is the topic of the rows and that it still contains all records up to their positions."""
        if kept.topic_id and kept.topic_id != self.topic_id:
            raise RowsForeign(
                f"the rows are of topic {kept.topic_id}, {self._topic} is now {self.topic_id}: it was recreated; "
                "replace the node"
            )
        short = {p: end for p, end in self.ends.items() if end < kept.positions.get(p, 0)}
        if short:
            raise RowsForeign(
                f"{self._topic} ends at {short}, but the rows go up to {dict(kept.positions)}: the broker lost "
                "records; replace the node"
            )

    @property
    def topic_id(self) -> str:
        """The id of the topic when reading began."""
        return self.ids.get(self._topic, "")

    def take(self) -> list[TailItem]:
        """Return new items after a short wait. Raises NodeFailed if records are lost.

        Returns nothing while the broker is unavailable.
        """
        found = self._added()
        for message in self._consumer.consume(RECORDS_PER_POLL, POLL_S):
            error = message.error()
            if error is not None and (error.fatal() or error.code() in _LOST):
                raise NodeFailed(f"the mutations topic has changed: {error}")
            partition, offset = message.partition(), message.offset()
            if partition is None or offset is None or offset < 0:
                continue
            if error is None:
                found.append(TailItem(partition, offset, message.value() or b"", message.timestamp()[1], message.key()))
            elif error.code() == KafkaError._PARTITION_EOF:
                found.append(TailItem(partition, offset, None))
        self._update_ends()
        return found

    def _added(self) -> list[TailItem]:
        """Begin to read partitions that were added since the last check. Return a position for each."""
        if time.monotonic() < self._counted_at + COUNT_S:
            return []
        self._counted_at = time.monotonic()
        with suppress(KafkaException):  # The broker is unavailable: check again next time.
            found = self._consumer.list_topics(self._topic, timeout=COUNT_TIMEOUT_S).topics[self._topic].partitions
            added = sorted(found.keys() - self.ends.keys())
            places = [TopicPartition(self._topic, partition, 0) for partition in added]
            firsts = [self._consumer.get_watermark_offsets(one, timeout=METADATA_TIMEOUT_S)[0] for one in places]
            if any(firsts):
                raise NodeFailed(
                    f"the partitions {added} were added to {self._topic} and begin at {firsts} now: writes are lost; "
                    "replace the node"
                )
            if places:
                self._consumer.incremental_assign(places)
                self.begin |= dict.fromkeys(added, 0)
                self.ends |= dict.fromkeys(added, 0)
                log.warning("partitions_added", topic=self._topic, partitions=added)
                return [TailItem(partition, 0, None) for partition in added]
        return []

    def ends_now(self) -> dict[int, int] | None:
        """Return the end offsets of the partitions, or None without an answer. Thread-safe: uses a separate client."""
        try:
            self._admin = self._admin or admin_client(self._bootstrap)
            return ends_of(self._admin, self._topic, ASK_S)
        except LogError as error:
            log.warning("end of the mutations unknown", why=error.message)
            return None

    def _update_ends(self) -> None:
        """Cache the end offsets that the consumer knows. Sends no request.

        Must run in the reading thread: a call from another thread while ``consume`` runs blocks both permanently.
        """
        if time.monotonic() < self._client_ends_at + ENDS_CHECK_S:
            return
        self._client_ends_at = time.monotonic()
        ends = {}
        for partition in self.ends:
            with suppress(KafkaException):  # No record of the partition was fetched yet.
                place = TopicPartition(self._topic, partition)
                ends[partition] = self._consumer.get_watermark_offsets(place, cached=True)[1]
        self._client_ends = ends

    def behind(self, positions: Mapping[int, int]) -> int | None:
        """Return the number of offsets between ``positions`` and the cached ends, or None without any. Thread-safe."""
        ends = {partition: end for partition, end in self._client_ends.items() if end >= 0 and partition in positions}
        return sum(max(0, end - positions[partition]) for partition, end in ends.items()) if ends else None

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()
