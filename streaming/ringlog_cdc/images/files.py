"""The folder with the states of rows, as driver and tasks see it.

``ringlog_cdc.bulk.image_work`` makes the decisions. The simulator supplies a folder on a simulated disk.

Invariant: the mark and an emptied folder appear atomically. A crash leaves the state before or after, never a part.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from ringlog.files import replace_durably
from ringlog.kernel.values import Value
from ringlog_cdc.images.store import ImageStore
from ringlog_cdc.stored_files import encode_file, read_file, typed

FOLDER, BEGUN = "images", "begun.json"


class ImageFiles(Value):
    """The folder ``images`` of a checkpoint. ``str`` gives its path."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def begun(self) -> dict[int, int]:
        """Return source partition to the offset where images began, as stored by ``mark``.

        Raises:
            FileNotFoundError: There is none.
            ChainBroken: The file is unreadable.
            CdcError: ``checkpoint_version``.
        """
        return read_file(
            "image_starts",
            self.folder / BEGUN,
            lambda starts: {int(partition): typed(offset, int) for partition, offset in starts.items()},
        )

    def mark(self, starts: Mapping[int, int]) -> None:
        """Store durably where images begin."""
        path = self.folder / BEGUN
        named = {str(partition): offset for partition, offset in starts.items()}
        replace_durably(path, encode_file("image_starts", named), path.with_suffix(".draft"))

    def begin(self) -> None:
        """Create the folder, empty."""
        self.forget()
        self.folder.mkdir()

    def forget(self) -> None:
        """Delete the folder if it exists."""
        if self.folder.exists():
            # Rename first: a crash during the deletion then leaves no partial folder under this name.
            gone = self.folder.with_suffix(".gone")
            shutil.rmtree(gone, ignore_errors=True)
            self.folder.rename(gone)
            shutil.rmtree(gone)

    def partitions(self) -> list[int]:
        """Return the source partitions with states."""
        return sorted(int(path.stem) for path in self.folder.glob("*.db"))

    def has(self, partition: int) -> bool:
        """Return True if the source partition has states."""
        return (self.folder / f"{partition}.db").exists()

    def drop(self, partition: int) -> None:
        """Delete the states of a source partition."""
        for path in self.folder.glob(f"{partition}.db*"):
            path.unlink()

    def open(self, partition: int) -> ImageStore:
        """Open the states of a source partition. Others wait until the caller closes them."""
        return ImageStore(self.folder, partition)
