"""Where a replica begins: behind the newest snapshot that it may believe, or with the log's first entry.

``SnapshotTopic`` reads and writes the topic; what is right in it says ``ringlog.log.snapshots``. It is read from its
end: heads come behind their chunks, confirmations behind their heads, so the last few records say what there is, and
only the chunks of the one that is taken are read besides.

``Beginning`` chooses. What a process remembers of the log (decision 30) must still be compared: a state knows the ids
of the epochs in its history, so a snapshot whose history has forgotten a remembered epoch is passed over for an older
one; where there is none, and the log has no first entry any more, nobody can compare, and that is said. Nothing that
goes wrong here keeps a reader from starting, as long as the log has its first entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ringlog.kernel.history import allowed_begin
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.errors import (
    LogDamaged,
    LogError,
    LogUnavailable,
    SnapshotIncomplete,
    SnapshotRefused,
    SnapshotUnconfirmed,
    TopicMissing,
)
from ringlog.log.folding import BEGINNING, Start
from ringlog.log.port import LogRecord, LogTail, MetadataLog
from ringlog.log.reading import POLL_S, read_to_end, record_at
from ringlog.log.replicas.identity import Seen
from ringlog.log.snapshots import CHUNK_BYTES, confirmed, cut, dropped, fits, key_of, restored
from ringlog.runtime.logs import get_logger
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    SnapshotChunk,
    SnapshotConfirmation,
    SnapshotRecord,
    StoredSnapshot,
    decode_snapshot_record,
    encode_snapshot_record,
)

FIRST_LOOK: Final = 16
"""Records that are read at first; sixteen times as many if no snapshot is among them that a reader may begin with."""
ASK_S: Final = 5.0
SILENCE_S: Final = 10.0

log = get_logger(__name__)


class KeyedRecords(Protocol):
    """A compacted topic with one partition."""

    @property
    def name(self) -> str:
        """The topic's name."""
        ...

    def put(self, key: str, data: bytes | None) -> int:
        """Append a record, None: the key is gone; returns its offset when it is acknowledged. Raises LogUnavailable."""
        ...

    def begin_offset(self) -> int:
        """See ``MetadataLog``."""
        ...

    def end_offset(self) -> int:
        """See ``MetadataLog``."""
        ...

    def tail(self, from_offset: int) -> LogTail:
        """See ``MetadataLog``."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class ListedSnapshot:
    """A head of the topic, the roles that confirmed it, and the code and words of why nobody may begin with it.

    ``disputed_by``: roles that have another state of its epoch, and are outvoted.
    """

    head: StoredSnapshot
    confirmed_by: tuple[str, ...]
    code: str = ""
    why: str = ""
    disputed_by: tuple[str, ...] = ()


class SnapshotTopic:
    """The snapshots of a cluster, in chunks of at most ``chunk_bytes``. For use by one thread."""

    def __init__(self, records: KeyedRecords, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._records = records
        self._chunk_bytes = chunk_bytes
        self._gone: set[str] = set()

    def close(self) -> None:
        """Let go of connections."""
        self._records.close()

    # ------------------------------------------------------------------------------------------- reading

    def listed(self) -> tuple[ListedSnapshot, ...]:
        """All, the newest first; chunks are not looked at. Raises LogUnavailable, TopicMissing."""
        return _listed([record for _, record in self._read(self._records.begin_offset())])

    def newest(self) -> Iterator[ListedSnapshot]:
        """The same, read as far back as somebody asks."""
        begin, end = self._records.begin_offset(), self._records.end_offset()
        looked, given = FIRST_LOOK, set[Epoch]()
        while True:
            at = max(begin, end - looked)
            for one in _listed([record for _, record in self._read(at)]):
                if one.head.epoch not in given and (not one.code or at == begin):
                    given.add(one.head.epoch)
                    yield one
            if at == begin:
                return
            looked *= FIRST_LOOK

    def state(self, head: StoredSnapshot) -> ClusterState:
        """The state of a head. Raises SnapshotIncomplete, SnapshotForged, LogUnavailable."""
        if head.first < self._records.begin_offset():
            raise SnapshotIncomplete(f"the snapshot of epoch {head.epoch}: its chunks are not in the topic any more")
        return restored(head, self._chunks(head))

    def _chunks(self, head: StoredSnapshot) -> Iterator[SnapshotChunk]:
        left = set(range(len(head.chunks)))
        for _, record in self._read(head.first):
            if isinstance(record, SnapshotChunk) and record.id == head.id:
                yield record
                left.discard(record.number)
            if not left or record == head:
                return

    def _read(self, begin: int) -> Iterator[tuple[int, SnapshotRecord]]:
        """From there to the end; what cannot be read is nobody's."""
        tail = self._records.tail(begin)
        try:
            for record in read_to_end(self._records, tail, silence_s=SILENCE_S):
                with suppress(WireError):
                    yield record.offset, decode_snapshot_record(record.data)
        finally:
            tail.close()

    # ------------------------------------------------------------------------------------------- writing

    def store(
        self, start: Start, topic_id: str, by: str, at: Micros, snapshot_id: str, begin: int = 0
    ) -> StoredSnapshot:
        """Write a state, then take out what need not be kept any more. Raises LogUnavailable, RecordTooLarge.

        ``begin``: where the metadata log begins now. A process that dies half-way leaves chunks without a head, which
        the next one takes out.
        """
        head, chunks = cut(start, topic_id, by, at, snapshot_id, self._chunk_bytes)
        places = [self._put(chunk) for chunk in chunks]
        head = replace(head, first=places[0])
        self._put(head)
        records = [record for _, record in self._read(self._records.begin_offset())]
        gone = dropped(records, {begin, allowed_begin(start.state)})
        for key in gone:
            if key not in self._gone:  # what was taken out may be there until the broker compacts
                self._records.put(key, None)
        self._gone = set(gone)
        return head

    def await_head(self, epoch: Epoch, goes_on: Callable[[], bool], timeout_s: float) -> StoredSnapshot | None:
        """The head of that epoch, as soon as it is there; None if nobody waits any more. Raises LogUnavailable."""
        deadline = time.monotonic() + timeout_s
        begin, end = self._records.begin_offset(), self._records.end_offset()
        tail = self._records.tail(max(begin, end - FIRST_LOOK * FIRST_LOOK))
        try:
            while goes_on() and time.monotonic() < deadline:
                for record in tail.poll(POLL_S):
                    with suppress(WireError):
                        found = decode_snapshot_record(record.data)
                        if isinstance(found, StoredSnapshot) and found.epoch == epoch:
                            return found
        finally:
            tail.close()
        return None

    def confirm(self, confirmation: SnapshotConfirmation) -> None:
        """Say what a second reader has. Raises LogUnavailable."""
        self._put(confirmation)

    def _put(self, record: SnapshotRecord) -> int:
        return self._records.put(key_of(record), encode_snapshot_record(record))


