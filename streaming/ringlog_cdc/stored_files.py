"""Files of a checkpoint: one form for all of them, with the version of the content.

A file is one line of canonical JSON. ``file`` names its kind, ``version`` the version of its kind, and ``content`` has
everything else. A database has its version in ``user_version``.

Invariants:

* The version is checked before the content. A file with another version, or without one, is refused. No release
  converts files.
* A file has exactly the bytes of its encoding. Anything else was damaged or edited.
* A created file appears completely or not at all. It is written under another name, synced, and linked to its final
  name, which fails if that exists. Then the folder is synced.

Locks and the marks of finished plans are empty. They need no version.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from ringlog.files import sync_folder
from ringlog_cdc.errors import ChainBroken, other_version

Content = TypeVar("Content")

VERSIONS: Final = {
    "claim": 1,
    "context": 1,
    "images": 1,
    "image_starts": 1,
    "lake": 1,
    "lake_filled": 1,
    "lake_table": 1,
    "plan": 1,
    "recovery": 1,
}
"""Kind of a file to the version that this release reads and writes."""


def encode_file(kind: str, content: Any) -> bytes:
    """Encode the content of a file, which JSON can represent."""
    fields = {"file": kind, "version": VERSIONS[kind], "content": content}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def decode_file(kind: str, data: bytes, path: Path | str, convert: Callable[[Any], Content]) -> Content:
    """Decode the bytes of ``encode_file``.

    Args:
        kind: Expected kind.
        data: The bytes.
        path: Name of the file, for errors.
        convert: Function that checks and converts the content. May raise any error of a wrong type or value.

    Raises:
        CdcError: ``checkpoint_version``.
        ChainBroken: The bytes are not a file of this kind.
    """
    try:
        fields = json.loads(data)
        check_version(kind, fields.get("version"), path)
        content = convert(fields["content"])
        if encode_file(kind, fields["content"]) != data:
            raise ValueError(f"it is not the encoding of a file of kind {kind}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ChainBroken(f"{path} is unreadable: {type(error).__name__}: {error}") from error
    return content


def read_file(kind: str, path: Path, convert: Callable[[Any], Content]) -> Content:
    """Read and decode a file. Raises FileNotFoundError, and the errors of ``decode_file``."""
    return decode_file(kind, path.read_bytes(), path, convert)


def check_version(kind: str, found: object, path: Path | str) -> None:
    """Check the version of a file. None: it has none. Raises CdcError ``checkpoint_version``."""
    known = VERSIONS[kind]
    if type(found) is not int or found != known:
        raise other_version(path, found, known)


def typed(value: Any, kind: type[Content]) -> Content:
    """Return the value if it has exactly this type. Raises TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def create_if_absent(path: Path, data: bytes) -> bool:
    """Create a file durably and atomically. Return False, without a change, if it exists."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    sync_folder(path.parent)
    return True
