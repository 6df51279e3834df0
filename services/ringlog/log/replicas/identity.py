"""Which log this is: what a reader remembers of a log over its restarts, so that another one is noticed.

Length and name say little. A topic that was deleted and made again has another *topic id*. A log that lost its end has
fewer records than were read. A log that lost its end *and has grown again* has as many, and is another history: only
the *state id* of the epoch that was seen tells. None of them is the log that the reader's state came from, and no
reader may go on with it.

A process that remembers an epoch remembers the state id with it (``Seen``), and has the replica compare while it folds
from the beginning: the state of that epoch is then at hand, however far the bounded history has moved on.

A cluster is its id, which its founding entry gives. What is remembered is kept per cluster id, so the same name on
another Kafka, or on a Kafka that was wiped, is just another cluster. One thing speaks against a new cluster under a
name that is known: *the same Kafka* (by the id that it was formatted with) once had another topic of that name. Then
somebody deleted it, and this reader does not guess whether that was meant: it halts, and says which file to remove.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from ringlog.files import replace_durably
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, is_uuid
from ringlog.log.errors import LogDamaged, LogForked, LogReplaced, LogTruncated
from ringlog.log.port import LogRecord, MetadataLog
from ringlog.log.reading import record_at

GROWN = (
    "the log lost entries that were read, and has grown again: restore it before starting anything; what was derived "
    "from the lost entries does not fit this log"
)
NO_START = "entries were deleted, and nobody can start without them: restore the topic; see `ringlog snapshot list`"
MEANT = (
    "if it is meant that this log is gone, remove {file}, or after a recovery: ringlog agents accept-recovery; "
    "otherwise restore its records under this name"
)


@dataclass(frozen=True, slots=True)
class Topic:
    """The log that was met: name and id of its topic, the id of the Kafka that has it, and its end if that is known."""

    name: str
    id: str
    kafka: str
    end: int | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The topic's id, a position that was reached in it, the state there, and whose it is.

    ``cluster``, ``cluster_id``: of the state, empty if no entry was read; ``kafka``: id of the Kafka cluster.
    """

    topic_id: str
    position: int
    epoch: Epoch = 0
    state_id: str = ""
    cluster_id: str = ""
    cluster: str = ""
    kafka: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """An epoch and the state id that it had; ``by``: who says so. ``position``: the log is that long at least; 0: who
    knows.
    """

    epoch: Epoch
    state_id: str
    by: str
    position: int = 0


class Memory(Protocol):
    """What a replica asks at its start, and tells as it goes. Every call may raise OSError."""

    def meet(self, topic: Topic) -> None:
        """Before anything is read: raises LogReplaced, LogTruncated, LogDamaged if this cannot be the log."""
        ...

    def seen_of(self, cluster_id: str) -> Seen | None:
        """The cluster is known now: what was seen of it. Raises LogReplaced, LogForked, LogDamaged."""
        ...

    def keep(self, recorded: Recorded) -> None:
        """Remember this, unless more is known already."""
        ...


class CarriedRecord:
    """One log's, for a caller who keeps it elsewhere, such as beside a place in a stream: ``recorded`` is what it
    gives, and what there is to keep. ``by``: where that is, for people.
    """

    def __init__(self, by: str | Path, recorded: Recorded | None = None) -> None:
        self.by = by
        self.recorded = recorded

    def meet(self, topic: Topic) -> None:
        """See ``Memory``."""
        if self.recorded is not None:
            _check_topic(self.by, self.recorded, topic)

    def seen_of(self, cluster_id: str) -> Seen | None:
        """See ``Memory``."""
        if self.recorded is not None and self.recorded.cluster_id not in ("", cluster_id):
            raise _founded_anew(self.by, self.recorded, cluster_id)
        return _seen(self.by, self.recorded)

    def keep(self, recorded: Recorded) -> None:
        """See ``Memory``."""
        if self.recorded is None or recorded.position >= self.recorded.position:
            self.recorded = recorded


