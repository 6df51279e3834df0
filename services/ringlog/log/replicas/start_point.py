"""The start point of a replica: the newest acceptable snapshot, or the log's first entry.

``SnapshotTopic`` reads and writes the snapshot topic; ``ringlog.log.snapshots`` defines which snapshots are valid. The
topic is read from its end. Heads follow their chunks, and confirmations follow their heads, so the last few records
list the newest snapshots. Beyond them, only the chunks of the chosen snapshot are read.

``StartPointFinder`` chooses the start. A process must still be able to compare the log with the epochs that it
remembers (decision 30). A state contains the ids of the epochs in its history. A snapshot whose history no longer
contains a remembered epoch is skipped in favor of an older one. The comparison is impossible if every snapshot lacks
the epoch and the log's first entry is deleted. The replica then starts without it and logs a warning.

Invariant: while the log has its first entry, no defect of the snapshot topic keeps a replica from starting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot
from ringlog.kernel.history import allowed_begin
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value, replace
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
from ringlog.log.port import LogTail, MetadataLog
from ringlog.log.reading import POLL_S, read_to_end
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.log.snapshots import (
    CHUNK_BYTES,
    check_confirmed,
    check_log_digest,
    check_log_position,
    decode_snapshot,
    encode_snapshot,
    key_of,
    obsolete_keys,
)
from ringlog.runtime.logs import get_logger
from ringlog.wire.entries import decode_entry
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
"""Records that are read first. Without an acceptable snapshot among them, the next attempt reads sixteen times as many.
"""
CONFIRMED_WITHIN: Final = 2_000
"""The most records after a snapshot among which its confirmation is looked up. It follows within seconds."""
ASK_S: Final = 5.0
SILENCE_S: Final = 10.0

log = get_logger(__name__)


class KeyedRecords(Protocol):
    """A compacted topic with one partition."""

    @property
    def name(self) -> str: ...

    def put(self, key: str, data: bytes | None) -> int:
        """Append a record and return its acknowledged offset. None deletes the key. Raises LogUnavailable."""
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

    def close(self) -> None: ...


class ListedSnapshot(Value):
    """A snapshot head, the roles that confirmed it, and the reason why no reader may begin with it.

    ``code`` and ``why`` are empty for an acceptable snapshot. ``disputed_by`` lists outvoted roles with another state
    of the epoch.
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
        self._records.close()

    # ------------------------------------------------------------------------------------------- reading

    def listed(self) -> tuple[ListedSnapshot, ...]:
        """Return all snapshots, newest first, without a check of their chunks. Raises LogUnavailable, TopicMissing."""
        return _listed([record for _, record in self._read(self._records.begin_offset())])

    def newest(self) -> Iterator[ListedSnapshot]:
        """Yield the same snapshots as ``listed``, but read the topic only as far back as the caller iterates."""
        begin, end = self._records.begin_offset(), self._records.end_offset()
        looked, given = FIRST_LOOK, set[Epoch]()
        while True:
            at = max(begin, end - looked)
            for one in _listed([record for _, record in self._read(at)]):
                # Report a rejected snapshot only when the whole topic was read: a record further back may confirm it.
                if one.head.epoch not in given and (not one.code or at == begin):
                    given.add(one.head.epoch)
                    yield one
            if at == begin:
                return
            looked *= FIRST_LOOK

    def state(self, head: StoredSnapshot) -> ClusterState:
        """Return the state of a snapshot head.

        Raises SnapshotIncomplete, SnapshotForged, SnapshotUnknown, LogUnavailable.
        """
        if head.first < self._records.begin_offset():
            raise SnapshotIncomplete(f"the snapshot of epoch {head.epoch}: the topic no longer contains its chunks")
        return decode_snapshot(head, self._chunks(head))

    def _chunks(self, head: StoredSnapshot) -> Iterator[SnapshotChunk]:
        left = set(range(len(head.chunks)))
        for _, record in self._read(head.first):
            if isinstance(record, SnapshotChunk) and record.id == head.id:
                yield record
                left.discard(record.number)
            if not left or record == head:
                return

    def _read(self, begin: int) -> Iterator[tuple[int, SnapshotRecord]]:
        """Read from an offset to the end. Unreadable records are skipped, since no reader can use them."""
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
        """Store a snapshot, then delete the keys that the topic no longer needs.

        The head is written last. A process that fails before leaves chunks without a head, which the next call deletes.

        Args:
            begin: Present begin offset of the metadata log.

        Raises LogUnavailable, RecordTooLarge.
        """
        head, chunks = encode_snapshot(start, topic_id, by, at, snapshot_id, self._chunk_bytes)
        places = [self._put(chunk) for chunk in chunks]
        head = replace(head, first=places[0])
        self._put(head)
        records = [record for _, record in self._read(self._records.begin_offset())]
        gone = obsolete_keys(records, {begin, allowed_begin(start.state)})
        for key in gone:
            if key not in self._gone:  # deleted records are readable until compaction
                self._records.put(key, None)
        self._gone = set(gone)
        return head

    def await_head(self, epoch: Epoch, goes_on: Callable[[], bool], timeout_s: float) -> StoredSnapshot | None:
        """Wait for the snapshot head of an epoch. Return None if ``goes_on`` is false or at the timeout.

        Raises LogUnavailable.
        """
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
        """Store the digest of a second reader. Raises LogUnavailable."""
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
            found.append(ListedSnapshot(head, by, disputed_by=check_confirmed(head, said)))
        except SnapshotRefused as refused:
            found.append(ListedSnapshot(head, by, refused.code, refused.message))
    return tuple(found)


