"""Identity of a checkpoint towards its lake, created when the checkpoint first uses the lake.

Delta's idempotence is the rule that an author has committed a number already. The numbers are those of the plans, which
belong to a checkpoint: another checkpoint starts again from 0. The author is therefore the checkpoint, identified by a
random id in ``<checkpoint>/lake.json``. If a checkpoint is lost, its id is lost too, and no commit of its successor is
skipped by mistake.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ringlog.files import replace_durably
from ringlog.kernel.values import Value, asdict
from ringlog_cdc.errors import CdcError
from ringlog_cdc.stored_files import create_if_absent, encode_file, read_file, typed

FILE, FILLED, MADE = "lake.json", "lake.filled", "lake.tables"
"""Files of the checkpoint: its identity, the mark of a filled lake, and the folder of its tables."""


class Identity(Value):
    """A checkpoint as an author in its lake.

    Attributes:
        root: The lake's folder or address.
        tables: Patterns of the tables that the lake gets, separated by commas. Empty: all tables.
    """

    cluster_id: str
    writer: str
    checkpoint: str
    root: str
    tables: str = ""

    def selects(self, table: str) -> bool:
        """Return True if the lake gets the rows of a table."""
        return not self.tables or any(fnmatchcase(table, pattern) for pattern in self.tables.split(","))

    @property
    def author(self) -> str:
        """Author of the checkpoint's commits to Delta tables."""
        return f"{author_prefix(self.cluster_id)}{self.writer}/{self.checkpoint}"


def author_prefix(cluster_id: str) -> str:
    """Return the common prefix of all authors of a cluster."""
    return f"ringlog/{cluster_id}/"


def identify(
    checkpoint: Path, cluster_id: str, writer: str, root: str | None, patterns: Iterable[str] = ()
) -> Identity | None:
    """Return the identity of a checkpoint for the lake ``root``, or None if the job has no lake.

    A checkpoint stays with its lake and its tables, because a lake that missed rows would have gaps.

    Raises:
        CdcError: ``lake_left_out``, ``lake_changed`` or ``lake_tables_changed``.
    """
    tables = ",".join(sorted(set(patterns)))
    path = checkpoint / FILE
    if not path.exists():
        if root is None:
            return None
        made = Identity(cluster_id, writer, uuid.uuid4().hex, root, tables)
        create_if_absent(path, encode_file("lake", asdict(made)))
    found = read_file("lake", path, identity_of)
    if root is None:
        raise CdcError(
            "lake_left_out",
            f"this checkpoint also writes to the lake {found.root}",
            f"pass --lake {found.root}; to stop writing to that lake, delete {path}",
        )
    if found.root != root:
        raise CdcError(
            "lake_changed",
            f"this checkpoint writes to the lake {found.root}, not to {root}",
            (
                f"pass the same --lake again; to switch to another lake, delete {path}: the job then fills the "
                "new lake from the CDC topic"
            ),
        )
    if found.tables != tables:
        raise CdcError(
            "lake_tables_changed",
            f"this checkpoint writes {found.tables or 'all tables'} to its lake, not {tables or 'all tables'}",
            (
                f"pass the same --lake-table again; to change the tables, delete {path}: the job then adds the rows "
                "that the CDC topic still has of the selected tables"
            ),
        )
    return found


def identity_of(content: Any) -> Identity:
    """Return the identity in the content of a file. Raises TypeError or ValueError."""
    found = Identity(**{name: typed(value, str) for name, value in content.items()})
    if asdict(found) != content:
        raise ValueError("a field is missing")
    return found


def is_filled(checkpoint: Path) -> bool:
    """Return True once the lake has all rows that the CDC topic had when this checkpoint first used the lake."""
    return (checkpoint / FILLED).exists()


def mark_filled(checkpoint: Path, identity: Identity) -> None:
    """Mark the lake as filled."""
    create_if_absent(checkpoint / FILLED, encode_file("lake_filled", identity.checkpoint))


def forget_filled(checkpoint: Path, identity: Identity) -> None:
    """Remove the mark of another identity."""
    path = checkpoint / FILLED
    if path.exists() and read_file("lake_filled", path, _text) != identity.checkpoint:
        os.unlink(path)


class Made:
    """The tables that a checkpoint has created or found in its lake.

    A missing one was lost, unless it belonged to an earlier table with that name.

    Each table has a mark, a file with the id that it had in the cluster. An empty id means that the cluster had no
    table with that name. For one thread.
    """

    def __init__(self, checkpoint: Path, identity: Identity) -> None:
        self._identity = identity
        self._folder = checkpoint / MADE
        self._folder.mkdir(exist_ok=True)
        self._noted: dict[str, str] = {}

    def note(self, table: str, table_id: str) -> None:
        """Record that the lake has the table with that id."""
        mark = self._mark(table)
        if self._noted.get(table) == table_id:
            return
        data = encode_file("lake_table", table_id)
        if not create_if_absent(mark, data) and table_id and _held(mark) != table_id:
            replace_durably(mark, data, mark.with_name(f".{mark.name}"))
        self._noted[table] = table_id

    def check(self, table: str, table_id: str) -> None:
        """Check whether a missing table, which now has rows, was lost. Raises CdcError ``lake_lost``."""
        mark = self._mark(table)
        self._noted.pop(table, None)
        known = _held(mark)
        # An unknown id on either side counts as the same table: losing rows silently would be worse than asking.
        if known is not None and (known == table_id or not (known and table_id)):
            ends = f"restore the table; to create it again without its earlier rows, delete {mark}"
            raise CdcError("lake_lost", f"the lake {self._identity.root} has lost the table of {table}", ends)

    def _mark(self, table: str) -> Path:
        return self._folder / f"{self._identity.checkpoint}.{table}"


def _held(mark: Path) -> str | None:
    """Return the id in a mark, or None without a mark."""
    try:
        return read_file("lake_table", mark, _text)
    except FileNotFoundError:
        return None


def _text(content: Any) -> str:
    return typed(content, str)