class RecordFile(CarriedRecord):
    """One file for one log, wherever the caller wants it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def meet(self, topic: Topic) -> None:
        """See ``Memory``."""
        self.recorded = load_record(self._path)
        super().meet(topic)

    def keep(self, recorded: Recorded) -> None:
        """See ``Memory``."""
        save_record(self._path, recorded)


class ClusterRecords:
    """One file per cluster id in ``folder``, for one reader: all clusters of the name ``cluster`` that it has met."""

    def __init__(self, folder: Path, cluster: str, reader: str) -> None:
        self._folder = folder
        self._cluster = cluster
        self._reader = reader
        self._topic = Topic("", "", "", None)

    def path(self, cluster_id: str) -> Path:
        """Where what was seen of a cluster is kept."""
        return self._folder / f"{self._cluster}.{cluster_id}.{self._reader}.json"

    def known(self) -> Iterator[tuple[Path, Recorded]]:
        """Every file and what it holds. Raises LogDamaged."""
        head, tail = f"{self._cluster}.", f".{self._reader}.json"
        for path in sorted(self._folder.glob("*.json")):
            middle = path.name.removeprefix(head).removesuffix(tail)
            is_mine = path.name == f"{head}{middle}{tail}" and is_uuid(middle)
            if is_mine and (recorded := load_record(path)) is not None:
                yield path, recorded

    def on(self, kafka: str) -> tuple[Recorded, ...]:
        """What may have been read on that Kafka. Raises LogDamaged."""
        return tuple(recorded for _, recorded in self.known() if recorded.kafka == kafka)

    def meet(self, topic: Topic) -> None:
        """See ``Memory``."""
        self._topic = topic
        for path, recorded in self.known():
            if recorded.topic_id == topic.id or recorded.kafka == topic.kafka:
                _check_topic(path, recorded, topic)

    def seen_of(self, cluster_id: str) -> Seen | None:
        """See ``Memory``."""
        for path, recorded in self.known():
            if recorded.topic_id == self._topic.id and recorded.cluster_id not in ("", cluster_id):
                raise _founded_anew(path, recorded, cluster_id)
        path = self.path(cluster_id)
        found = load_record(path)
        if found is not None:
            _check_topic(path, found, self._topic)
        return _seen(path, found)

    def keep(self, recorded: Recorded) -> None:
        """See ``Memory``. Before the cluster is known there is nothing to keep."""
        if recorded.cluster_id:
            save_record(self.path(recorded.cluster_id), recorded)

    def accept(self, cluster_id: str, topic_id: str) -> tuple[Path, ...]:
        """Forget what was read of this cluster in other topics, since its log was rebuilt in that one.

        Returns the files that were removed. Raises LogDamaged, OSError.
        """
        gone = [path for path, one in self.known() if one.cluster_id == cluster_id and one.topic_id != topic_id]
        for path in gone:
            path.unlink(missing_ok=True)
        return tuple(gone)


def compared(seen: tuple[Seen, ...], state: ClusterState, position: int) -> tuple[Seen, ...]:
    """What is still to be compared of ``seen`` when the log up to ``position`` has been folded to ``state``.

    To be called for every epoch, and when the position passes what holds no entry. Who begins with a stored state has
    its history to compare; what that has forgotten nobody can compare any more. Raises LogForked.
    """
    due = tuple(one for one in seen if one.epoch <= state.epoch or 0 < one.position <= position)
    if not due:
        return seen
    for one in due:
        found = state.state_id if state.epoch == one.epoch else state_id_at(state, one.epoch)
        is_forgotten = one.epoch < state.history.oldest
        if found != one.state_id and not is_forgotten:
            what = f"is {found} here" if found else f"is not in the log up to offset {position}"
            raise LogForked(f"epoch {one.epoch} was {one.state_id}, says {one.by}, and {what}", GROWN)
    return tuple(one for one in seen if one not in due)


def check_identity(name: str, recorded: Recorded, topic_id: str, end: int) -> None:
    """Raises LogReplaced for another id, LogTruncated for an end below the recorded position."""
    if recorded.topic_id != topic_id:
        raise LogReplaced(
            f"{name} has the topic id {topic_id}, read was {recorded.topic_id}",
            "the topic was deleted and made again: restore it, or remove what was derived from the old one",
        )
    if end < recorded.position:
        raise LogTruncated(
            f"{name} ends at offset {end}, read were {recorded.position}",
        )


def check_begin(name: str, begin: int, latest: int, why: str = "there is no snapshot behind that") -> None:
    """Raises LogTruncated for a beginning above ``latest``: where a reader begins, or what the log allows.

    A deletion follows its entry, so who has folded all that there was after ``begin`` was read knows what is allowed.
    """
    if begin > latest:
        raise LogTruncated(f"{name} begins at offset {begin}, and {why}", NO_START)


def _check_topic(path: str | Path, recorded: Recorded, topic: Topic) -> None:
    """The log that a file remembers, or nothing that it could be. Raises LogReplaced, LogTruncated."""
    whose = f" of cluster {recorded.cluster_id}" if recorded.cluster_id else ""
    if recorded.topic_id == topic.id:
        if topic.end is not None and topic.end < recorded.position:
            raise LogTruncated(
                f"{topic.name} ends at offset {topic.end}, read were {recorded.position}, says {path}",
            )
        return
    if recorded.kafka == topic.kafka:
        what = f"was deleted and made again on this Kafka: its id is {topic.id}"
    else:
        what = f"is a copy on another Kafka ({topic.kafka}, it was {recorded.kafka}): its id is {topic.id}"
    raise LogReplaced(
        f"{topic.name} {what}; {path} remembers the topic {recorded.topic_id}{whose}", MEANT.format(file=path)
    )


def _founded_anew(path: str | Path, recorded: Recorded, cluster_id: str) -> LogForked:
    return LogForked(
        f"the log was that of cluster {recorded.cluster_id}, says {path}, and now founds cluster {cluster_id}",
        MEANT.format(file=path),
    )


def _seen(path: str | Path, recorded: Recorded | None) -> Seen | None:
    if recorded is None or not recorded.state_id:
        return None
    return Seen(recorded.epoch, recorded.state_id, str(path), recorded.position)


def load_record(path: Path) -> Recorded | None:
    """What was recorded; None if nothing was. Raises LogDamaged if the file cannot be understood."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return record_of(data, path)


