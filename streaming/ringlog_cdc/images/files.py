"""The folder in which states of rows lie, as the driver and the tasks see it: what is kept, apart from who decides.

``ringlog_cdc.bulk.image_work`` decides; the simulator gives it a folder on a simulated disk. A mark and an emptied
folder are there as a whole or not at all, whatever a crash leaves behind.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ringlog.files import replace_durably
from ringlog_cdc.images.store import ImageStore

FOLDER, BEGUN = "images", "begun.json"


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """``images`` of a checkpoint; ``str`` gives its path."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def begun(self) -> bytes:
        """What ``mark`` stored. Raises FileNotFoundError."""
        return (self.folder / BEGUN).read_bytes()

    def mark(self, text: str) -> None:
        """Store where images begin, for good."""
        path = self.folder / BEGUN
        replace_durably(path, text.encode(), path.with_suffix(".draft"))

    def begin(self) -> None:
        """Make the folder, empty."""
        self.forget()
        self.folder.mkdir()

    def forget(self) -> None:
        """Delete the folder if it is there."""
        if self.folder.exists():
            # Under another name it is nothing, whatever a crash leaves of it.
            gone = self.folder.with_suffix(".gone")
            shutil.rmtree(gone, ignore_errors=True)
            self.folder.rename(gone)
            shutil.rmtree(gone)

    def partitions(self) -> list[int]:
        """The source partitions of which there are states."""
        return sorted(int(path.stem) for path in self.folder.glob("*.db"))

    def has(self, partition: int) -> bool:
        """True if there are states of a source partition."""
        return (self.folder / f"{partition}.db").exists()

    def drop(self, partition: int) -> None:
        """Delete the states of a source partition."""
        for path in self.folder.glob(f"{partition}.db*"):
            path.unlink()

    def open(self, partition: int) -> ImageStore:
        """The states of a source partition, for a caller that closes them again before others open them."""
        return ImageStore(self.folder, partition)
