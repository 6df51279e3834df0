"""The write-ahead file of a node: records reach the disk in order, many with one sync, and are there after any crash.

Files of the folder, numbered from 1::

    cells-00000007.journal   records; the one with the highest number is written to
    cells-00000006.image     the fold of all journals up to number 6, whole; what it covers may be deleted

**Group commit.** Whatever is appended while a sync is under way goes to the disk together with the next one. ``done``
is called after the sync, in the order of the appends: only then may anybody be told.

**Compaction.** A journal that has grown is closed, and the next one begun, in one step of the thread that writes; the
image of all that is closed is written beside by another thread, to a file of another name first, synced, and renamed.
Only then do the files go that it covers. A crash at any point leaves all journals, or the image that covers them.

**Recovery** takes the newest image and the journals after it. A torn end of the last journal is cut off: nobody was
told of it. Anything else that is not whole is damage: ``JournalDamaged``, and the node must not serve. What is kept is
synced again before anybody reads it, since a killed process leaves bytes that the disk may not have yet.

An error of the disk ends the journal for good: after a failed sync nobody can say what is on the disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from ringlog.node.frames import MAGIC, JournalDamaged, frame, scan
from ringlog.node.image import Image, fold, records_of
from ringlog.wire.data import JournalRecord, pack, unpack
from ringlog.wire.errors import WireError

log = structlog.get_logger("ringlog.node")

COMPACT_BYTES = 16 * 1024 * 1024
BATCH_BYTES_MAX = 4 * 1024 * 1024
JOURNAL, IMAGE, FRESH = ".journal", ".image", ".new"

Done = Callable[[], None]


class Journal:
    """One node's journal in ``folder``, for one process at a time. Safe from threads.

    ``image``: what the disk holds; it moves on as records get there. ``failure``: why it has ended, if it has.
    Raises JournalDamaged, OSError.
    """

    def __init__(self, folder: Path, compact_bytes: int = COMPACT_BYTES) -> None:
        self._folder = folder
        self._compact_bytes = compact_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self.failure: BaseException | None = None
        self.image, self._number, self._size = recover(folder)
        self._file = os.open(self._journal(self._number), os.O_WRONLY | os.O_APPEND)
        self._synced = self._size
        self._waiting: list[tuple[bytes, JournalRecord, Done]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._compaction: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, record: JournalRecord, done: Done) -> None:
        """Have a record on the disk soon; ``done`` is called then, in the journal's thread, and must not wait.

        After a failure it never is. Raises WireError if a field does not fit.
        """
        data = pack(record)
        with self._changed:
            self._waiting.append((data, record, done))
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._closing = True
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
                for _, _, done in batch:
                    done()
                if self._size >= self._compact_bytes and (self._compaction is None or not self._compaction.is_alive()):
                    self._compact()
        except BaseException as failure:
            log.exception("the journal has ended", folder=str(self._folder))
            self.failure = failure

    def _take(self) -> list[tuple[bytes, JournalRecord, Done]]:
        """What waits, up to a size; empty when the journal is closed and nothing waits any more."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            size = count = 0
            for data, _, _ in self._waiting:
                size += len(data)
                count += 1
                if size >= BATCH_BYTES_MAX:
                    break
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            return batch

    def _commit(self, batch: list[tuple[bytes, JournalRecord, Done]]) -> None:
        out = memoryview(b"".join(frame(data, self._synced) for data, _, _ in batch))
        self._size += len(out)
        while out:
            out = out[os.write(self._file, out) :]
        os.fdatasync(self._file)
        self._synced = self._size
        image = self.image
        for _, record, _ in batch:
            image = fold(image, record)
        self.image = image

    # ------------------------------------------------------------------------------------------- compaction

    def _compact(self) -> None:
        covered, image = self._number, self.image
        os.close(self._file)
        self._number += 1
        self._size = self._synced = _create(self._journal(self._number))
        self._file = os.open(self._journal(self._number), os.O_WRONLY | os.O_APPEND)
        self._compaction = threading.Thread(target=self._write_image, args=(image, covered), name="image", daemon=True)
        self._compaction.start()

    def _write_image(self, image: Image, covered: int) -> None:
        try:
            write_image(self._folder, image, covered)
        except OSError as error:
            # The journals that it would have covered are still there: the next compaction covers them, too.
            log.warning("no image written", folder=str(self._folder), error=str(error))

    def _journal(self, number: int) -> Path:
        return self._folder / f"cells-{number:08}{JOURNAL}"


def recover(folder: Path) -> tuple[Image, int, int]:
    """(image, number and size of the journal to go on with); cuts a torn end off. Raises JournalDamaged, OSError."""
    for left in folder.glob(f"cells-*{FRESH}"):
        left.unlink()
    images, journals = _numbered(folder, IMAGE), _numbered(folder, JOURNAL)
    covered = max(images, default=0)
    image = _read_image(images[covered]) if covered else Image()
    later = sorted(number for number in journals if number > covered)
    if later != list(range(covered + 1, covered + 1 + len(later))):
        raise JournalDamaged(f"{folder} has the journals {later} after image {covered}: one is missing")
    size = 0
    for number in later:
        path = journals[number]
        scanned = scan(path.read_bytes(), path.name, may_be_torn=number == later[-1])
        for payload in scanned.payloads:
            image = fold(image, _record(payload, path.name))
        size = scanned.end
    last = later[-1] if later else covered + 1
    path = folder / f"cells-{last:08}{JOURNAL}"
    if size == 0:
        size = _create(path)
    else:
        torn = path.stat().st_size - size
        if torn:
            log.warning("torn end cut off", journal=path.name, bytes=torn)
        with path.open("r+b") as out:
            out.truncate(size)
            os.fsync(out.fileno())
        _sync_folder(folder)
    _forget(folder, covered)
    return image, last, size


def write_image(folder: Path, image: Image, covered: int) -> None:
    """Have an image on the disk that covers the journals up to a number, then forget those. Raises OSError."""
    path = folder / f"cells-{covered:08}{IMAGE}"
    fresh = path.with_suffix(FRESH)
    with fresh.open("wb") as out:
        out.write(MAGIC)
        for record in records_of(image):
            out.write(frame(pack(record), 0))
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)
    _sync_folder(folder)
    _forget(folder, covered)


def _read_image(path: Path) -> Image:
    image, total = Image(), -1
    for payload in scan(path.read_bytes(), path.name, may_be_torn=False).payloads:
        record = _record(payload, path.name)
        image, total = fold(image, record), record.total
    if total != len(image.cells):
        raise JournalDamaged(f"{path.name} is to hold {total} cells, and holds {len(image.cells)}")
    return image


def _record(payload: bytes, name: str) -> JournalRecord:
    try:
        return unpack(JournalRecord, payload)
    except WireError as error:
        raise JournalDamaged(f"{name} holds what is no record of this release: {error}") from error


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    found = {}
    for path in folder.glob(f"cells-*{suffix}"):
        number = path.name.removeprefix("cells-").removesuffix(suffix)
        if number.isdecimal():
            found[int(number)] = path
    return found


def _forget(folder: Path, covered: int) -> None:
    """Delete the journals up to a number, and the images below it."""
    for number, path in sorted(_numbered(folder, JOURNAL).items()):
        if number <= covered:
            path.unlink()
    for number, path in sorted(_numbered(folder, IMAGE).items()):
        if number < covered:
            path.unlink()


def _create(path: Path) -> int:
    """Begin an empty journal; its size."""
    with path.open("wb") as out:
        out.write(MAGIC)
        out.flush()
        os.fsync(out.fileno())
    _sync_folder(path.parent)
    return len(MAGIC)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
