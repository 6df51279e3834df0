"""The coordinator's pruning of past table versions: collects the evidence, then submits the command.

``ringlog.protocol.coordinator.pruning`` decides what may be pruned. A look reads the compacted topic ``load`` and one
record of each partition of the mutations topic. So it happens every ``LOOK_S``, and only if the state has anything to
prune. Nothing depends on it, so a failure is retried at the next look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.node_reports import LoadsReader
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, NodeId, replace
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.kafka.topics import topic_name
from ringlog.protocol.coordinator.pruning import Positions, TopicBeginning, next_pruning, validated_positions
from ringlog.runtime.kafka.config import READER_GROUP, connection
from ringlog.runtime.logs import get_logger

LOOK_S: Final = 600.0
ANSWER_S: Final = 10.0

log = get_logger(__name__)


class PruningThread:
    """A look every ``look_s`` until it is stopped. ``submit``: asks the validator; its result is only logged."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        state: Callable[[], ClusterState],
        submit: Callable[[Command], object],
        look_s: float = LOOK_S,
    ) -> None:
        self._place = bootstrap_servers, cluster
        self._state = state
        self._submit = submit
        self._look_s = look_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pruning", daemon=True)
        self._waits = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End. A look in progress ends with the process, because it leaves nothing behind that needs an end."""
        self._stopping.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            try:
                self.prune()
            except (LogError, SubmissionTimedOut) as error:
                log.warning("pruning_put_off", why=error.message)
            except Exception:
                log.exception("pruning_failed")

    def prune(self) -> None:
        """Submit the pruning that is possible now. Raises LogError, SubmissionTimedOut."""
        state = self._state()
        if not state.table_lives and not state.settled.leeways:
            return
        beginning, judged = evidence(*self._place)
        found = next_pruning(state, beginning, judged)
        waits = found if isinstance(found, str) else ""
        if waits != self._waits:
            self._waits = waits
            if waits:
                log.info("pruning_waits", why=waits)
        if found is not None and not isinstance(found, str):
            log.info("pruned", forget_below=found.forget_below, answer=str(self._submit(found)))


def evidence(bootstrap_servers: str, cluster: str) -> tuple[TopicBeginning, dict[NodeId, Positions]]:
    """Return the beginning of the mutations topic, and the positions that nodes reported. Raises LogError.

    If the topic is empty, its time must come from reports that are older than the answer about the topic. The positions
    must come from reports that are newer. So the reports are read before and after.
    """
    with closing(LoadsReader(bootstrap_servers, cluster)) as loads:
        before = loads.at_end()
        beginning = topic_beginning(bootstrap_servers, cluster)
        if beginning.since is None:
            beginning = replace(beginning, since=max((one.appended for one in before), default=None))
        return beginning, validated_positions(one.load for one in (*before, *loads.at_end()) if one.load is not None)


def topic_beginning(bootstrap_servers: str, cluster: str) -> TopicBeginning:
    """Return where the mutations topic begins, and the earliest append time there. Raises LogUnavailable."""
    topic = topic_name(cluster, "mutations")
    options = {"group.id": READER_GROUP, "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**connection(bootstrap_servers), **options})
    try:
        described = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
        if described.error is not None or not (partitions := described.partitions):
            raise LogUnavailable(
                f"cannot read the partitions of {topic}: {described.error}", "check that the topic exists"
            )
        offsets, times = {}, []
        for partition in sorted(partitions):
            offsets[partition], since = _first(consumer, topic, partition)
            times += [] if since is None else [since]
        return TopicBeginning(offsets, min(times, default=None))
    except KafkaException as error:
        raise LogUnavailable(
            f"cannot read the first offset of {topic}: {error}", "check that the broker is up"
        ) from error
    finally:
        consumer.close()


def _first(consumer: Consumer, topic: str, partition: int) -> tuple[int, int | None]:
    """Return offset and append time (microseconds) of the first record; the end and None for an empty partition.

    Both come from one answer, because the beginning may move between two.
    """
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    for message in consumer.consume(1, ANSWER_S):
        offset, error = message.offset(), message.error()
        if offset is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
            return offset, int(message.timestamp()[1]) * 1_000 if error is None else None
    raise LogUnavailable(f"{topic}/{partition}: the first record was not read in time", "check that the broker is up")
