"""The archive: the log's entries as files or objects, in segments, so that the log itself may delete them.

A *segment* contains every record between two offsets, including records without effect, and ends with an applied entry.
Its name consists of the first and last epoch of its entries. Its first line is a ``SegmentHead`` as JSON, with the
digests of the records and of the previous segment. The records follow. So the archive is a chain, and the digest of the
last head covers all of it. The log contains that digest (``RecordArchive``).

Invariants:

- A segment gets its name only when it is stored completely (``ringlog.log.archive.locations``). Files with other names
  are ignored.

- A segment counts after it was read back.

- Epochs and offsets of consecutive segments have no gaps, from the log's first entry on.

A segment that violates a rule is rejected with a code and never skipped. Reading an archive does not fold its records.
Extending it does (``extend_archive``), and ``ringlog log verify`` folds the whole archive.

Source: DESIGN, snapshots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import tee
from pathlib import Path
from struct import Struct
from typing import Any, Final, get_type_hints

from ringlog.kernel.encoding.encoder import sha256_of
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value, asdict
from ringlog.log.archive.locations import ArchiveLocation, FolderLocation
from ringlog.log.errors import (
    ArchiveCut,
    ArchiveEmpty,
    ArchiveForged,
    ArchiveGap,
    ArchiveOfAnotherLog,
    ArchiveTooLate,
)
from ringlog.log.folding import FoldedRecord, Start, follow
from ringlog.log.port import LogRecord, MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder

SEGMENT_RECORDS_MAX: Final = 50_000
SEGMENT_BYTES_MAX: Final = 64 << 20
"""A segment ends at the next applied entry after it has this number of records or bytes. Readers hold one in memory."""

FORMAT: Final = 1
_NAME: Final = re.compile(r"(\d{12,})-(\d{12,})\.segment")
_RECORD: Final = Struct(">qqI")
"""The header of a record: offset, time in microseconds, number of bytes."""


class SegmentHead(Value):
    """The description of a segment: epochs ``first`` to ``last``, all records with ``begin`` <= offset < ``next``.

    ``state_id`` is that of the last epoch. ``before`` is the digest of the previous segment, empty for the first.
    ``body`` is the SHA-256 of the bytes after the head.
    """

    cluster_id: str
    topic_id: str
    first: Epoch
    last: Epoch
    begin: int
    next: int
    records: int
    state_id: str
    before: str
    body: str
    format: int = FORMAT

    @property
    def name(self) -> str:
        """The file name of the segment."""
        return f"{self.first:012}-{self.last:012}.segment"

    @property
    def line(self) -> bytes:
        """The first line of the file: the head as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode("ascii") + b"\n"

    @property
    def digest(self) -> str:
        """The digest of this segment and, through ``before``, of all previous ones."""
        return sha256_of(self.line)


_TYPES: Final = get_type_hints(SegmentHead)


class Archive:
    """The segments at a location. For use by one thread; only one process at a time may write.

    A path means the folder with that path.
    """

    def __init__(self, place: ArchiveLocation | Path) -> None:
        self.place = FolderLocation(place) if isinstance(place, Path) else place

    # ------------------------------------------------------------------------------------------- reading

    def segments(self) -> tuple[SegmentHead, ...]:
        """Return all heads, ordered by epoch, without reading the records. Empty if the archive does not exist yet.

        Raises ArchiveGap, ArchiveForged, ArchiveCut, ArchiveOfAnotherLog, ArchiveUnavailable.
        """
        names = [name for name in self.place.names() if _NAME.fullmatch(name)]
        heads = tuple(sorted((self._head(name) for name in names), key=lambda head: head.first))
        before: SegmentHead | None = None
        for head in heads:
            _check_chain(head, before)
            before = head
        return heads

    def existing_segments(self) -> tuple[SegmentHead, ...]:
        """Return the heads of an archive that must exist. Raises ArchiveEmpty, and as ``segments``."""
        if heads := self.segments():
            return heads
        hint = "pass the RINGLOG_ARCHIVE of the cache writer, or start one: `ringlog log archive --archive LOCATION`"
        raise ArchiveEmpty(f"{self.place.name} contains no segment of a log", hint)

    def records(self, heads: Iterable[SegmentHead]) -> Iterator[LogRecord]:
        """Yield the records of these segments. Each segment is checked completely before its first record.

        Raises as ``segments``.
        """
        for head in heads:
            yield from self._body(head)

    def _head(self, name: str) -> SegmentHead:
        line = self.place.first_line(name)
        if not line.endswith(b"\n"):
            raise ArchiveCut(f"{name} is cut off within its first line")
        try:
            found: Any = json.loads(line)
            head = SegmentHead(**found)
            typed = all(type(getattr(head, field)) is kind for field, kind in _TYPES.items())
        except (ValueError, TypeError, RecursionError) as error:
            raise ArchiveForged(f"{name} does not have the header of a segment: {error}") from error
        if not typed or head.format != FORMAT or head.line != line or head.name != name:
            raise ArchiveForged(f"{name} has the header of {head.name} in format {head.format}")
        return head

    def _body(self, head: SegmentHead) -> list[LogRecord]:
        data = self.place.read(head.name)
        if not data.startswith(head.line):
            raise ArchiveForged(f"{head.name} changed during the read")
        return _records(head, data[len(head.line) :])

    # ------------------------------------------------------------------------------------------- writing

    def add(self, head: SegmentHead, body: bytes) -> None:
        """Write a segment, then read it back. Raises ArchiveUnavailable, ArchiveForged, ArchiveCut."""
        self.place.write(head.name, head.line + body)
        self._body(self._head(head.name))


