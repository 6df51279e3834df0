"""Files and folders of a process: private to their user, replaced in one step, durable, and read within bounds.

``private_process`` sets the mask for all files that the process and its children create. ``private_folder`` creates a
folder, or closes one of ours. ``write_private`` replaces a file in one step, closed from its first byte on. After
``replace_durably`` and ``sync_folder`` the data is on disk. ``read_text`` and its kin read a file that a user named
within the bound of its kind, also if it is an endless device. Errors of the file system are raised as
``FolderUnusable`` and ``FileUnusable``, which name the path.

The folders that variables name are here, because reading all settings takes long to load.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Final, Self, TextIO

OWNER_ONLY_MASK = 0o077
FOLDER_MODE = 0o700
FILE_MODE = 0o600


class FileUnusable(OSError):
    """A file cannot be read or written: path and reason."""

    code = "file_unusable"

    @classmethod
    def of(cls, error: OSError, path: Path | None = None) -> Self:
        """Return the error with this path, or with its own."""
        return cls(error.errno, error.strerror or str(error), error.filename if path is None else str(path))

    def __str__(self) -> str:
        where = "" if self.filename is None else f"{os.fsdecode(self.filename)}: "
        return f"{where}{self.strerror}"


class FolderUnusable(FileUnusable):
    """A folder cannot be made or written: path and reason."""

    code = "folder_unusable"


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write that do not name the file."""
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
"""Errors that the operator of the machine fixes. A missing file is not among them. If a file may be missing, the caller
that opens it handles the error; everywhere else it is a defect and needs its trace."""


def refused_by_files(error: OSError) -> FileUnusable | None:
    """Return the error with path and reason if the file system caused it; None if it may be a defect."""
    if isinstance(error, FileUnusable):
        return error
    if (error.errno in REFUSED and error.filename is not None) or error.errno in FULL:
        return FileUnusable.of(error)
    return None


def private_process() -> None:
    """Create files of this process and its children with mode 0600, folders with 0700."""
    os.umask(OWNER_ONLY_MASK)


def private_folder(path: Path, *marks: str, ours: bool = False) -> Path:
    """Create a folder that only its owner can open. Raises FolderUnusable.

    The mode of an existing folder changes only if this user owns it and it has no sticky bit (``/tmp`` has one). The
    folder must also be empty, contain one of the ``marks``, or be known to be ``ours``.
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


def exposure(path: Path, found: os.stat_result, *, is_secret: bool) -> str:
    """Return why a file must not be used, or "" if it may. A device or a pipe is never used.

    Only this user and root may own or write a file that decides which peers the process trusts. A secret is closed to
    its group and to other users. The group may read a secret of root: a service's user is in the group of a mounted
    secret.
    """
    mode, own = found.st_mode, os.geteuid()
    if not stat.S_ISREG(mode):
        return f"{path} is not a regular file"
    if found.st_uid not in (own, 0):
        return f"{path} belongs to another user: chown {own} {path}"
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be changed by other users: chmod {'600' if is_secret else 'go-w'} {path}"
    if is_secret and mode & stat.S_IRWXO:
        return f"{path} is open to all users of this machine: chmod 600 {path}"
    if is_secret and mode & stat.S_IRWXG and found.st_uid == own:
        return f"{path} is open to its group: chmod 600 {path}"
    return ""


def replaceable(path: Path) -> Path:
    """Return the path if a new file may replace it: a plain file, or no file. Raises FileUnusable.

    Replacing a device or a pipe (``/dev/stdout``) would remove it for all users.
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
    """Replace the file in one step; other users can never read it. Raises FileUnusable."""
    with private_draft(path) as file:
        file.write(text)


@contextmanager
def private_draft(path: Path) -> Iterator[TextIO]:
    """Yield a new file, closed to others, that takes the place of ``path`` in one step at the end.

    An error leaves the file unchanged. Raises FileUnusable.
    """
    fresh = replaceable(path).with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                yield file
            fresh.replace(path)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise
    except OSError as error:
        raise FileUnusable.of(error, path) from error


def replace_durably(path: Path, data: bytes, draft: Path) -> None:
    """Write ``data`` to the file durably, through ``draft`` in the same folder. Raises OSError."""
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


STDIN: Final = Path("-")
INPUT_BYTES_MAX: Final = 64 * 2**20
"""The most bytes of a command, plan, script or progress: far above all that can be executed."""
PROPERTIES_BYTES_MAX: Final = 2**20
"""The most bytes of a file of options, one ``name=value`` a line."""


class InputTooLarge(OSError):
    """A file, or a line of one, has more bytes than are read."""

    def __init__(self, path: Path, kind: str, bytes_max: int) -> None:
        super().__init__(errno.EFBIG, f"{kind} has more than {bytes_max:,} bytes", str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def read_input(path: Path, bytes_max: int = INPUT_BYTES_MAX) -> bytes:
    """Return the bytes of a file, or of standard input for ``-``. Raises OSError, also as InputTooLarge."""
    with _opened(path) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise InputTooLarge(path, "it", bytes_max)
    return data


def read_text(path: Path, bytes_max: int = INPUT_BYTES_MAX) -> str:
    """Return the text of a UTF-8 file, with line feeds as line ends. Raises OSError, UnicodeDecodeError."""
    return read_input(path, bytes_max).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, bytes_max: int = INPUT_BYTES_MAX) -> Iterator[bytes]:
    """Yield the lines of a file of any length, each of at most ``bytes_max`` bytes. Raises as ``read_input``."""
    with _opened(path) as file:
        while line := file.readline(bytes_max + 1):
            if len(line) > bytes_max:
                raise InputTooLarge(path, "a line", bytes_max)
            yield line


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb")


def default_data_dir() -> Path:
    """``$XDG_STATE_HOME/ringlog``, or ``~/.local/state/ringlog``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ringlog"


def process_data_dir() -> Path:
    """Return the folder of the files of agents and nodes: ``RINGLOG_DATA_DIR``, or ``default_data_dir``."""
    given = os.environ.get("RINGLOG_DATA_DIR")
    return Path(given) if given else default_data_dir()


def delays_folder() -> Path | None:
    """The folder of the rules that delay the metadata log (``RINGLOG_DELAYS``); None outside tests."""
    found = os.environ.get("RINGLOG_DELAYS")
    return Path(found) if found else None
