"""The owner of a SQLite write-ahead log: a random id, stored in the file of rows and in each commit of its log.

A file may be restored from a backup next to a log from a later time. SQLite would apply the later pages to it without
an error, and the pages in between would be missing. To detect this, each start writes a new id into the file, and all
commits of its log contain the id. Both are read here without SQLite, which would merge them when it opens the file.

Source: https://www.sqlite.org/fileformat2.html, sections 1.6 (b-tree pages) and 4 (the write-ahead log).
"""

from __future__ import annotations

import re
import sqlite3
import struct
from pathlib import Path
from typing import Final

HEADER_BYTES: Final = 32
FRAME_BYTES: Final = 24
MAGICS: Final = (0x377F0682, 0x377F0683)
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 512, 65_536
_LEAF: Final = 0x0D
_CELL_HEAD_BYTES: Final = 64
"""An upper bound of the lengths and types that precede a text in a cell."""
_IDS = re.compile(rb'\{"log": "([0-9a-f]*)", "was": "([0-9a-f]*)"')

LogIds = tuple[str, str]
"""The id of a log. The commit that begins a log also has the id of the log before it; otherwise the second is empty."""


def ids_text(ids: LogIds) -> str:
    """Return the prefix of a mark that contains the ids, which is searched for in pages."""
    return f'"log": "{ids[0]}", "was": "{ids[1]}"'


def ids_in_file(path: Path) -> LogIds | None:
    """Return the ids in the file without its log, or None if it has none or cannot be read."""
    if not path.exists():
        return None
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            found = db.execute("SELECT mark FROM mark").fetchone()
        finally:
            db.close()
    except sqlite3.Error:
        return None
    return _ids_of(str(found[0]).encode()) if found else None


def ids_in_log(path: Path) -> LogIds | None:
    """Return the ids in the first commit of the log of ``path``, or None if the log has no commit."""
    log = path.with_name(path.name + "-wal")
    if not log.exists():
        return None
    with log.open("rb") as file:
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return None
        magic, page_bytes = struct.unpack_from(">I4xI", head)
        # After a power cut the log may have its full length but contain zeros. SQLite ignores such a log.
        if magic not in MAGICS or not PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX:
            return None
        salts = head[16:24]
        while len(frame := file.read(FRAME_BYTES + page_bytes)) == FRAME_BYTES + page_bytes and frame[8:16] == salts:
            if (found := _ids_in_page(frame[FRAME_BYTES:])) is not None:
                return found
    return None


def belong_together(path: Path) -> bool:
    """Return False only if the log certainly belongs to another file."""
    kept, logged = ids_in_file(path), ids_in_log(path)
    # The commit that begins a log names two ids, because a crash may leave the file with the earlier one.
    return kept is None or logged is None or kept[0] in logged


def _ids_in_page(page: bytes) -> LogIds | None:
    """Return the ids if this is the page of the mark: a leaf with one cell."""
    kind, cells, begin = struct.unpack_from(">BxxHxxxH", page)
    if kind != _LEAF or cells != 1:
        return None
    return _ids_of(page[begin : begin + _CELL_HEAD_BYTES + 128])


def _ids_of(data: bytes) -> LogIds | None:
    found = _IDS.search(data)
    return (found[1].decode(), found[2].decode()) if found else None