def _check_chain(head: SegmentHead, before: SegmentHead | None) -> None:
    if before is None:
        if head.first != 1 or head.before:
            raise ArchiveGap(f"the archive starts with epoch {head.first}: {head.name}")
        return
    if (head.cluster_id, head.topic_id) != (before.cluster_id, before.topic_id):
        raise ArchiveOfAnotherLog(f"{head.name} belongs to another log than {before.name}")
    if head.first != before.last + 1 or head.begin != before.next:
        raise ArchiveGap(f"{head.name} starts at offset {head.begin}, but {before.name} ends before {before.next}")
    if head.before != before.digest:
        raise ArchiveForged(f"{head.name} does not follow {before.name}: it names another previous segment")


def _records(head: SegmentHead, body: bytes) -> list[LogRecord]:
    if sha256_of(body) != head.body:
        raise ArchiveForged(f"{head.name}: the digest of its records differs from its header")
    found, at, offset = list[LogRecord](), 0, head.begin - 1
    while at + _RECORD.size <= len(body):
        before = offset
        offset, time, size = _RECORD.unpack_from(body, at)
        at += _RECORD.size + size
        if not before < offset < head.next or at > len(body):
            raise ArchiveForged(f"{head.name}: a record of {size} bytes cannot be at offset {offset}")
        found.append(LogRecord(offset, body[at - size : at], time))
    if at != len(body) or len(found) != head.records or offset + 1 != head.next:
        raise ArchiveCut(f"{head.name}: {len(found)} of {head.records} records exist")
    return found


# ----------------------------------------------------------------------------------------------------- extending


def extend_archive(
    archive: Archive, records: Iterable[LogRecord], start: Start, topic_id: str, until: Epoch | None = None
) -> Start:
    """Fold ``records`` and add the missing segments, up to the last applied entry. Return the start after it.

    A halt of the fold ends the archive, too.

    Args:
        start: The state before the records, and their first offset, which must not be after the archive's end.
        until: Stop at this epoch. None: fold all records.

    Raises:
        ArchiveGap, ArchiveForged, ArchiveOfAnotherLog, ArchiveUnavailable: The archive does not match the records.
        LogError: From the iteration over ``records``.
    """
    growth = _SegmentWriter(archive, topic_id, start)
    goes_on = until is None or start.state.epoch < until
    for record, made in _folded(records, start.state) if goes_on else ():
        if made.is_halt:
            break
        growth.take(record, made)
        if until is not None and made.after.epoch >= until:
            break
    growth.cut()
    if not growth.fits and (until is None or growth.end.state.epoch < until):
        raise ArchiveOfAnotherLog(
            f"the archive has later entries than the log, which ends with epoch {growth.end.state.epoch}"
        )
    return growth.end


