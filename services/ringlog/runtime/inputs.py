"""Files that somebody names: none takes more memory than its kind may need, nor does a device without an end."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Final

STDIN: Final = Path("-")
INPUT_BYTES_MAX: Final = 64 * 2**20
"""Of a command, a plan, a script or a progress: far above any that can be carried out."""
PROPERTIES_BYTES_MAX: Final = 2**20
"""Of options, a ``name=value`` line each."""


class InputTooLarge(OSError):
    """A file, or a line of one, has more bytes than are read."""

    def __init__(self, path: Path, what: str, bytes_max: int) -> None:
        super().__init__(errno.EFBIG, f"{what} has more than {bytes_max:,} bytes", str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def read_input(path: Path, bytes_max: int = INPUT_BYTES_MAX) -> bytes:
    """The bytes of a file; ``-``: of standard input. Raises OSError, of which InputTooLarge is one."""
    with _opened(path) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise InputTooLarge(path, "it", bytes_max)
    return data


def read_text(path: Path, bytes_max: int = INPUT_BYTES_MAX) -> str:
    """The same as text in UTF-8, lines ended by a line feed. Raises OSError, UnicodeDecodeError."""
    return read_input(path, bytes_max).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, bytes_max: int = INPUT_BYTES_MAX) -> Iterator[bytes]:
    """The lines of a file of any length; each has at most ``bytes_max`` bytes. Raises as ``read_input``."""
    with _opened(path) as file:
        while line := file.readline(bytes_max + 1):
            if len(line) > bytes_max:
                raise InputTooLarge(path, "a line", bytes_max)
            yield line


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb")
