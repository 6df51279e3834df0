"""Files that are there for good when a call returns: whole, or as they were before."""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, data: bytes, draft: Path) -> None:
    """Have ``data`` in the file; ``draft``, in the same folder, is the caller's alone. Raises OSError."""
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder on the disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
