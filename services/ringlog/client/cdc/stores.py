"""Storage of a consumer's progress: the text of ``CdcReader.place``, replaced atomically.

A consumer that stores the progress in the same transaction as the effects of the changes gets exactly-once effects. Any
other consumer gets at-least-once: changes after the last ``save`` are delivered again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from ringlog.client.cdc.errors import BadStore, ProgressInUse
from ringlog.files import read_text, replace_durably


class ProgressStore(Protocol):
    """A store for one text."""

    def load(self) -> str | None:
        """Return the last saved text, or None."""
        ...

    def save(self, text: str) -> None:
        """Replace the text. Durable when this returns."""
        ...

    def close(self) -> None:
        """Release the resources of the store."""
        ...


class MemoryProgress:
    """A store in memory, for tests and for reading that is not resumed."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text

    def load(self) -> str | None:
        return self.text

    def save(self, text: str) -> None:
        self.text = text

    def close(self) -> None:
        """No resources to release."""


class FileLock:
    """The lock file ``<path>.lock``, held until ``close`` or the end of the process, even after a crash.

    Raises ProgressInUse, BadStore.
    """

    def __init__(self, path: Path) -> None:
        # ``save`` replaces the file. A device such as /dev/null must not be replaced.
        if path.exists() and not path.is_file():
            raise BadStore(path, "a folder" if path.is_dir() else "not a regular file")
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
        """Release the lock."""
        os.close(self._file)


class FileProgress:
    """A store in a file that is replaced atomically, locked for one process. Raises ProgressInUse, BadStore."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._lock = FileLock(self._path)

    def load(self) -> str | None:
        try:
            return read_text(self._path)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise BadStore(self._path, error) from error

    def save(self, text: str) -> None:
        try:
            replace_durably(self._path, text.encode(), Path(f"{self._path}.new"))
        except OSError as error:
            raise BadStore(self._path, error.strerror) from error

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


def log_record_of(path: Path) -> Path:
    """Return the path of the file that records the seen metadata log of a consumer with progress in ``path``."""
    return path.with_name(f"{path.name}.log.json")
