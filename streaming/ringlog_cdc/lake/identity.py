"""Who writes to a lake: one identity for each checkpoint, made when the checkpoint first meets the lake.

Delta's rule of idempotence is *this author has committed this number already*. The numbers are those of the plans, and
plans belong to a checkpoint: with another checkpoint they begin anew. So the author is the checkpoint, by a random id
in ``<checkpoint>/lake.json``; a checkpoint that was lost takes its id along, and nothing is skipped in silence.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from ringlog.files import replace_durably
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.plan.store import create_if_absent

FILE, FILLED, MADE = "lake.json", "lake.filled", "lake.tables"


@dataclass(frozen=True, slots=True)
class Identity:
    """Of a checkpoint towards its one lake. ``root``: the lake's folder or address."""

    cluster_id: str
    writer: str
    checkpoint: str
    root: str

    @property
    def author(self) -> str:
        """The name under which it commits to Delta tables."""
        return f"{author_prefix(self.cluster_id)}{self.writer}/{self.checkpoint}"


def author_prefix(cluster_id: str) -> str:
    """What the names of all authors of a cluster begin with."""
    return f"ringlog/{cluster_id}/"


def identify(checkpoint: Path, cluster_id: str, writer: str, root: str | None) -> Identity | None:
    """The identity of a checkpoint towards the lake ``root``; None if it has none and none is asked for.

    Raises CdcError ``lake_left_out`` or ``lake_changed``: a lake gets all rows or it would have holes.
    """
    path = checkpoint / FILE
    if not path.exists():
        if root is None:
            return None
        made = Identity(cluster_id, writer, uuid.uuid4().hex, root)
        create_if_absent(path, json.dumps(asdict(made), sort_keys=True).encode() + b"\n")
    found = decode_identity(path.read_bytes())
    if root is None:
        raise CdcError(
            "lake_left_out",
            f"this checkpoint writes to the lake {found.root}, too",
            f"start with --lake {found.root}; to leave it for good delete {path}, and it gets no more rows",
        )
    if found.root != root:
        raise CdcError(
            "lake_changed",
            f"this checkpoint writes to the lake {found.root}, not to {root}",
            f"start with the one it began with; for another one delete {path}: it is then filled from the CDC topic",
        )
    return found


def decode_identity(data: bytes) -> Identity:
    """The identity in a stored file; raises ChainBroken for other bytes."""
    try:
        fields = json.loads(data)
        found = Identity(**fields)
        if not all(type(value) is str for value in asdict(found).values()):
            raise TypeError("a field is no text")
    except (ValueError, TypeError, RecursionError) as error:
        raise ChainBroken(f"{FILE} of the checkpoint is unreadable: {error}") from error
    return found


def is_filled(checkpoint: Path) -> bool:
    """True once the lake has all rows of the CDC topic that were there when this checkpoint met it."""
    return (checkpoint / FILLED).exists()


def mark_filled(checkpoint: Path, identity: Identity) -> None:
    """The lake has them."""
    create_if_absent(checkpoint / FILLED, identity.checkpoint.encode() + b"\n")


def forget_filled(checkpoint: Path, identity: Identity) -> None:
    """Take a mark back that another identity has left behind."""
    path = checkpoint / FILLED
    if path.exists() and path.read_text(encoding="utf-8").strip() != identity.checkpoint:
        os.unlink(path)


class Made:
    """The tables that a checkpoint has made or met in its lake: one that is not there any more was lost, unless it was
    of another table of the cluster that had the name before.

    A table has a mark by its name, which holds the id that it had in the cluster; empty: the cluster had no table of
    that name any more. For use by one thread.
    """

    def __init__(self, checkpoint: Path, identity: Identity) -> None:
        self._identity = identity
        self._folder = checkpoint / MADE
        self._folder.mkdir(exist_ok=True)
        self._noted: dict[str, str] = {}

    def note(self, table: str, table_id: str) -> None:
        """It is there, for the table of that id."""
        mark = self._mark(table)
        if self._noted.get(table) == table_id:
            return
        if not create_if_absent(mark, table_id.encode()) and table_id and _held(mark) != table_id:
            replace_durably(mark, table_id.encode(), mark.with_name(f".{mark.name}"))
        self._noted[table] = table_id

    def check(self, table: str, table_id: str) -> None:
        """It is not there, and the table of that id has rows for it. Raises CdcError ``lake_lost`` if it was."""
        mark = self._mark(table)
        self._noted.pop(table, None)
        known = _held(mark)
        if known is not None and (known == table_id or not (known and table_id)):
            ends = f"bring it back; if it is to begin anew, without the rows that it had, delete {mark}"
            raise CdcError("lake_lost", f"{self._identity.root} has lost the table of {table}", ends)

    def _mark(self, table: str) -> Path:
        return self._folder / f"{self._identity.checkpoint}.{table}"


def _held(mark: Path) -> str | None:
    try:
        return mark.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
