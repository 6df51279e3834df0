"""A member's copy of the metadata log: one append-only file in the node's folder.

The file consists of frames (``ringlog.node.registers.frames``) with these payloads::

    T  the id of the log's topic
    S  head, then chunks, of the initial snapshot; absent if the copy begins with the first record of the log
    R  offset (8 bytes)  time (8)  a log record, unchanged; the first one created the state of the snapshot

Invariants:

- Synced records are kept. A torn end is cut off; damage before it is reported as ``copy_damaged``.
- Records are contiguous in the log. They are folded when the file is opened and when they are appended.
- The log offset and file position of each applied entry are in memory (16 bytes for each epoch). Peers receive only
  entries that are synced.
- One process writes the file: the process that holds the lock of the node's folder.

The copy does not grow without bound. When the log confirms a snapshot and its digest matches the local state, the file
is rewritten to begin with that snapshot. The new file is complete and synced before it replaces the old one.

Source: CEP-21, members of the metadata service; decision 81.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final

from ringlog.kernel.commands.cluster.snapshots import is_mark
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import confirmed_snapshots
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.values import Epoch
from ringlog.log.archive.copies import LogCopy
from ringlog.log.errors import CopyDamaged, LogForked, ReplicaHalted, SnapshotRefused
from ringlog.log.folding import BEGINNING, Start, follow
from ringlog.log.port import LogRecord
from ringlog.log.replicas.identity import FORKED_HINT, KnownEpoch
from ringlog.log.replicas.recent import first_page
from ringlog.log.snapshots import check_log_position, decode_snapshot, encode_snapshot
from ringlog.node.registers.frames import HEAD_BYTES, JournalDamaged, Sealer, scan, sealer_of, write_frames, write_whole
from ringlog.runtime.logs import get_logger
from ringlog.wire.entries import decode_entry
from ringlog.wire.errors import WireError
from ringlog.wire.records import SnapshotChunk, StoredSnapshot, decode_snapshot_record, encode_snapshot_record

COPY: Final = "log.copy"
TOPIC, SNAPSHOT, RECORD = b"T", b"S", b"R"
_PLACE: Final = Struct(">qq")
NO_WRITER_CLOCK: Final = 0
"""The clock of the writer in a snapshot head. A file does not record it."""

log = get_logger("ringlog.node")


class CopyState:
    """The records of a copy and their fold, without the file.

    Attributes:
        base: The state before the first entry, and its position in the log.
        at: The state after the last record, and the position that follows it.
        last: The last record, or None before the first one.
        marks: States with a requested snapshot; each may become the base once the snapshot is confirmed.
        applied: Offsets of the entries that created the epochs after ``base``.
    """

    def __init__(self, topic_id: str, base: Start) -> None:
        self.topic_id = topic_id
        self.base = self.at = base
        self.last: LogRecord | None = None
        self.marks: dict[Epoch, Start] = {}
        self.applied = array("q")

    @property
    def next(self) -> int:
        """The offset where reading the log continues. The last record is read again to detect a replaced log."""
        return max(self.base.position - 1, 0) if self.last is None else self.last.offset

    def append(self, record: LogRecord) -> bool:
        """Fold a record. Return False if it is already present.

        Raises:
            LogForked: The log has a different record at an offset that the copy contains.
            ReplicaHalted: The record cannot be folded.
        """
        last = self.last
        if last is not None and record.offset <= last.offset:
            if record.offset == last.offset and record != last:
                raise LogForked(
                    f"offset {last.offset} has another entry than the member's copy of the log", FORKED_HINT
                )
            return False
        # The record before the base is kept for comparison, but its effect is already part of the base.
        if last is None and record.offset < self.base.position:
            self._check_base(record)
        if record.offset >= self.base.position:
            (made,) = follow([record], self.at.state)
            if made.is_halt:
                raise ReplicaHalted(made.outcome.code, made.outcome.detail, made.offset)
            self.at = made.next
            if made.after is not made.before:
                self.applied.append(made.offset)
            if is_mark(made.before, made.after):
                # Drop the states whose snapshot is no longer listed: each one keeps a whole state in memory.
                kept = {epoch: one for epoch, one in self.marks.items() if str(epoch) in self.at.state.snapshots}
                self.marks = kept | {self.at.state.epoch: self.at}
        self.last = record
        return True

    def _check_base(self, record: LogRecord) -> None:
        """Raise LogForked unless the record before the base is the entry that created its state."""
        entry = decode_entry(record.data)
        if not isinstance(entry, Entry) or entry.state_id != self.base.state.state_id:
            raise LogForked(
                f"offset {record.offset} has another entry than the snapshot of the member's copy", FORKED_HINT
            )

    def newer_base(self) -> Start | None:
        """Return the newest confirmed snapshot that can become the base, or None. Forgets older candidates."""
        mark = next((one for one in reversed(confirmed_snapshots(self.at.state)) if one.epoch in self.marks), None)
        if mark is None:
            return None
        start = self.marks[mark.epoch]
        self.marks = {epoch: one for epoch, one in self.marks.items() if epoch > mark.epoch}
        if (mark.position, mark.digest) == (start.position, digest(start.state)):
            return start
        # Two readers confirmed a different state for this position. Keep the current base, which preserves the
        # evidence.
        log.error("snapshot_disputed", epoch=mark.epoch, position=start.position, confirmed=mark.digest)
        return None


class CopyFile:
    """The copy of one member on disk, for one writing thread. Every method that writes raises OSError.

    Attributes:
        state: The records of the file and their fold.
    """

    def __init__(self, path: Path, copy_state: CopyState, records: Iterable[LogRecord]) -> None:
        """Write ``records`` of ``state`` to a new file, which replaces ``path`` once it is complete and synced."""
        self._path = path
        self._file = -1
        self._size = 0
        self._sealer = Sealer.new()
        self._reading = threading.Lock()
        self._base = copy_state.base
        self._positions = array("q")
        self.state = copy_state
        self._write(records)

    @property
    def base(self) -> Start:
        """The state before the first entry of the file. Thread-safe."""
        return self._base

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """Return one page of entries that follow ``epoch``, or None if the file does not contain them. Thread-safe."""
        with self._reading:
            begin, places = epoch - self._base.state.epoch, self._positions
            if self._file < 0 or not 0 <= begin <= len(places):
                return None
            return first_page(self._entries(places[number] for number in range(begin, len(places))), page_bytes)

    def _entries(self, places: Iterable[int]) -> Iterator[bytes]:
        """Yield the entries at these file positions, up to the first damaged one."""
        for place in places:
            payload = self._sealer.read(self._file, place)
            if payload is None:
                log.error("copy_damaged", kept=str(self._path), why=f"byte {place} differs from the synced byte")
                return
            yield _record_in(payload).data

    def append(self, records: Iterable[LogRecord]) -> Epoch:
        """Append records, sync them, and return the newest epoch. Raises as ``CopyState.append``."""
        frames, places, size = list[bytes](), array("q"), self._size
        for record in records:
            applied = len(self.state.applied)
            if self.state.append(record):
                places.extend([size] * (len(self.state.applied) - applied))
                frames.append(self._sealer.frame(_framed(record), self._size, size))
                size += len(frames[-1])
        if frames:
            write_whole(self._file, b"".join(frames))
            # Sync before the positions become visible: peers must not receive an entry that a power cut could remove.
            os.fdatasync(self._file)
            self._size = size
            with self._reading:
                self._positions.extend(places)
            if (base := self.state.newer_base()) is not None:
                self._rewrite_from(base)
        return self.state.at.state.epoch

    def close(self) -> None:
        """Close the file. Later calls of ``after`` return None."""
        with self._reading:
            self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _rewrite_from(self, base: Start) -> None:
        # Positions and offsets are counted from the base, so remove those of the epochs that the snapshot covers.
        del self.state.applied[: base.state.epoch - self.state.base.state.epoch]
        self.state.base = base
        # Keep the record that created the snapshot: it is compared with the log after a restart.
        kept = (record for record in _records(_payloads(self._path)) if record.offset >= base.position - 1)
        self._write(kept)
        log.info("copy_begins", epoch=base.state.epoch, bytes=self._size)

    def _write(self, records: Iterable[LogRecord]) -> None:
        places = array("q")
        self._size = write_frames(self._path, self._frames_with_positions(_whole(self.state, records), places))
        # Readers must never use positions of the old file with the new one.
        with self._reading:
            self._close_file()
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND)
            self._sealer = sealer_of(os.pread(self._file, HEAD_BYTES, 0), self._path.name)
            self._base, self._positions = self.state.base, places

    def _frames_with_positions(self, payloads: Iterable[bytes], places: array[int]) -> Iterator[bytes]:
        """Yield the payloads and append to ``places`` the file positions of the frames of applied entries."""
        at, applied = HEAD_BYTES, iter(self.state.applied)
        offset = next(applied, None)
        for payload in payloads:
            if offset is not None and payload[:1] == RECORD and _record_in(payload).offset == offset:
                places.append(at)
                offset = next(applied, None)
            at += self._sealer.size(payload)
            yield payload


def reopen_copy(path: Path) -> CopyFile | None:
    """Open the file and cut off a torn end. Return None if the file does not exist. Raises as ``read_copy_state``."""
    if not path.exists():
        return None
    copy_state = read_copy_state(path)
    return CopyFile(path, copy_state, _records(_payloads(path)))


def read_copy_state(path: Path) -> CopyState:
    """Read and fold the records of a file. Raises CopyDamaged, LogGap, ReplicaHalted, OSError."""
    payloads = _payloads(path)
    if not payloads or payloads[0][:1] != TOPIC:
        raise CopyDamaged(f"{path} does not name its log")
    topic_id = payloads[0][1:].decode("utf-8", "replace")
    head, base = _base_of(path, [one[1:] for one in payloads if one[:1] == SNAPSHOT])
    copy_state = CopyState(topic_id, base)
    try:
        for record in _records(payloads):
            if head is not None and copy_state.last is None:
                check_log_position(head, topic_id, record if record.offset == base.position - 1 else None)
            copy_state.append(record)
    except SnapshotRefused as refused:
        raise CopyDamaged(f"{path}: {refused.message}") from refused
    return copy_state


def copy_of_member(folder: Path, seen: Iterable[KnownEpoch] = ()) -> LogCopy:
    """Return the copy in a node's folder. The caller must hold the folder's lock.

    Args:
        seen: The epochs that the node acknowledged, which the copy must contain.

    Raises:
        FileNotFoundError: The folder has no copy. Other errors are those of ``read_copy_state``.
    """
    path = folder / COPY
    copy_state = read_copy_state(path)
    return LogCopy(str(path), copy_state.base, lambda: _records(_payloads(path)), tuple(seen))


def _base_of(path: Path, data: list[bytes]) -> tuple[StoredSnapshot | None, Start]:
    if not data:
        return None, BEGINNING
    try:
        head, *chunks = map(decode_snapshot_record, data)
        if not isinstance(head, StoredSnapshot):
            raise CopyDamaged(f"{path}: a snapshot begins with its head")
        state = decode_snapshot(head, (one for one in chunks if isinstance(one, SnapshotChunk)))
    except (WireError, SnapshotRefused) as error:
        raise CopyDamaged(f"{path}: {error}") from error
    return head, Start(state, head.position)


def _whole(copied: CopyState, records: Iterable[LogRecord]) -> Iterator[bytes]:
    """Yield the payloads of a complete file."""
    yield TOPIC + copied.topic_id.encode()
    if copied.base.position:
        head, chunks = encode_snapshot(
            copied.base, copied.topic_id, "member", NO_WRITER_CLOCK, copied.base.state.state_id
        )
        yield SNAPSHOT + encode_snapshot_record(head)
        yield from (SNAPSHOT + encode_snapshot_record(one) for one in chunks)
    yield from map(_framed, records)


def _framed(record: LogRecord) -> bytes:
    return RECORD + _PLACE.pack(record.offset, record.at) + record.data


def _payloads(path: Path) -> tuple[bytes, ...]:
    try:
        return scan(path.read_bytes(), path.name, may_be_torn=True).payloads
    except JournalDamaged as damaged:
        raise CopyDamaged(f"{path.parent}: {damaged}") from damaged


def _records(payloads: Iterable[bytes]) -> Iterator[LogRecord]:
    for payload in payloads:
        if payload[:1] == RECORD:
            yield _record_in(payload)


def _record_in(payload: bytes) -> LogRecord:
    """Decode a payload of type ``R``."""
    offset, at = _PLACE.unpack_from(payload, 1)
    return LogRecord(offset, payload[1 + _PLACE.size :], at)
