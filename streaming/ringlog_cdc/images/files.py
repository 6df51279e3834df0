"""The folder with the states of rows, as driver and tasks see it.

``ringlog_cdc.bulk.image_work`` makes the decisions. The simulator supplies a folder on a simulated disk.

Invariant: the mark and an emptied folder appear atomically. A crash leaves the state before or after, never a part.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from ringlog.files import replace_durably
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.images.store import ImageStore
from ringlog_cdc.stored_files import encode_file, read_file

FOLDER, BEGUN = "images", "begun.json"


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The folder ``images`` of a checkpoint. ``str`` gives its path."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def begun(self) -> bytes:
        """Return the JSON stored by ``mark``.

        Raises:
            FileNotFoundError: There is none.
            ValueError: The file is unreadable.
            CdcError: ``checkpoint_version``.
        """
        try:
            return read_file("image_starts", self.folder / BEGUN, json.dumps).encode()
        except ChainBroken as error:
            raise ValueError(error.message) from error

    def mark(self, text: str) -> None:
        """Store durably where images begin: a JSON value."""
        path = self.folder / BEGUN
        replace_durably(path, encode_file("image_starts", json.loads(text)), path.with_suffix(".draft"))

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
