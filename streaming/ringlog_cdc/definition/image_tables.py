"""Tables that keep images in their CDC log, and their description in the context of a plan part.

Invariant: the images of a write do not depend on when the job processes it. Their columns are those of the table
version that reads the write. Their options are those of the newest version that counts at the write's append time.

A context contains only tables with images. It also has their earlier versions, for writes that one of these reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.rows.partition import table_columns
from ringlog.kernel.schema.stored import in_stored_names
from ringlog.kernel.values import Column


class ImageTable:
    """A table that keeps images.

    Attributes:
        columns: The columns, for merging and reading.
        ttl: Microseconds without a write until the state of a row is dropped. 0: it is kept.
        regular: Names of the regular columns in the order of the schema, without the key, as stored
            (``ringlog.kernel.schema.stored``).
        static: Names of the static columns, in the same form.
        known: The set of ``regular``.
        respelled: True if states may have cells of dropped columns.
        layouts: Cache of ``ringlog_cdc.bulk.flat_image``.
    """

    def __init__(self, fields: Mapping[str, Any], ttl: int) -> None:
        self.id: str = fields["id"]
        self.preimage: str = fields["preimage"]
        self.postimage: bool = fields["postimage"]
        self.ttl = ttl
        columns = tuple(Column(*column) for column in fields["columns"])
        keys = tuple(fields["partition_key"]), tuple(fields["clustering_key"])
        self.columns = table_columns(columns, keys[1])
        data = [column for column in columns if column.name not in (*keys[0], *keys[1])]
        self.static = tuple(column.name for column in data if column.static)
        self.regular = tuple(column.name for column in data if not column.static)
        self.known = frozenset(self.regular)
        self.respelled = bool(fields["respelled"])
        self.layouts: dict[Any, Any] = {}

    @property
    def is_flat(self) -> bool:
        """True if every column is one cell of a row: no static columns, multi-cell collections, or cells of dropped
        columns.
        """
        return not (self.static or self.columns.multi_cell or self.respelled)


def keeps_images(table: Table) -> bool:
    """Return True if the log of the table contains preimages or postimages."""
    return table.cdc.enabled and (table.cdc.preimage != "false" or table.cdc.postimage)


class EarlierImages:
    """Table versions for writes that the newest version does not read. At least one version of each table keeps images.

    Args:
        versions: (full name, table id, epoch of the version, its fields).
        ttl: See ``ImageTable``.
    """

    def __init__(self, versions: Iterable[Sequence[Any]] = (), ttl: int = 0) -> None:
        self._ttl = ttl
        every = tuple(versions)
        self._fields: dict[tuple[str, int], Mapping[str, Any]] = {
            (table, epoch): fields for _, table, epoch, fields in every
        }
        self._made: dict[tuple[str, int, int], ImageTable | None] = {}
        self.names = frozenset(name for name, *_ in every)

    def at(self, table: str, reading: int, counting: int) -> ImageTable | None:
        """Return the table with the columns of one version and the options of another, or None if these keep no images.

        Args:
            table: Table id.
            reading: Epoch of the version with the columns.
            counting: Epoch of the version with the options.
        """
        key = table, reading, counting
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, table: str, reading: int, counting: int) -> ImageTable | None:
        """Build the table for ``at``, which caches it."""
        if (table, reading) not in self._fields or (table, counting) not in self._fields:
            return None
        columns, options = self._fields[table, reading], self._fields[table, counting]
        if not _has_images(options):
            return None
        # States may have cells of columns of other versions.
        chosen = {"preimage": options["preimage"], "postimage": options["postimage"], "respelled": True}
        return ImageTable({**columns, **chosen}, self._ttl)


def images_context(state: ClusterState, ttl: int) -> dict[str, Any]:
    """Return the description of tables with images for a context.

    Args:
        state: Cluster state.
        ttl: See ``ImageTable``.
    """
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
    """Return (full name, id) of the tables in a stored context that keep images, also for earlier writes only."""
    newest = {(name, fields["id"]) for name, fields in context["images"].items()}
    return tuple(sorted(newest | {(name, table) for name, table, *_ in context["images_before"]}))


def images_end(context: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    """Return (full name, id, append time) of existing tables that stopped keeping images at that time."""
    found = []
    for name, lives in context.get("history", {}).get("lives", {}).items():
        until, versions = lives[-1]
        since, _, table, *_ = versions[-1]
        if until is None and name not in context["images"] and (name, table) in tables_with_images(context):
            found.append((name, table, since))
    return tuple(found)


def _fields(table: Table) -> dict[str, Any]:
    """Return the description of one table version."""
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
    """Return the earlier versions in a stored context."""
    return EarlierImages(context["images_before"], context["image_ttl_us"])


def image_tables(context: Mapping[str, Any]) -> dict[str, ImageTable]:
    """Return full name to table for the tables with images in a stored context."""
    ttl = context["image_ttl_us"]
    return {name: ImageTable(fields, ttl) for name, fields in context["images"].items()}