def update_archive(
    archive: Archive, log: MetadataLog, open_snapshots: Callable[[], SnapshotTopic], until: Epoch | None = None
) -> Start:
    """Add the missing segments of a log, up to its present end or to ``until``. Return the start after them.

    The fold begins at a snapshot if the archive contains its epoch. Raises ArchiveTooLate, and as ``extend_archive``
    and ``all_records``.
    """
    heads, identity, begin = archive.segments(), log.identity(), log.begin_offset()
    if not heads and begin:
        raise ArchiveTooLate(log.name, begin)
    start_finder = StartPointFinder(open_snapshots, heads[-1].last if heads else 0, warns=False)
    start = start_finder.start(log, identity, lambda _: ())
    # Without a snapshot, the entries that the log has deleted come from the archive itself.
    behind = archive if start.position < begin else None
    return extend_archive(archive, all_records(log, behind, start.position), start, identity, until)


def _folded(records: Iterable[LogRecord], state: ClusterState) -> Iterator[tuple[LogRecord, FoldedRecord]]:
    # ``follow`` yields no bytes, so pair each folded record with its log record.
    mine, others = tee(records)
    return zip(mine, follow(others, state), strict=False)


class _SegmentWriter:
    """The records after the last segment, collected until they form the next one."""

    def __init__(self, archive: Archive, topic_id: str, start: Start) -> None:
        heads = archive.segments()
        self._archive = archive
        self._topic_id = topic_id
        self._last = heads[-1] if heads else None
        self._records: list[LogRecord] = []
        self._applied = self._bytes = 0
        self.fits = self._last is None
        self.end = start
        if self._last is not None and self._last.topic_id != topic_id:
            raise ArchiveOfAnotherLog(
                f"the archive belongs to topic {self._last.topic_id}, but the log is topic {topic_id}"
            )
        if start.position > self._position:
            raise ArchiveGap(
                f"the archive ends before offset {self._position}, but the next known offset is {start.position}"
            )
        self._compare(start)

    @property
    def _position(self) -> int:
        return 0 if self._last is None else self._last.next

    def _compare(self, at: Start) -> None:
        """Check that the log has the archive's state at the archive's end. Raises ArchiveOfAnotherLog."""
        last = self._last
        if self.fits or last is None or at.position < last.next:
            return
        found = at.position, at.state.cluster_id, at.state.epoch, at.state.state_id
        if found != (last.next, last.cluster_id, last.last, last.state_id):
            raise ArchiveOfAnotherLog(
                f"{last.name} ends with state {last.state_id}, but the log has {found[3]} at that epoch"
            )
        self.fits = True

    def take(self, record: LogRecord, made: FoldedRecord) -> None:
        """Add a record with the result of its fold."""
        if record.offset >= self._position:
            self._records.append(record)
            self._bytes += len(record.data)
        if made.after is not made.before:
            self.end = made.next
            self._applied = len(self._records)
            self._compare(self.end)
            if self._applied >= SEGMENT_RECORDS_MAX or self._bytes >= SEGMENT_BYTES_MAX:
                self.cut()

    def cut(self) -> None:
        """Write a segment of all records up to the last applied entry."""
        if not self._applied:
            return
        segment, self._records = self._records[: self._applied], self._records[self._applied :]
        body = b"".join(_RECORD.pack(one.offset, one.at, len(one.data)) + one.data for one in segment)
        state, last = self.end.state, self._last
        head = SegmentHead(
            state.cluster_id,
            self._topic_id,
            1 if last is None else last.last + 1,
            state.epoch,
            self._position,
            self.end.position,
            len(segment),
            state.state_id,
            "" if last is None else last.digest,
            sha256_of(body),
        )
        self._archive.add(head, body)
        self._last, self._applied, self._bytes = head, 0, sum(len(one.data) for one in self._records)


def all_records(log: MetadataLog, archive: Archive | None, begin: int = 0) -> Iterator[LogRecord]:
    """Yield every record from ``begin`` to the log's present end: first from the archive, then from the log.

    Raises ArchiveRefused, ArchiveUnavailable, LogTruncated, LogUnavailable.
    """
    at = begin
    if archive is not None:
        heads = [head for head in archive.segments() if head.next > begin]
        yield from (record for record in archive.records(heads) if record.offset >= begin)
        at = heads[-1].next if heads else begin
    tail = log.tail(at)
    try:
        yield from read_to_end(log, tail)
    finally:
        tail.close()
