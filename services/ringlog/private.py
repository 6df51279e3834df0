"""Files and folders that belong to one user: what a program keeps is nobody else's to read; and what a file system
refuses, as an error with a code.

``private_process`` sets the mask of everything that the process, and those that it starts, make from then on;
``private_folder`` makes a folder, or closes one that is ours; ``write_private`` replaces a file in one step, closed
from its first byte on. Errors of the file system come out as ``FolderUnusable`` and ``FileUnusable``, which say the
path.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

OWNER_ONLY_MASK = 0o077
FOLDER_MODE = 0o700
FILE_MODE = 0o600


class FileUnusable(OSError):
    """A file cannot be read or written: path and reason."""

    code = "file_unusable"

    @classmethod
    def of(cls, error: OSError, path: Path | None = None) -> Self:
        """The error, at this path or its own."""
        return cls(error.errno, error.strerror or str(error), error.filename if path is None else str(path))

    def __str__(self) -> str:
        where = "" if self.filename is None else f"{os.fsdecode(self.filename)}: "
        return f"{where}{self.strerror}"


class FolderUnusable(FileUnusable):
    """A folder cannot be made or written: path and reason."""

    code = "folder_unusable"


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a write is refused for that does not say which file it was."""
REFUSED = FULL | frozenset(
    {
        errno.EACCES,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.EMFILE,
        errno.ENAMETOOLONG,
        errno.ENFILE,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""What the machine or its user has to mend. A file that is missing is not among them: where that can be, who opens
it says what it means; anywhere else it is a defect, and shall show its trace."""


def refused_by_files(error: OSError) -> FileUnusable | None:
    """The error as one of the file system, with path and reason; None if it may be a defect."""
    if isinstance(error, FileUnusable):
        return error
    if (error.errno in REFUSED and error.filename is not None) or error.errno in FULL:
        return FileUnusable.of(error)
    return None


def private_process() -> None:
    """Files of this process and its children are made with mode 0600, folders with 0700."""
    os.umask(OWNER_ONLY_MASK)


def private_folder(path: Path, *marks: str, ours: bool = False) -> Path:
    """Have the folder, closed to others. Raises FolderUnusable.

    A folder that was there is closed only if it is ours to close: it is this user's, not one that everybody writes to
    (a sticky bit, as ``/tmp`` has), and empty, with one of our files (``marks``) in it, or known to be ``ours``.
    """
    try:
        made = not path.exists()
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        found = path.stat()
        is_open = stat.S_IMODE(found.st_mode) & OWNER_ONLY_MASK
        if is_open and found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX:
            names = set(os.listdir(path))
            if ours or made or not names or names & set(marks):
                path.chmod(FOLDER_MODE)
    except FileExistsError as error:
        raise FolderUnusable(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    except OSError as error:
        raise FolderUnusable.of(error, path) from error
    return path


def replaceable(path: Path) -> Path:
    """The path, where a file may take the place of what is there: of a file, or of nothing. Raises FileUnusable.

    A device or a pipe (``/dev/stdout``) would be gone for everybody.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # opening it there says why
        return path
    if not stat.S_ISREG(mode):
        is_folder = stat.S_ISDIR(mode)
        why = os.strerror(errno.EISDIR) if is_folder else "no plain file: name another one"
        raise FileUnusable(errno.EISDIR if is_folder else errno.EINVAL, why, str(path))
    return path


def write_private(path: Path, text: str) -> None:
    """Replace the file in one step; nobody else can read it at any time. Raises FileUnusable."""
    fresh = replaceable(path).with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            fresh.replace(path)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise
    except OSError as error:
        raise FileUnusable.of(error, path) from error
