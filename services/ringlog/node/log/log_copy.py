"""A member's own copy of the metadata log: one file in its folder, appended to as the log grows.

The file has frames, as a journal has them (``ringlog.node.registers.frames``), and in them::

    T  the id of the log's topic
    S  head, then chunks, of the snapshot that it begins with; none: it begins with the log's first record
    R  offset (8 bytes)  time (8)  a record of the log as it is; the first one made the snapshot's state

- What was synced stays: a torn end is cut, damage before it is refused (``copy_damaged``).
- The records follow one another in the log without a gap, and are folded when the file is opened, and as they come.
- Where the entry of each epoch stands in the file is known, 16 bytes an epoch: peers are answered from what was synced.
- The file begins with the newest snapshot that the log says is confirmed and whose digest the own fold has: it is then
  written anew, to another file that takes the name. So it is as long as what follows on a snapshot, and the snapshot.
- One process writes: the one that has the node's folder.

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
from ringlog.log.replicas.identity import GROWN, Seen
from ringlog.log.replicas.recent import first_page
from ringlog.log.snapshots import cut, fits, restored
from ringlog.node.registers.frames import HEAD_BYTES, JournalDamaged, Sealer, scan, sealer_of, write_frames, write_whole
from ringlog.runtime.logs import get_logger
from ringlog.wire.entries import decode_entry
from ringlog.wire.errors import WireError
from ringlog.wire.records import SnapshotChunk, StoredSnapshot, decode_snapshot_record, encode_snapshot_record

COPY: Final = "log.copy"
TOPIC, SNAPSHOT, RECORD = b"T", b"S", b"R"
_PLACE: Final = Struct(">qq")
LEFT_OUT: Final = 0
"""The writer's clock and place in the topic in the head of a snapshot: empty in a file."""

log = get_logger("ringlog.node")


class HeldLog:
    """The records of a file, and their fold. ``at``: behind the last record; ``last``: that record, None before the
    first; ``applied``: offsets of the entries that made the epochs after the base.
    """

    def __init__(self, topic_id: str, base: Start) -> None:
        self.topic_id = topic_id
        self.base = self.at = base
        self.last: LogRecord | None = None
        self.marks: dict[Epoch, Start] = {}
        self.applied = array("q")

    @property
    def next(self) -> int:
        """The offset of the record with which reading the log goes on: the last one is compared."""
        return max(self.base.position - 1, 0) if self.last is None else self.last.offset

    def take(self, record: LogRecord) -> bool:
        """Fold one more; False if it is there. Raises LogForked for another record in a place, ReplicaHalted."""
        last = self.last
        if last is not None and record.offset <= last.offset:
            if record.offset == last.offset and record != last:
                raise LogForked(f"offset {last.offset} has another entry than the member's copy of the log", GROWN)
            return False
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
                kept = {epoch: one for epoch, one in self.marks.items() if str(epoch) in self.at.state.snapshots}
                self.marks = kept | {self.at.state.epoch: self.at}
        self.last = record
        return True

    def _check_base(self, record: LogRecord) -> None:
        """Raise LogForked unless the record before the base is the entry that made its state."""
        entry = decode_entry(record.data)
        if not isinstance(entry, Entry) or entry.state_id != self.base.state.state_id:
            raise LogForked(f"offset {record.offset} has another entry than the snapshot of the member's copy", GROWN)

    def newer_base(self) -> Start | None:
        """The newest confirmed snapshot that it could begin with; older marks are forgotten."""
        mark = next((one for one in reversed(confirmed_snapshots(self.at.state)) if one.epoch in self.marks), None)
        if mark is None:
            return None
        start = self.marks[mark.epoch]
        self.marks = {epoch: one for epoch, one in self.marks.items() if epoch > mark.epoch}
        if (mark.position, mark.digest) == (start.position, digest(start.state)):
            return start
        log.error("snapshot_disputed", epoch=mark.epoch, position=start.position, confirmed=mark.digest)
        return None


