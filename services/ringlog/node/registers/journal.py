"""The write-ahead file of a node: records reach the disk in order, many with one sync, and are there after any crash.

Files of the folder, numbered from 1::

    cells-00000007.journal   records; the one with the highest number is written to
    cells-00000006.image     the fold of all journals up to number 6, whole; what it covers may be deleted

**Group commit.** Whatever is appended while a sync is under way goes to the disk together with the next one. ``done``
is called after the sync, in the order of the appends: only then may anybody hear of it. What a record does is done
there, too: between two batches ``whole`` gives the fold of all that is on the disk, no more and no less.

**Compaction.** A journal that has grown is closed, and the next one begun, in one step of the thread that writes; the
image of all that is closed is written beside by another thread, to a file of another name first, synced, and renamed.
Only then do the files go that it covers. A crash at any point leaves all journals, or the image that covers them.
A journal may grow to a part of the image's size before it is closed, so the images that are ever written are some times
what was appended, however much is held. The image is of a value that nobody changes any more, and goes to the disk in
slices with as long a pause after each: requests wait for no more than one of them.

**Recovery** takes the newest image and the journals after it. A torn end of the last journal is cut off: nobody was
heard of it. Anything else that is not whole is damage: ``JournalDamaged``, and the node must not serve.

An error of the disk ends the journal for good: after a failed sync nobody can say what is on the disk. What the next
process reads may come from memory alone, and another sync of that file would say that all is well: the system counts
pages as clean whose writing has failed. So the last journal, the only one that may have an unsynced end, is written
anew, to another file, which is synced before it takes the name and before anybody learns what it holds.

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
from ringlog.node.registers.image import Folding, Image, records_of
from ringlog.node.registers.packed import Unpacked, joined, packed, unpacked
from ringlog.runtime.logs import get_logger
from ringlog.wire.data import JournalRecord
from ringlog.wire.errors import WireError

log = get_logger("ringlog.node")

COMPACT_BYTES = 16 * 1024 * 1024
"""So large at least is a journal that is closed."""
IMAGE_SHARE = 2
"""And so large a part of the image: a half."""
BATCH_BYTES_MAX = 4 * 1024 * 1024
JOURNAL, IMAGE = ".journal", ".image"

Done = Callable[[], None]


class Journal:
    """One node's journal in ``folder``, for one process at a time. Safe from threads.

    ``whole``: called in the journal's thread, gives the fold of what the disk held when it was opened, and of every
    record whose ``done`` was called. ``failure``: why it has ended, if it has. Raises JournalDamaged, OSError.
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
        """What the disk held when it was opened; to be taken once: the journal does not keep it."""
        found, self._found = self._found, None
        assert found is not None, "it was taken already"
        return found

    def append(self, record: JournalRecord, done: Done) -> None:
        """Have a record on the disk soon; ``done`` is called then, in the journal's thread, and must not wait.

        After a failure it never is. Raises WireError if a field does not fit.
        """
        data = packed(record)
        with self._changed:
            self._waiting.append((data, done))
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, and end."""
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
            log.exception("the journal has ended", folder=str(self._folder))
            self.failure = failure

    def _take(self) -> list[tuple[bytes, Done]]:
        """What waits, up to a size; empty when the journal is closed and nothing waits any more."""
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
        os.fdatasync(self._file)
        self._synced = self._size

    # ------------------------------------------------------------------------------------------- compaction

    def _has_grown(self) -> bool:
        return self._size >= max(self._compact_bytes, self._image_bytes // IMAGE_SHARE)

    def _compact(self) -> None:
        covered, image = self._number, self._whole()
        os.close(self._file)
        self._number += 1
        self._size = self._synced = _write(self._journal(self._number), ())
        self._open()
        compaction = threading.Thread(target=self._write_image, args=(image, covered), name="image", daemon=True)
        compaction.start()
        self._compaction = compaction  # seen once it runs: a thread that has not started cannot be joined

    def _write_image(self, image: Image, covered: int) -> None:
        try:
            self._image_bytes = write_image(self._folder, image, covered, self._closing.wait)
        except OSError as error:
            # The journals that it would have covered are still there: the next compaction covers them, too.
            log.warning("no image written", folder=str(self._folder), error=str(error))

    def _open(self) -> None:
        """Go on with the journal of the present number."""
        path = self._journal(self._number)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        self._sealer = sealer_of(os.pread(self._file, HEAD_BYTES, 0), path.name)

    def _journal(self, number: int) -> Path:
        return self._folder / f"cells-{number:08}{JOURNAL}"


def recover(folder: Path) -> tuple[Image, int, int]:
    """(image, number and size of the journal to go on with), which is written anew without a torn end.

    Raises JournalDamaged, OSError.
    """
    for left in folder.glob(f"cells-*{FRESH}"):
        left.unlink()
    images, journals = _numbered(folder, IMAGE), _numbered(folder, JOURNAL)
    covered = max(images, default=0)
    folding = Folding(_read_image(images[covered]) if covered else Image())
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
    size = _write(folder / f"cells-{last:08}{JOURNAL}", records)
    _forget(folder, covered)
    return folding.image(), last, size


def write_image(folder: Path, image: Image, covered: int, pause: Pause = lambda _: None) -> int:
    """Have an image on the disk that covers the journals up to a number, then forget those; its size. Raises OSError.

    ``pause`` is called between slices, with the time that the last one took.
    """
    size = _write(folder / f"cells-{covered:08}{IMAGE}", records_of(image), pause)
    _forget(folder, covered)
    return size


def _write(path: Path, records: Iterable[Unpacked], pause: Pause = lambda _: None) -> int:
    """Have a file on the disk, whole before it has its name; its size. Raises OSError."""
    return write_frames(path, (joined(record, keys, cells) for record, keys, cells in records), pause)


def _read_image(path: Path) -> Image:
    scanned = scan(path.read_bytes(), path.name, may_be_torn=False)
    folding, total = Folding(Image()), -1
    for found in _records(scanned, path.name):
        folding.add(found)
        total = found[0].total
    image = folding.image()
    if total != len(image.cells):
        raise JournalDamaged(f"{path.name} is to hold {total} cells, and holds {len(image.cells)}")
    return image


def _records(scanned: Scanned, name: str) -> tuple[Unpacked, ...]:
    try:
        return tuple(unpacked(payload) for payload in scanned.payloads)
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