class StartPointFinder:
    """The choice of a replica's start point.

    Args:
        epoch_max: Begin at this epoch or before. None: no limit.
        warns: Log a warning for each skipped snapshot.
        oldest: Begin as early as possible.
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

    def start(
        self, metadata: MetadataLog, identity: str, known_epochs: Callable[[str], tuple[KnownEpoch, ...]]
    ) -> Start:
        """Return the start for the log whose topic has the id ``identity``.

        A missing or defective snapshot topic never raises: the start is then the log's beginning.

        Args:
            known_epochs: Returns the epochs of a cluster that the replica must compare with the log.

        Raises:
            LogUnavailable: The snapshot topic could not be read, and the log's first entry is deleted.
        """
        if self.epoch_max is not None and self.epoch_max < 1:
            return BEGINNING
        if self._oldest and metadata.begin_offset() == 0:
            return BEGINNING
        uncompared: Start | None = None
        try:
            snapshots = self._open()
            try:
                for one in reversed(snapshots.listed()) if self._oldest else snapshots.newest():
                    found = self._start_at(snapshots, one, metadata, identity)
                    if found is None:
                        continue
                    # Keep the newest snapshot that cannot be compared, in case that the log has lost its beginning.
                    if not self._lacks_epochs(found.state, known_epochs):
                        return found
                    uncompared = uncompared or found
            finally:
                snapshots.close()
        except TopicMissing:
            pass  # the topic is lost, but the log may have its first entry
        except LogError as error:
            if metadata.begin_offset() > 0:
                raise LogUnavailable(f"cannot read any snapshot of {metadata.name}: {error}") from error
            self._warn("snapshots_unread", log=metadata.name, why=str(error))
        if uncompared is not None and metadata.begin_offset() > 0:
            self._warn("memory_not_compared", log=metadata.name, epoch=uncompared.state.epoch)
            return uncompared
        return BEGINNING

    def _lacks_epochs(self, state: ClusterState, known_epochs: Callable[[str], tuple[KnownEpoch, ...]]) -> bool:
        """Return True if the state cannot be compared with the remembered epochs, or contradicts them."""
        try:
            return any(seen.epoch < state.history.oldest for seen in known_epochs(state.cluster_id))
        except LogDamaged as damaged:
            self._warn("snapshot_passed_over", epoch=state.epoch, code=damaged.code, why=damaged.message)
            return True

    def _start_at(
        self,
        snapshots: SnapshotTopic,
        one: ListedSnapshot,
        metadata: MetadataLog,
        identity: str,
    ) -> Start | None:
        """Return the start at a snapshot, or None if the snapshot is not acceptable."""
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
            _check_log(metadata, head, identity)
            return Start(snapshots.state(head), head.position)
        except (SnapshotRefused, LogDamaged) as refused:
            self._warn("snapshot_passed_over", epoch=head.epoch, code=refused.code, why=refused.message)
            return None


def _check_log(metadata: MetadataLog, head: StoredSnapshot, identity: str) -> None:
    """Check that the log has the entry of a snapshot, and confirms no other state after it.

    A process that writes the snapshot topic may invent a state, and the confirmation of another role. It cannot write
    the log. Agents confirm each snapshot there, too, within seconds (``ConfirmSnapshot``).

    Raises SnapshotRefused, LogDamaged, LogUnavailable.
    """
    if not metadata.begin_offset() < head.position <= metadata.end_offset():
        check_log_position(head, identity, None)
    tail = metadata.tail(head.position - 1)
    try:
        records = read_to_end(metadata, tail, silence_s=ASK_S)
        before = next(records, None)
        check_log_position(head, identity, before if before and before.offset == head.position - 1 else None)
        for record in islice(records, CONFIRMED_WITHIN):
            entry = decode_entry(record.data)
            command = entry.command if isinstance(entry, Entry) else None
            if isinstance(command, ConfirmSnapshot) and check_log_digest(head, command):
                return
    finally:
        tail.close()