class CopyFile:
    """The file of one member, open for one thread, and what it holds (``held``). Raises OSError wherever it writes."""

    def __init__(self, path: Path, held: HeldLog, records: Iterable[LogRecord]) -> None:
        """Write it anew with these records of ``held``, whole and synced before it takes the name."""
        self._path = path
        self._file = -1
        self._size = 0
        self._sealer = Sealer.new()
        self._reading = threading.Lock()
        self._base = held.base
        self._places = array("q")
        self.held = held
        self._write(records)

    @property
    def base(self) -> Start:
        """The state with which it begins, for any thread."""
        return self._base

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """Entries that follow on that epoch, as many as go into a page, for any thread; None if they are not here."""
        with self._reading:
            begin, places = epoch - self._base.state.epoch, self._places
            if self._file < 0 or not 0 <= begin <= len(places):
                return None
            return first_page(self._entries(places[number] for number in range(begin, len(places))), page_bytes)

    def _entries(self, places: Iterable[int]) -> Iterator[bytes]:
        """Up to the first one that is not what was synced."""
        for place in places:
            payload = self._sealer.read(self._file, place)
            if payload is None:
                log.error("copy_damaged", kept=str(self._path), why=f"byte {place} is not what was synced")
                return
            yield _record_in(payload).data

    def take(self, records: Iterable[LogRecord]) -> Epoch:
        """Have these on the disk, and the epoch that they make. Raises as ``HeldLog.take``."""
        frames, places, size = list[bytes](), array("q"), self._size
        for record in records:
            applied = len(self.held.applied)
            if self.held.take(record):
                places.extend([size] * (len(self.held.applied) - applied))
                frames.append(self._sealer.frame(_framed(record), self._size, size))
                size += len(frames[-1])
        if frames:
            write_whole(self._file, b"".join(frames))
            os.fdatasync(self._file)
            self._size = size
            with self._reading:
                self._places.extend(places)
            if (base := self.held.newer_base()) is not None:
                self._begin_with(base)
        return self.held.at.state.epoch

    def close(self) -> None:
        """Let go of the file."""
        with self._reading:
            self._let_go()

    def _let_go(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin_with(self, base: Start) -> None:
        del self.held.applied[: base.state.epoch - self.held.base.state.epoch]
        self.held.base = base
        kept = (record for record in _records(_payloads(self._path)) if record.offset >= base.position - 1)
        self._write(kept)
        log.info("copy_begins", epoch=base.state.epoch, bytes=self._size)

    def _write(self, records: Iterable[LogRecord]) -> None:
        places = array("q")
        self._size = write_frames(self._path, self._placed(_whole(self.held, records), places))
        with self._reading:
            self._let_go()
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND)
            self._sealer = sealer_of(os.pread(self._file, HEAD_BYTES, 0), self._path.name)
            self._base, self._places = self.held.base, places

    def _placed(self, payloads: Iterable[bytes], places: array[int]) -> Iterator[bytes]:
        """The same; ``places`` gets where the frames of applied entries will begin."""
        at, applied = HEAD_BYTES, iter(self.held.applied)
        offset = next(applied, None)
        for payload in payloads:
            if offset is not None and payload[:1] == RECORD and _record_in(payload).offset == offset:
                places.append(at)
                offset = next(applied, None)
            at += self._sealer.size(payload)
            yield payload


def reopened(path: Path) -> CopyFile | None:
    """The file as it is on the disk, without a torn end; None: there is none. Raises as ``held_of``."""
    if not path.exists():
        return None
    held = held_of(path)
    return CopyFile(path, held, _records(_payloads(path)))


def held_of(path: Path) -> HeldLog:
    """Return the folded records of a file. Raises CopyDamaged, LogGap, ReplicaHalted, OSError."""
    payloads = _payloads(path)
    if not payloads or payloads[0][:1] != TOPIC:
        raise CopyDamaged(f"{path} does not say of which log it is")
    topic_id = payloads[0][1:].decode("utf-8", "replace")
    head, base = _base_of(path, [one[1:] for one in payloads if one[:1] == SNAPSHOT])
    held = HeldLog(topic_id, base)
    try:
        for record in _records(payloads):
            if head is not None and held.last is None:
                fits(head, topic_id, record if record.offset == base.position - 1 else None)
            held.take(record)
    except SnapshotRefused as refused:
        raise CopyDamaged(f"{path}: {refused.message}") from refused
    return held


def copy_of_member(folder: Path, seen: Iterable[Seen] = ()) -> LogCopy:
    """The copy in a node's folder, whose lock the caller has. ``seen``: what the node acknowledged.

    Raises as ``held_of``; FileNotFoundError if there is none.
    """
    path = folder / COPY
    held = held_of(path)
    return LogCopy(str(path), held.base, lambda: _records(_payloads(path)), tuple(seen))


def _base_of(path: Path, data: list[bytes]) -> tuple[StoredSnapshot | None, Start]:
    if not data:
        return None, BEGINNING
    try:
        head, *chunks = map(decode_snapshot_record, data)
        if not isinstance(head, StoredSnapshot):
            raise CopyDamaged(f"{path}: a snapshot begins with its head")
        state = restored(head, (one for one in chunks if isinstance(one, SnapshotChunk)))
    except (WireError, SnapshotRefused) as error:
        raise CopyDamaged(f"{path}: {error}") from error
    return head, Start(state, head.position)


def _whole(held: HeldLog, records: Iterable[LogRecord]) -> Iterator[bytes]:
    """The payloads of a file."""
    yield TOPIC + held.topic_id.encode()
    if held.base.position:
        head, chunks = cut(held.base, held.topic_id, "member", LEFT_OUT, held.base.state.state_id)
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
    """The record of a payload of that kind."""
    offset, at = _PLACE.unpack_from(payload, 1)
    return LogRecord(offset, payload[1 + _PLACE.size :], at)