def _listed(records: list[SnapshotRecord]) -> tuple[ListedSnapshot, ...]:
    heads = {record.epoch: record for record in records if isinstance(record, StoredSnapshot)}
    said = [record for record in records if isinstance(record, SnapshotConfirmation)]
    found = []
    for epoch in sorted(heads, reverse=True):
        head = heads[epoch]
        by = tuple(sorted({one.by for one in said if one.epoch == epoch and one.digest == head.digest} - {head.by}))
        try:
            found.append(ListedSnapshot(head, by, disputed_by=confirmed(head, said)))
        except SnapshotRefused as refused:
            found.append(ListedSnapshot(head, by, refused.code, refused.message))
    return tuple(found)


class Beginning:
    """Finds where a replica begins. ``epoch_max``: it must begin at that epoch or before; None: anywhere.

    ``warns``: says in the process's log what it passes over. ``oldest``: it begins as early as it can.
    """

    def __init__(
        self,
        open_topic: Callable[[], SnapshotTopic],
        epoch_max: Epoch | None = None,
        *,
        warns: bool = True,
        oldest: bool = False,
    ) -> None:
        self._open = open_topic
        self._oldest = oldest
        self._warn = log.warning if warns else lambda *_, **__: None
        self.epoch_max = epoch_max

    def start(self, metadata: MetadataLog, identity: str, remembered: Callable[[str], tuple[Seen, ...]]) -> Start:
        """Of that log, whose topic has the id ``identity``. ``remembered``: what is to be compared of a cluster.

        Never raises for what the topic holds, or that it is not there: then it is the log's beginning. Raises
        LogUnavailable if that is not there any more.
        """
        if self.epoch_max is not None and self.epoch_max < 1:
            return BEGINNING
        if self._oldest and metadata.begin_offset() == 0:
            return BEGINNING
        forgetful: Start | None = None
        try:
            snapshots = self._open()
            try:
                for one in reversed(snapshots.listed()) if self._oldest else snapshots.newest():
                    found = self._tried(snapshots, one, metadata, identity)
                    if found is None:
                        continue
                    if not self._has_forgotten(found.state, remembered):
                        return found
                    forgetful = forgetful or found
            finally:
                snapshots.close()
        except TopicMissing:
            pass  # the topic was lost; the log may still have its beginning
        except LogError as error:
            if metadata.begin_offset() > 0:
                raise LogUnavailable(f"no snapshot of {metadata.name} could be read: {error}") from error
            self._warn("snapshots_unread", log=metadata.name, why=str(error))
        if forgetful is not None and metadata.begin_offset() > 0:
            self._warn("memory_not_compared", log=metadata.name, epoch=forgetful.state.epoch)
            return forgetful
        return BEGINNING

    def _has_forgotten(self, state: ClusterState, remembered: Callable[[str], tuple[Seen, ...]]) -> bool:
        """True if the state cannot be compared with what is remembered, or that contradicts it."""
        try:
            return any(seen.epoch < state.history.oldest for seen in remembered(state.cluster_id))
        except LogDamaged as damaged:
            self._warn("snapshot_passed_over", epoch=state.epoch, code=damaged.code, why=damaged.message)
            return True

    def _tried(
        self,
        snapshots: SnapshotTopic,
        one: ListedSnapshot,
        metadata: MetadataLog,
        identity: str,
    ) -> Start | None:
        head = one.head
        if self.epoch_max is not None and head.epoch > self.epoch_max:
            return None
        if one.code == SnapshotUnconfirmed.code:
            return None
        if one.code:
            self._warn("snapshot_passed_over", epoch=head.epoch, code=one.code, why=one.why)
            return None
        if one.disputed_by:
            self._warn("snapshot_outvoted", epoch=head.epoch, roles=list(one.disputed_by), agreed=one.confirmed_by)
        try:
            fits(head, identity, _record_before(metadata, head.position))
            return Start(snapshots.state(head), head.position)
        except (SnapshotRefused, LogDamaged) as refused:
            self._warn("snapshot_passed_over", epoch=head.epoch, code=refused.code, why=refused.message)
            return None


def _record_before(metadata: MetadataLog, position: int) -> LogRecord | None:
    if not metadata.begin_offset() < position <= metadata.end_offset():
        return None
    return record_at(metadata, position - 1, ASK_S)
