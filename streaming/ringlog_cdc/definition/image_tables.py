"""Which tables keep images in their CDC log, and what making them needs to know; kept in the context of a plan part.

Columns of images are those of the version that reads the write. The options are those of the newest version that
counts at the write's append time. So the images of a write do not depend on when the job comes to it. A context has
the versions that a table with images had, for the writes that one of them may read. It names only such tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ringlog.client.cdc.copies.partition import FoldedShape
from ringlog.kernel.changes import TableChange
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.schema.stored import in_stored_names
from ringlog.kernel.values import CdcOptions, Column


class ImageTable:
    """A table that keeps images. ``ttl``: microseconds after which a row that nobody writes is forgotten; 0: never.

    ``regular`` and ``static`` are the names of its columns without those of the key, in the order of the schema: stored
    ones (``kernel.schema.stored``). ``respelled``: states may have cells of columns that were dropped.
    """

    def __init__(self, name: str, fields: Mapping[str, Any], ttl: int) -> None:
        self.id: str = fields["id"]
        self.preimage: str = fields["preimage"]
        self.postimage: bool = fields["postimage"]
        self.ttl = ttl
        columns = tuple(Column(*column) for column in fields["columns"])
        keys = tuple(fields["partition_key"]), tuple(fields["clustering_key"])
        keyspace, _, own = name.partition(".")
        self.shape = FoldedShape(TableChange(self.id, keyspace, own, columns, *keys, CdcOptions(True), "", 0, epoch=0))
        data = [column for column in columns if column.name not in (*keys[0], *keys[1])]
        self.static = tuple(column.name for column in data if column.static)
        self.regular = tuple(column.name for column in data if not column.static)
        self.known = frozenset(self.regular)
        self.respelled = bool(fields["respelled"])
        self.layouts: dict[Any, Any] = {}

    @property
    def is_flat(self) -> bool:
        """True if every column is one cell of a row, and states have cells of no other: no static ones, no collections
        of many cells, none that was dropped.
        """
        return not (self.static or self.shape.columns.multi_cell or self.respelled)


def keeps_images(table: Table) -> bool:
    """True if the log of the table holds the rows before or after its writes."""
    return table.cdc.enabled and (table.cdc.preimage != "false" or table.cdc.postimage)


class EarlierImages:
    """Versions of tables of which one keeps or kept images, for writes that the newest version does not read.

    ``versions``: (full name, table id, epoch of the version, its fields).
    """

    def __init__(self, versions: Iterable[Sequence[Any]] = (), ttl: int = 0) -> None:
        self._ttl = ttl
        self._fields = {(table, epoch): (name, fields) for name, table, epoch, fields in versions}
        self._made: dict[tuple[str, int, int], ImageTable | None] = {}
        self.names = frozenset(name for name, _ in self._fields.values())

    def at(self, table: str, reading: int, counting: int) -> ImageTable | None:
        """The table with that id, with the columns of its version of the epoch ``reading`` and the options of that of
        ``counting``; None if these keep no images.
        """
        key = table, reading, counting
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, table: str, reading: int, counting: int) -> ImageTable | None:
        if (table, reading) not in self._fields or (table, counting) not in self._fields:
            return None
        (name, columns), (_, options) = self._fields[table, reading], self._fields[table, counting]
        if not _has_images(options):
            return None
        # States may have cells of columns that other versions have.
        chosen = {"preimage": options["preimage"], "postimage": options["postimage"], "respelled": True}
        return ImageTable(name, {**columns, **chosen}, self._ttl)


def images_context(state: ClusterState, ttl: int) -> dict[str, Any]:
    """What a context says of tables with images."""
    newest = {name: _fields(table) for name, table in in_order(state.tables) if keeps_images(table)}
    earlier = [
        [name, version.table.id, version.table.changed, _fields(version.table)]
        for name, lives in in_order(state.table_lives)
        for life in lives
        if any(keeps_images(version.table) for version in life.versions)
        for version in life.versions
    ]
    return {"images": newest, "images_before": earlier, "image_ttl_us": ttl}


def tables_with_images(context: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(full name, id) of tables that keep images by a stored context, or kept some for writes that may still come."""
    newest = {(name, fields["id"]) for name, fields in context["images"].items()}
    return tuple(sorted(newest | {(name, table) for name, table, *_ in context["images_before"]}))


def images_end(context: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    """(full name, id, append time from which on they have no images) of living tables that kept images before."""
    found = []
    for name, lives in context.get("history", {}).get("lives", {}).items():
        until, versions = lives[-1]
        since, _, table, *_ = versions[-1]
        if until is None and name not in context["images"] and (name, table) in tables_with_images(context):
            found.append((name, table, since))
    return tuple(found)


def _fields(table: Table) -> dict[str, Any]:
    respelled, table = table.respelled, in_stored_names(table)
    return {
        "id": table.id,
        "respelled": respelled,
        "preimage": table.cdc.preimage if table.cdc.enabled else "false",
        "postimage": table.cdc.postimage and table.cdc.enabled,
        "columns": [[column.name, column.type, column.static] for column in table.columns],
        "partition_key": list(table.partition_key),
        "clustering_key": list(table.clustering_key),
    }


def _has_images(fields: Mapping[str, Any]) -> bool:
    return bool(fields["preimage"] != "false" or fields["postimage"])


def earlier_images(context: Mapping[str, Any]) -> EarlierImages:
    """The earlier versions of a stored context."""
    return EarlierImages(context["images_before"], context["image_ttl_us"])


def image_tables(context: Mapping[str, Any]) -> dict[str, ImageTable]:
    """The tables with images of a stored context, by full name."""
    ttl = context["image_ttl_us"]
    return {name: ImageTable(name, fields, ttl) for name, fields in context["images"].items()}