def record_to_json(recorded: Recorded) -> str:
    """As a file has it."""
    return json.dumps(asdict(recorded))


def record_of(data: str | bytes, by: str | Path) -> Recorded:
    """What ``record_to_json`` made. Raises LogDamaged, which names ``by``."""
    try:
        found = json.loads(data)
        numbers, texts = ("position", "epoch"), ("topic_id", "state_id", "cluster_id", "cluster", "kafka")
        recorded = Recorded(**{name: found[name] for name in _NAMES})
        if any(type(getattr(recorded, name)) is not str for name in texts):
            raise TypeError("ids and names are text")
        if any(type(getattr(recorded, name)) is not int or getattr(recorded, name) < 0 for name in numbers):
            raise TypeError("a position and an epoch are whole numbers")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogDamaged(f"{by} has no record of a topic", "look at it, then remove it to record anew") from error
    return recorded


_NAMES = tuple(field.name for field in fields(Recorded))


def save_record(path: Path, recorded: Recorded) -> None:
    """Replace the file durably, unless it knows a greater position of the same topic: that one is never forgotten.

    A reader replays from the beginning, and several may share the file. One that knows a position and not yet the
    state there is made complete. Raises OSError, LogDamaged.
    """
    known = load_record(path)
    if known is not None and known.topic_id == recorded.topic_id:
        is_complete = bool(known.state_id) or not recorded.state_id
        if known.position > recorded.position or (known.position == recorded.position and is_complete):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    replace_durably(path, f"{record_to_json(recorded)}\n".encode(), draft)


def check_still_there(log: MetadataLog, record: LogRecord, timeout_s: float) -> None:
    """Raise LogForked if the log has another record at the offset of one that was read."""
    if record_at(log, record.offset, timeout_s) != record:
        raise LogForked(f"{log.name} has another entry at offset {record.offset} than was read there", GROWN)
