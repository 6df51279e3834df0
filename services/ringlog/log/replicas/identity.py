"""The identity of a log, which a reader stores so that it detects another log after a restart.

Name and length do not identify a log. A topic that was deleted and created again has another *topic id*. A log that
lost its end has fewer records than were read. A log that lost its end *and has grown again* may have as many records.
Only the *state ids* of its epochs then differ. A reader must not continue with any of these logs, because its state
comes from another one.

A process stores an epoch together with its state id (``KnownEpoch``). The replica compares them while it folds, when
the state of that epoch is at hand. The bounded history may no longer contain the epoch later.

A cluster is identified by its id, which its initial entry defines. Records are stored per cluster id, so the same name
on another or a wiped Kafka cluster is a new cluster. One case contradicts that: *the same Kafka cluster* (by its id)
had another topic of that name before. Then the topic was deleted. The reader cannot know whether this was intended, so
it halts and names the file to remove.

Source: decision 30.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ringlog.files import replace_durably
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value, asdict, is_uuid
from ringlog.log.errors import LogDamaged, LogForked, LogReplaced, LogTruncated
from ringlog.log.port import LogRecord, MetadataLog
from ringlog.log.reading import record_at

FORKED_HINT = (
    "the log lost entries and contains new ones: restore the log before you start any process; data "
    "derived from the lost entries do not match this log"
)
NO_START_HINT = (
    "entries were deleted, and no process can start without them: restore the topic; see `ringlog snapshot list`"
)
REPLACED_HINT = (
    "if you deleted the log on purpose, remove {file}; after a recovery: ringlog agents accept-recovery; "
    "otherwise restore its records under this name"
)


class Topic(Value):
    """The topic that a reader found: its name and id, the id of its Kafka cluster, and its end offset if known."""

    name: str
    id: str
    kafka: str
    end: int | None


class IdentityRecord(Value):
    """A position in a topic, and the epoch, state id and chain (hex) there.

    ``cluster`` and ``cluster_id`` are those of the state, empty if no entry was read. ``kafka`` is the id of the Kafka
    cluster.
    """

    topic_id: str
    position: int
    epoch: Epoch = 0
    state_id: str = ""
    cluster_id: str = ""
    cluster: str = ""
    kafka: str = ""
    chain: str = ""


class KnownEpoch(Value):
    """An epoch and its state id, according to ``by``.

    ``position`` is a minimum length of the log, 0 if unknown. ``chain`` is in hex, empty if unknown.
    """

    epoch: Epoch
    state_id: str
    by: str
    position: int = 0
    chain: str = ""


class IdentityStore(Protocol):
    """The store of a replica's identity record. Every method may raise OSError."""

    def check_topic(self, topic: Topic) -> None:
        """Check the topic before anything is read. Raises LogReplaced, LogTruncated, LogDamaged."""
        ...

    def known_epoch(self, cluster_id: str) -> KnownEpoch | None:
        """Return the stored epoch of a cluster, once its id is known. Raises LogReplaced, LogForked, LogDamaged."""
        ...

    def save(self, recorded: IdentityRecord) -> None:
        """Store a record, unless a greater position is stored already."""
        ...


class MemoryIdentityStore:
    """An identity record that the caller stores, for example together with a stream position.

    ``recorded`` is the record to store. ``by`` names its location in messages.
    """

    def __init__(self, by: str | Path, recorded: IdentityRecord | None = None) -> None:
        self.by = by
        self.recorded = recorded

    def check_topic(self, topic: Topic) -> None:
        """See ``IdentityStore.check_topic``."""
        if self.recorded is not None:
            _check_topic(self.by, self.recorded, topic)

    def known_epoch(self, cluster_id: str) -> KnownEpoch | None:
        """See ``IdentityStore.known_epoch``."""
        if self.recorded is not None and self.recorded.cluster_id not in ("", cluster_id):
            raise _recreated_error(self.by, self.recorded, cluster_id)
        return _known_epoch(self.by, self.recorded)

    def save(self, recorded: IdentityRecord) -> None:
        """See ``IdentityStore.save``."""
        if self.recorded is None or recorded.position >= self.recorded.position:
            self.recorded = recorded


