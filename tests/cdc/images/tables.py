"""Tables with images for tests, and log rows as Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlog.kernel.cql.collections import log_type
from ringlog.kernel.cql.types import deserialize
from ringlog.kernel.values import Column
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.split import Piece

Shown = tuple[int, tuple[Any, ...], dict[str, Any], tuple[str, ...]]


def image_table(
    columns: Sequence[Column],
    clustering: tuple[str, ...] = ("ck",),
    preimage: str = "full",
    postimage: bool = True,
    ttl: int = 0,
    partition: tuple[str, ...] = ("pk",),
) -> ImageTable:
    """Return a table with these columns and images."""
    fields = {
        "id": "i",
        "preimage": preimage,
        "postimage": postimage,
        "columns": [[column.name, column.type, column.static] for column in columns],
        "partition_key": partition,
        "clustering_key": clustering,
        "respelled": 0,
    }
    return ImageTable(fields, ttl)


def shown(piece: Piece, types: dict[str, str], clustering: Sequence[str] = ("int",)) -> Shown:
    """Return the decoded (operation, clustering key, columns, deleted columns); sets and maps become sets."""
    values: dict[str, Any] = {}
    for cell in piece.cells:
        kind = log_type(types.get(cell.column, "int"))
        found = deserialize(kind, cell.value or b"")
        values[cell.column] = set(found) if isinstance(found, tuple) else found
    key = tuple(deserialize(kind, part or b"") for kind, part in zip(clustering, piece.clustering_key, strict=False))
    return piece.operation, key, values, piece.deleted
