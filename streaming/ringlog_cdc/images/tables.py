"""Which tables keep images in their CDC log, and what making them needs to know; kept in the context of a plan part.

Contexts name only tables with images: those of a cluster that has none are what they always were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlog.client.cdc.table import FoldedShape
from ringlog.kernel.changes import TableChange
from ringlog.kernel.schema.stored import in_stored_names
from ringlog.kernel.state import ClusterState, Table, in_order
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
        self.respelled = bool(fields.get("respelled"))
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


def images_context(state: ClusterState, ttl: int) -> dict[str, Any]:
    """What a context says of tables with images: nothing if there are none."""
    found = {name: _fields(table) for name, table in in_order(state.tables) if keeps_images(table)}
    return {"images": found, "image_ttl_us": ttl} if found else {}


def _fields(table: Table) -> dict[str, Any]:
    respelled = {"respelled": table.respelled} if table.respelled else {}
    table = in_stored_names(table)
    return respelled | {
        "id": table.id,
        "preimage": table.cdc.preimage,
        "postimage": table.cdc.postimage,
        "columns": [[column.name, column.type, column.static] for column in table.columns],
        "partition_key": list(table.partition_key),
        "clustering_key": list(table.clustering_key),
    }


def image_tables(context: Mapping[str, Any]) -> dict[str, ImageTable]:
    """The tables with images of a stored context, by full name."""
    ttl = context.get("image_ttl_us", 0)
    return {name: ImageTable(name, fields, ttl) for name, fields in context.get("images", {}).items()}