class FileIdentityStore(MemoryIdentityStore):
    """An identity record of one log in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def check_topic(self, topic: Topic) -> None:
        """See ``IdentityStore.check_topic``."""
        self.recorded = load_record(self._path)
        super().check_topic(topic)

    def save(self, recorded: IdentityRecord) -> None:
        """See ``IdentityStore.save``."""
        save_record(self._path, recorded)


class ClusterIdentityStore:
    """The identity records of one reader, with one file per cluster id in ``folder``.

    They cover all clusters with the name ``cluster`` that the reader has found.
    """

    def __init__(self, folder: Path, cluster: str, reader: str) -> None:
        self._folder = folder
        self._cluster = cluster
        self._reader = reader
        self._topic = Topic("", "", "", None)

    def path(self, cluster_id: str) -> Path:
        """Return the file for a cluster id."""
        return self._folder / f"{self._cluster}.{cluster_id}.{self._reader}.json"

    def known(self) -> Iterator[tuple[Path, IdentityRecord]]:
        """Yield every file of this reader with its record. Raises LogDamaged."""
        head, tail = f"{self._cluster}.", f".{self._reader}.json"
        for path in sorted(self._folder.glob("*.json")):
            middle = path.name.removeprefix(head).removesuffix(tail)
            is_mine = path.name == f"{head}{middle}{tail}" and is_uuid(middle)
            if is_mine and (recorded := load_record(path)) is not None:
                yield path, recorded

    def on_kafka_cluster(self, kafka: str) -> tuple[IdentityRecord, ...]:
        """Return the records of logs on a Kafka cluster. Raises LogDamaged."""
        return tuple(recorded for _, recorded in self.known() if recorded.kafka == kafka)

    def check_topic(self, topic: Topic) -> None:
        """See ``IdentityStore.check_topic``.

        Only records of the same topic, or of a topic with this name on the same Kafka cluster, are compared.
        """
        self._topic = topic
        for path, recorded in self.known():
            if recorded.topic_id == topic.id or recorded.kafka == topic.kafka:
                _check_topic(path, recorded, topic)

    def known_epoch(self, cluster_id: str) -> KnownEpoch | None:
        """See ``IdentityStore.known_epoch``."""
        for path, recorded in self.known():
            if recorded.topic_id == self._topic.id and recorded.cluster_id not in ("", cluster_id):
                raise _recreated_error(path, recorded, cluster_id)
        path = self.path(cluster_id)
        found = load_record(path)
        if found is not None:
            _check_topic(path, found, self._topic)
        return _known_epoch(path, found)

    def save(self, recorded: IdentityRecord) -> None:
        """See ``IdentityStore.save``. Before the cluster id is known, nothing is stored."""
        if recorded.cluster_id:
            save_record(self.path(recorded.cluster_id), recorded)

    def remove_outdated(self, cluster_id: str, topic_id: str) -> tuple[Path, ...]:
        """Remove the records of this cluster in other topics, because a recovery rebuilt its log in ``topic_id``.

        Returns the removed files. Raises LogDamaged, OSError.
        """
        gone = [path for path, one in self.known() if one.cluster_id == cluster_id and one.topic_id != topic_id]
        for path in gone:
            path.unlink(missing_ok=True)
        return tuple(gone)


def check_epochs(seen: tuple[KnownEpoch, ...], state: ClusterState, position: int) -> tuple[KnownEpoch, ...]:
    """Compare ``seen`` with the state of the log at ``position``, and return the part that is not comparable yet.

    Call this for every epoch, and when the position passes records without entries. A replica that begins with a stored
    state compares with the state's history. Epochs that this history no longer contains are skipped.

    Raises LogForked.
    """
    # An epoch that the log never reaches would stay pending. The position ends that: it proves that the log is long
    # enough.
    due = tuple(one for one in seen if one.epoch <= state.epoch or 0 < one.position <= position)
    if not due:
        return seen
    for one in due:
        found = state.state_id if state.epoch == one.epoch else state_id_at(state, one.epoch)
        is_forgotten = one.epoch < state.history.oldest
        if found != one.state_id and not is_forgotten:
            what = f"the log has {found}" if found else f"the log has no such epoch up to offset {position}"
            raise LogForked(
                f"epoch {one.epoch} had state {one.state_id} according to {one.by}, but {what}", FORKED_HINT
            )
        if state.epoch == one.epoch and one.chain not in ("", chain := state.chain.hex()):
            raise LogForked(
                f"epoch {one.epoch} had chain {one.chain} according to {one.by}, but the log has {chain}", FORKED_HINT
            )
    return tuple(one for one in seen if one not in due)


def check_identity(name: str, recorded: IdentityRecord, topic_id: str, end: int) -> None:
    """Check a topic's id and end offset against a record.

    Raises:
        LogReplaced: The topic id is different.
        LogTruncated: The end is below the recorded position.
    """
    if recorded.topic_id != topic_id:
        raise LogReplaced(
            f"{name} has the topic id {topic_id}, but was read with the id {recorded.topic_id}",
            "the topic was deleted and created again: restore it, or remove the data derived from the old one",
        )
    if end < recorded.position:
        raise LogTruncated(
            f"{name} ends at offset {end}, but was read up to offset {recorded.position}",
        )


def check_begin(name: str, begin: int, latest: int, why: str = "no snapshot covers that offset") -> None:
    """Check that a log does not begin after ``latest``. Raises LogTruncated.

    ``latest`` is the start of a reader, or the greatest begin offset that an entry allows. A deletion follows its
    entry. So a reader that has folded all entries present when ``begin`` was read knows whether the deletion is
    allowed.
    """
    if begin > latest:
        raise LogTruncated(f"{name} begins at offset {begin}, and {why}", NO_START_HINT)


def _check_topic(path: str | Path, recorded: IdentityRecord, topic: Topic) -> None:
    """Check that a topic is the recorded one. Raises LogReplaced, LogTruncated."""
    whose = f" of cluster {recorded.cluster_id}" if recorded.cluster_id else ""
    if recorded.topic_id == topic.id:
        if topic.end is not None and topic.end < recorded.position:
            raise LogTruncated(
                (
                    f"{topic.name} ends at offset {topic.end}, but was read up to offset {recorded.position} "
                    f"according to {path}"
                ),
            )
        return
    if recorded.kafka == topic.kafka:
        what = f"was deleted and created again on this Kafka: its id is {topic.id}"
    else:
        what = f"is a copy on another Kafka ({topic.kafka}, before: {recorded.kafka}): its id is {topic.id}"
    raise LogReplaced(
        f"{topic.name} {what}; {path} records the topic id {recorded.topic_id}{whose}", REPLACED_HINT.format(file=path)
    )


def _recreated_error(path: str | Path, recorded: IdentityRecord, cluster_id: str) -> LogForked:
    return LogForked(
        (f"the log belonged to cluster {recorded.cluster_id} according to {path}, but now starts cluster {cluster_id}"),
        REPLACED_HINT.format(file=path),
    )


def _known_epoch(path: str | Path, recorded: IdentityRecord | None) -> KnownEpoch | None:
    if recorded is None or not recorded.state_id:
        return None
    return KnownEpoch(recorded.epoch, recorded.state_id, str(path), recorded.position, recorded.chain)


def load_record(path: Path) -> IdentityRecord | None:
    """Return the record in a file, or None if the file does not exist. Raises LogDamaged if it cannot be parsed."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return record_from_json(data, path)


