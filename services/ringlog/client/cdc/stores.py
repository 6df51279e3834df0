"""Where a consumer keeps its place: a text that ``CdcReader.place`` gives, stored whole or not at all.

Who keeps it in the same transaction as the effects of the changes has every change in effect exactly once; who keeps
it elsewhere, at least once: what was handled after the last ``save`` comes again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from ringlog.client.cdc.errors import BadStore, ProgressInUse
from ringlog.files import read_text, replace_durably


class ProgressStore(Protocol):
    """Keeps one text."""

    def load(self) -> str | None:
        """What was saved last, None if nothing was."""
        ...

    def save(self, text: str) -> None:
        """Replace it; durable on return."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class MemoryProgress:
    """In this object only: for tests, and for reading that is not to be resumed."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text

    def load(self) -> str | None:
        """What was saved last."""
        return self.text

    def save(self, text: str) -> None:
        """Replace it."""
        self.text = text

    def close(self) -> None:
        """Nothing to let go of."""


class FileLock:
    """``<path>.lock``, held until ``close`` or the end of the process, however it ends.

    Raises ProgressInUse, BadStore.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():  # a device would be replaced by what is saved
            raise BadStore(path, "a folder" if path.is_dir() else "no plain file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadStore(path, error.strerror) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise ProgressInUse(str(path)) from error

    def close(self) -> None:
        """Free it."""
        os.close(self._file)


class FileProgress:
    """A file, replaced as a whole. One process at a time (``FileLock``). Raises ProgressInUse, BadStore."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._lock = FileLock(self._path)

    def load(self) -> str | None:
        """What was saved last."""
        try:
            return read_text(self._path)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise BadStore(self._path, error) from error

    def save(self, text: str) -> None:
        """Replace it; on the disk when this returns."""
        try:
            replace_durably(self._path, text.encode(), Path(f"{self._path}.new"))
        except OSError as error:
            raise BadStore(self._path, error.strerror) from error

    def close(self) -> None:
        """Free the lock."""
        self._lock.close()


def log_record_of(path: Path) -> Path:
    """Where it is remembered, beside a consumer's own file, what was seen of the metadata log."""
    return path.with_name(f"{path.name}.log.json")
