"""The write-ahead log of a node's registers, with group commit and compaction.

Invariants: records reach the disk in order. A record whose ``done`` was called survives any crash.

The files of the folder are numbered from 1::

    cells-00000007.journal   records; the journal with the highest number is open for writing
    cells-00000006.image     the fold of all journals up to number 6; those files may be deleted

Group commit: records appended during a sync go to disk together with the next one. ``done`` is called after the sync,
in the order of the records. No effect of a record may be visible before that. ``done`` also applies the record, so
``whole`` returns between two batches exactly the fold of the records on disk.

Compaction: when a journal has grown, the writing thread closes it, begins the next one and takes the fold of all closed
journals. Another thread writes this image to a temporary file, syncs it and renames it. Only then are the covered files
deleted. A crash at any point leaves all journals, or the image that covers them. A journal may grow to a share of the
image's size, so the total bytes of images stay proportional to the appended bytes. The image is an immutable value. It
is written in slices with a pause as long as the last slice, so requests wait for one slice at most.

Recovery reads the newest image and the journals after it. A torn end of the last journal is cut off, because none of
its records was acknowledged. Any other invalid data raises ``JournalDamaged``, and the node must not serve.

A disk error ends the journal permanently. After a failed sync, the kernel may mark dirty pages as clean: a reader then
sees data that exists in memory only, and another sync reports success. Only the last journal can have an unsynced end.
So recovery rewrites it to a new file, and syncs and renames that file before any record is used.

Source: Rebello et al., "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from ringlog.node.registers.frames import (
    FRESH,
    HEAD_BYTES,
    JournalDamaged,
    Pause,
    Scanned,
    scan,
    sealer_of,
    write_frames,
    write_whole,
)
from ringlog.node.registers.image import Image, ImageBuilder, records_of
from ringlog.node.registers.packed import Unpacked, decode_record, encode_parts, encode_record
from ringlog.runtime.logs import get_logger
from ringlog.wire.data import JournalRecord
from ringlog.wire.errors import WireError

log = get_logger("ringlog.node")

COMPACT_BYTES = 16 * 1024 * 1024
"""The minimum size of a journal that is compacted."""
IMAGE_SHARE = 2
"""A journal is compacted when its size reaches the image's size divided by this number."""
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""The size that ends a batch. Further records go into the next one."""
JOURNAL, IMAGE = ".journal", ".image"

Done = Callable[[], None]


class Journal:
    """The journal of one node, for one process at a time. Thread-safe.

    Args:
        whole: Called in the journal's thread. Returns the fold of the recovered image and of every record whose
            ``done`` was called.

    Attributes:
        failure: The error that ended the journal, or None.

    Raises:
        JournalDamaged: The folder lacks acknowledged data.
        OSError: The disk failed.
    """

    def __init__(self, folder: Path, whole: Callable[[], Image], compact_bytes: int = COMPACT_BYTES) -> None:
        self._folder = folder
        self._whole = whole
        self._compact_bytes = compact_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self.failure: BaseException | None = None
        self._found: Image | None
        self._found, self._number, self._size = recover(folder)
        self._image_bytes = max((path.stat().st_size for path in folder.glob(f"cells-*{IMAGE}")), default=0)
        self._open()
        self._synced = self._size
        self._waiting: list[tuple[bytes, Done]] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._compaction: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def found(self) -> Image:
        """Return the recovered content. May be called once, because the journal does not retain it."""
        found, self._found = self._found, None
        assert found is not None, "the image was already taken"
        return found

    def append(self, record: JournalRecord, done: Done) -> None:
        """Write a record to disk soon. Raises WireError if a field does not fit.

        Args:
            done: Called in the journal's thread when the record is on disk; never after a failure. Must not block.
        """
        data = encode_record(record)
        with self._changed:
            self._waiting.append((data, done))
            self._changed.notify()

    def close(self) -> None:
        """Write the remaining records and end the thread."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join()
        if self._compaction is not None:
            self._compaction.join()
        os.close(self._file)

    # --------------------------------------------------------------------------------------------- the writer

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._commit(batch)
                for _, done in batch:
                    done()
                if self._has_grown() and (self._compaction is None or not self._compaction.is_alive()):
                    self._compact()
        except BaseException as failure:
            # Final: no further ``done`` is called, so nothing that may be missing on disk is acknowledged.
            log.exception("the journal has ended", folder=str(self._folder))
            self.failure = failure

    def _take(self) -> list[tuple[bytes, Done]]:
        """Wait for records and return a batch. It is empty when the journal is closed and everything is written."""
        with self._changed:
            while not self._waiting and not self._closing.is_set():
                self._changed.wait()
            size = count = 0
            for data, _ in self._waiting:
                size += len(data)
                count += 1
                if size >= BATCH_BYTES_MAX:
                    break
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            return batch

    def _commit(self, batch: list[tuple[bytes, Done]]) -> None:
        frames = []
        for data, _ in batch:
            frames.append(self._sealer.frame(data, self._synced, self._size))
            self._size += len(frames[-1])
        write_whole(self._file, b"".join(frames))
        # The frames of this batch still name the old ``synced``: only the next batch proves that this one was on disk.
        os.fdatasync(self._file)
        self._synced = self._size

    # ------------------------------------------------------------------------------------------- compaction

    def _has_grown(self) -> bool:
        return self._size >= max(self._compact_bytes, self._image_bytes // IMAGE_SHARE)

    def _compact(self) -> None:
        # No batch is in progress in this thread, so the image is exactly the fold of all journals so far.
        covered, image = self._number, self._whole()
        os.close(self._file)
        self._number += 1
        self._size = self._synced = _write(self._journal(self._number), ())
        self._open()
        compaction = threading.Thread(target=self._write_image, args=(image, covered), name="image", daemon=True)
        compaction.start()
        # Assigned after the start, because ``close`` cannot join a thread that has not started.
        self._compaction = compaction

    def _write_image(self, image: Image, covered: int) -> None:
        try:
            self._image_bytes = write_image(self._folder, image, covered, self._closing.wait)
        except OSError as error:
            # The journals remain, so no data is lost. The next compaction covers them as well.
            log.warning("no image written", folder=str(self._folder), error=str(error))

    def _open(self) -> None:
        """Open the journal of the current number for writing."""
        path = self._journal(self._number)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        self._sealer = sealer_of(os.pread(self._file, HEAD_BYTES, 0), path.name)

    def _journal(self, number: int) -> Path:
        return self._folder / f"cells-{number:08}{JOURNAL}"


def recover(folder: Path) -> tuple[Image, int, int]:
    """Return (image, number, size): the recovered content, and the rewritten journal to continue with.

    Raises:
        JournalDamaged: A file is missing or invalid.
        OSError: The disk failed.
    """
    # A crash interrupted the writing of these files; they never got their names.
    for left in folder.glob(f"cells-*{FRESH}"):
        left.unlink()
    images, journals = _numbered(folder, IMAGE), _numbered(folder, JOURNAL)
    covered = max(images, default=0)
    folding = ImageBuilder(_read_image(images[covered]) if covered else Image())
    later = sorted(number for number in journals if number > covered)
    if later != list(range(covered + 1, covered + 1 + len(later))):
        raise JournalDamaged(f"{folder} has the journals {later} after image {covered}: one is missing")
    records: tuple[Unpacked, ...] = ()
    for number in later:
        path = journals[number]
        data = path.read_bytes()
        scanned = scan(data, path.name, may_be_torn=number == later[-1])
        if scanned.end < len(data):
            log.warning("torn end cut off", journal=path.name, bytes=len(data) - scanned.end)
        records = _records(scanned, path.name)
        for record in records:
            folding.add(record)
    last = later[-1] if later else covered + 1
    # Rewrite the last journal without its torn end. See the module docstring for the reason.
    size = _write(folder / f"cells-{last:08}{JOURNAL}", records)
    _forget(folder, covered)
    return folding.image(), last, size


def write_image(folder: Path, image: Image, covered: int, pause: Pause = lambda _: None) -> int:
    """Write an image that covers the journals up to a number, then delete them. Return its size. Raises OSError.

    Args:
        pause: See ``write_frames``.
    """
    size = _write(folder / f"cells-{covered:08}{IMAGE}", records_of(image), pause)
    _forget(folder, covered)
    return size


def _write(path: Path, records: Iterable[Unpacked], pause: Pause = lambda _: None) -> int:
    """Write a complete file before it gets its name. Return its size. Raises OSError."""
    return write_frames(path, (encode_parts(record, keys, cells) for record, keys, cells in records), pause)


def _read_image(path: Path) -> Image:
    scanned = scan(path.read_bytes(), path.name, may_be_torn=False)
    folding, total = ImageBuilder(Image()), -1
    for found in _records(scanned, path.name):
        folding.add(found)
        total = found[0].total
    image = folding.image()
    if total != len(image.cells):
        raise JournalDamaged(f"{path.name} must have {total} cells, but has {len(image.cells)}")
    return image


def _records(scanned: Scanned, name: str) -> tuple[Unpacked, ...]:
    try:
        return tuple(decode_record(payload) for payload in scanned.payloads)
    except WireError as error:
        raise JournalDamaged(f"{name} contains a record that this release cannot read: {error}") from error


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    found = {}
    for path in folder.glob(f"cells-*{suffix}"):
        number = path.name.removeprefix("cells-").removesuffix(suffix)
        if number.isdecimal():
            found[int(number)] = path
    return found


def _forget(folder: Path, covered: int) -> None:
    """Delete the journals up to ``covered``, and older images."""
    for number, path in sorted(_numbered(folder, JOURNAL).items()):
        if number <= covered:
            path.unlink()
    for number, path in sorted(_numbered(folder, IMAGE).items()):
        if number < covered:
            path.unlink()
