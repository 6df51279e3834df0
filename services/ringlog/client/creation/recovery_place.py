"""The place of a recovery: the topics of a broker, and a note on this machine that marks an unfinished rebuild.

Invariant: the note is on disk before the first record is written. It is removed only after the log reads back as
planned. So a log whose topic the note names is an interrupted rebuild, and it may be replaced without ``--replace``.
"""

from __future__ import annotations

import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from ringlog.client.creation.creation import create_cluster_topics, plan_replication
from ringlog.files import default_data_dir, private_folder, replace_durably, sync_folder
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.values import Value
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
"""The number of records that are searched for a cluster id."""
GONE_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.1


class FoundLog(Value):
    """The existing log of that name.

    ``records``: upper bound of their number. ``cluster_id``: empty if unknown.
    """

    end: int
    records: int
    cluster_id: str
    topic_id: str


class RecoveryPlace(Protocol):
    """The side effects of a rebuild. Each call is durable when it returns, and may be repeated."""

    name: str
    """Name of the cluster."""
    log: MetadataLog

    def found(self) -> FoundLog | None:
        """Return the existing log, or None. Raises LogUnavailable."""

    def check(self) -> None:
        """Check that ``note`` and ``make`` can succeed after the log is deleted. Changes nothing. Raises as they do."""

    def make_room(self) -> None:
        """Delete the log if it exists. Raises LogUnavailable."""

    def make(self) -> None:
        """Create all missing topics, including the log's. Raises the errors of topic creation."""

    def snapshots(self) -> SnapshotTopic:
        """Open the snapshot topic; the caller closes it."""

    def delete_before(self, offset: int) -> None:
        """Delete the records of the log below ``offset``. Raises LogUnavailable."""

    def unfinished(self) -> str:
        """Return the topic id in the note, or an empty string."""

    def note(self, topic_id: str) -> None:
        """Mark the rebuild in that topic as unfinished; an empty id removes the mark. Raises OSError."""


class KafkaPlace:
    """The topics of a cluster on a broker. ``replication``: see ``create_cluster``; ``notes``: the folder of notes."""

    def __init__(
        self, bootstrap_servers: str, cluster: str, replication: int | None = None, notes: Path | None = None
    ) -> None:
        self.name = cluster
        self._place = bootstrap_servers, cluster
        self._replication = replication
        self._note = (notes or default_data_dir() / NOTES) / cluster
        self.log: MetadataLog = KafkaLog(*self._place)

    def close(self) -> None:
        """Close the connections."""
        self.log.close()

    def found(self) -> FoundLog | None:
        with closing(KafkaLog(*self._place)) as log:
            try:
                topic_id = log.identity()
                begin, end = log.begin_offset(), log.end_offset()
            except TopicMissing:
                return None
            return FoundLog(end, end - begin, cluster_id_at(log, begin), topic_id)

    def check(self) -> None:
        """Check topics and note. Fix the replication now: the log that determines it may be deleted later."""
        self.note(self.unfinished())
        admin = admin_client(self._place[0])
        self._replication = plan_replication(admin, *self._place, self._replication).replication
        others = tuple(spec for spec in TOPICS if spec is not METADATA)
        verify_topics(admin, self.name, self._place[0], existing_topics(admin, self.name, others))

    def make_room(self) -> None:
        """Delete the log's topic and wait until the broker no longer reports it."""
        topic = topic_name(self.name, METADATA.suffix)
        delete_topic(admin_client(self._place[0]), topic)
        deadline = time.monotonic() + GONE_S
        while self.found() is not None:
            if time.monotonic() >= deadline:
                raise LogUnavailable(
                    f"topic {topic} was deleted, but the broker still lists it", "recover again, with --replace"
                )
            time.sleep(LOOK_AGAIN_S)

    def make(self) -> None:
        """Create the topics and reopen the log."""
        create_cluster_topics(*self._place, self._replication)
        # The old connection may refer to the deleted topic.
        self.log.close()
        self.log = KafkaLog(*self._place)

    def snapshots(self) -> SnapshotTopic:
        return open_snapshots(*self._place)

    def delete_before(self, offset: int) -> None:
        delete_entries(*self._place, offset)

    def unfinished(self) -> str:
        try:
            return self._note.read_text("utf-8")
        except FileNotFoundError:
            return ""

    def note(self, topic_id: str) -> None:
        folder = private_folder(self._note.parent)
        if topic_id:
            replace_durably(self._note, topic_id.encode(), folder / f".{self._note.name}.new")
        else:
            self._note.unlink(missing_ok=True)
            sync_folder(folder)


def cluster_id_at(log: MetadataLog, begin: int) -> str:
    """Return the cluster id that the first entries of the log name, or an empty string if none names one."""
    with closing(log.tail(begin)) as tail:
        found = (decode_entry(record.data) for record in islice(read_to_end(log, tail), LOOKED_AT_MAX))
        return next((one.cluster_id for one in found if isinstance(one, Entry)), "")
