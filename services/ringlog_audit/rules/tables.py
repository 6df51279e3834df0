"""A table version as the audit uses it: its columns in CDC rows and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Value, field
from ringlog_audit.rules.compound import AuditColumns
from ringlog_audit.rules.images import Wanted

MULTI_CELL = ("list", "set", "map", "udt")


class PublishedTable(Value):
    """A version of a table. ``columns`` and ``images`` use the column names of log rows; ``names`` uses the user's
    names.

    ``names``: columns outside the key. ``respelled``: a column was dropped or renamed. ``stored``: user's name to name
    in rows, for columns with different names. ``types``: type of each column outside the key, by its name in rows.
    """

    columns: AuditColumns
    names: frozenset[str]
    cdc: bool
    keys_only: bool
    images: Wanted | None = None
    id: str = ""
    respelled: bool = False
    stored: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def logged_names(self) -> frozenset[str]:
        """Return the columns outside the key, by their names in rows."""
        return frozenset(self.stored.get(name, name) for name in self.names)


def table_of_state(table: Table) -> PublishedTable:
    """Return the version of a table in a state."""
    return table_of_record(
        {
            "id": table.id,
            "columns": [{"name": one.name, "type": one.type, "static": one.static} for one in table.columns],
            "partition_key": table.partition_key,
            "clustering_key": table.clustering_key,
            "cdc": {
                "enabled": table.cdc.enabled,
                "delta": table.cdc.delta,
                "preimage": table.cdc.preimage,
                "postimage": table.cdc.postimage,
            },
            "respelled": table.respelled,
            "stored": [{"column": name, "stored": place} for name, place in table.stored],
        }
    )


def table_of_record(row: dict[str, Any]) -> PublishedTable:
    """Return the version of a table in a record of the topic ``schema``."""
    logged, key = as_logged(row), {*row["partition_key"], *row["clustering_key"]}
    own = [
        column
        for column in logged["columns"]
        if column["name"] not in (*logged["partition_key"], *logged["clustering_key"])
    ]
    return PublishedTable(
        _columns(logged, bool(row["stored"])),
        frozenset(column["name"] for column in row["columns"]) - key,
        bool(row["cdc"]["enabled"]),
        row["cdc"]["delta"] == "keys",
        _images(row["cdc"], own),
        row["id"],
        bool(row["respelled"]),
        _stored(row),
        {column["name"]: column["type"] for column in own},
    )


def as_logged(row: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a table with the column names that log rows use."""
    names = _stored(row)
    return row | {
        "columns": [column | {"name": names.get(column["name"], column["name"])} for column in row["columns"]],
        "partition_key": [names.get(name, name) for name in row["partition_key"]],
        "clustering_key": [names.get(name, name) for name in row["clustering_key"]],
    }


def collections_of(types: Mapping[str, str]) -> dict[str, str]:
    """Return the columns whose values are unfrozen collections."""
    return {name: kind for name, kind in types.items() if kind.strip().startswith(MULTI_CELL)}


def _stored(row: dict[str, Any]) -> dict[str, str]:
    return {one["column"]: one["stored"] for one in row["stored"]}


def _images(options: dict[str, Any], own: list[dict[str, Any]]) -> Wanted | None:
    if not options["enabled"] or (options["preimage"] == "false" and not options["postimage"]):
        return None
    return Wanted(
        options["preimage"],
        options["postimage"],
        tuple(column["name"] for column in own if not column["static"]),
        tuple(column["name"] for column in own if column["static"]),
    )


def _columns(row: dict[str, Any], renamed: bool) -> AuditColumns:
    types = {column["name"]: column["type"] for column in row["columns"]}
    return AuditColumns(
        partition=tuple(types[name] for name in row["partition_key"]),
        clustering=tuple(types[name] for name in row["clustering_key"]),
        static=frozenset(column["name"] for column in row["columns"] if column["static"]),
        collections=collections_of(types),
        renamed=renamed,
    )