def record_to_json(recorded: IdentityRecord) -> str:
    """Encode a record as JSON, the format of the file."""
    return json.dumps(asdict(recorded))


def record_from_json(data: str | bytes, by: str | Path) -> IdentityRecord:
    """Decode the JSON of ``record_to_json``. Raises LogDamaged, with ``by`` in the message."""
    try:
        found = {"chain": ""} | json.loads(data)
        numbers = ("position", "epoch")
        texts = ("topic_id", "state_id", "cluster_id", "cluster", "kafka", "chain")
        recorded = IdentityRecord(**{name: found[name] for name in _NAMES})
        if any(type(getattr(recorded, name)) is not str for name in texts):
            raise TypeError("ids and names must be strings")
        if any(type(getattr(recorded, name)) is not int or getattr(recorded, name) < 0 for name in numbers):
            raise TypeError("position and epoch must be integers")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogDamaged(
            f"{by} does not contain a topic record", "check the file, or remove it to record the log again"
        ) from error
    return recorded


_NAMES = IdentityRecord.__struct_fields__


def save_record(path: Path, recorded: IdentityRecord) -> None:
    """Replace the file durably, unless it has a greater position of the same topic.

    A reader replays from the beginning, and several readers may share the file. At the same position, a record without
    a state id is replaced by one with a state id. Raises OSError, LogDamaged.
    """
    known = load_record(path)
    if known is not None and known.topic_id == recorded.topic_id:
        is_complete = bool(known.state_id) or not recorded.state_id
        # A replaying replica records lower positions than before. The greatest one proves that the log was at least
        # that long.
        if known.position > recorded.position or (known.position == recorded.position and is_complete):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    replace_durably(path, f"{record_to_json(recorded)}\n".encode(), draft)


def check_record_present(log: MetadataLog, record: LogRecord, timeout_s: float) -> None:
    """Check that the log still has this record at its offset. Raises LogForked."""
    if record_at(log, record.offset, timeout_s) != record:
        raise LogForked(
            f"{log.name}: the entry at offset {record.offset} differs from the entry that was read there", FORKED_HINT
        )
