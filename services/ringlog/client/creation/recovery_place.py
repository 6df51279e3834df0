"""The place where a lost log is rebuilt: a broker's topics, and a note on this machine that a rebuild is unfinished.

Invariant: the note is on the disk before the first record is written, and goes only when the log reads back as planned.
So a log whose topic it names is a rebuild that was broken off, and may be made anew without being asked for twice.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from ringlog.client.creation.creation import create_cluster_topics, plan_replication
from ringlog.files import default_data_dir, private_folder, replace_durably, sync_folder
from ringlog.kernel.model.outcome import Entry
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import (
    METADATA,
    TOPICS,
    admin_client,
    delete_topic,
    existing_topics,
    topic_name,
    verify_topics,
)
from ringlog.log.opening import delete_entries, open_snapshots
from ringlog.log.port import MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.wire.entries import decode_entry

NOTES: Final = "recovering"
LOOKED_AT_MAX: Final = 100
"""Records in which the id of the cluster is looked for that a log belongs to."""
GONE_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FoundLog:
    """What is there under the log's name. ``records``: how many at most; ``cluster_id``: whose, empty: who knows;
    ``topic_id``: of the topic.
    """

    end: int
    records: int
    cluster_id: str
    topic_id: str


class RecoveryPlace(Protocol):
    """What a rebuild does outside: each call has done it durably when it returns, and may be repeated."""

    name: str
    """Of the cluster."""
    log: MetadataLog

    def found(self) -> FoundLog | None:
        """The log that is there; None if there is none. Raises LogUnavailable."""

    def check(self) -> None:
        """Check that ``note`` and ``make`` can succeed once the log is gone. Raises as they do, and changes nothing."""

    def make_room(self) -> None:
        """Have no log there. Raises LogUnavailable."""

    def make(self) -> None:
        """Have all topics, the log's among them. Raises what making topics raises."""

    def snapshots(self) -> SnapshotTopic:
        """The topic of snapshots; the caller closes it."""

    def delete_before(self, offset: int) -> None:
        """Have the log begin there. Raises LogUnavailable."""

    def unfinished(self) -> str:
        """Id of the topic that the note names; empty: there is none."""

    def note(self, topic_id: str) -> None:
        """Note that the rebuild in that topic is unfinished; empty: there is none any more. Raises OSError."""


class KafkaPlace:
    """A cluster's topics at a broker. ``replication``: see ``found_cluster``; ``notes``: the folder of notes."""

    def __init__(
        self, bootstrap_servers: str, cluster: str, replication: int | None = None, notes: Path | None = None
    ) -> None:
        self.name = cluster
        self._place = bootstrap_servers, cluster
        self._replication = replication
        self._note = (notes or default_data_dir() / NOTES) / cluster
        self.log: MetadataLog = KafkaLog(*self._place)

    def close(self) -> None:
        """Let go of connections."""
        self.log.close()

    def found(self) -> FoundLog | None:
        """See RecoveryPlace."""
        with closing(KafkaLog(*self._place)) as log:
            try:
                topic_id = log.identity()
                begin, end = log.begin_offset(), log.end_offset()
            except TopicMissing:
                return None
            return FoundLog(end, end - begin, whose(log, begin), topic_id)

    def check(self) -> None:
        """See RecoveryPlace. How many copies there are is asked now: the log that says it may be gone afterwards."""
        self.note(self.unfinished())
        admin = admin_client(self._place[0])
        self._replication = plan_replication(admin, *self._place, self._replication).replication
        others = tuple(spec for spec in TOPICS if spec is not METADATA)
        verify_topics(admin, self.name, self._place[0], existing_topics(admin, self.name, others))

    def make_room(self) -> None:
        """See RecoveryPlace."""
        topic = topic_name(self.name, METADATA.suffix)
        delete_topic(admin_client(self._place[0]), topic)
        deadline = time.monotonic() + GONE_S
        while self.found() is not None:
            if time.monotonic() >= deadline:
                raise LogUnavailable(f"topic {topic} was deleted, and is still there", "recover again, with --replace")
            time.sleep(LOOK_AGAIN_S)

    def make(self) -> None:
        """See RecoveryPlace."""
        create_cluster_topics(*self._place, self._replication)
        self.log.close()  # it may know the topic that is gone
        self.log = KafkaLog(*self._place)

    def snapshots(self) -> SnapshotTopic:
        """See RecoveryPlace."""
        return open_snapshots(*self._place)

    def delete_before(self, offset: int) -> None:
        """See RecoveryPlace."""
        delete_entries(*self._place, offset)

    def unfinished(self) -> str:
        """See RecoveryPlace."""
        try:
            return self._note.read_text("utf-8")
        except FileNotFoundError:
            return ""

    def note(self, topic_id: str) -> None:
        """See RecoveryPlace."""
        folder = private_folder(self._note.parent)
        if topic_id:
            replace_durably(self._note, topic_id.encode(), folder / f".{self._note.name}.new")
        else:
            self._note.unlink(missing_ok=True)
            sync_folder(folder)


def whose(log: MetadataLog, begin: int) -> str:
    """The id of the cluster that entries at the log's beginning name; empty: none of the first ones names one."""
    with closing(log.tail(begin)) as tail:
        found = (decode_entry(record.data) for record in islice(read_to_end(log, tail), LOOKED_AT_MAX))
        return next((one.cluster_id for one in found if isinstance(one, Entry)), "")
