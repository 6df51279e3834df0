"""What the change topics say about generations and tables, read like any consumer would."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from ringlog.audit.compound import AuditColumns
from ringlog.audit.history import ColumnSteps, columns_over_time, published_entries
from ringlog.audit.images import Wanted
from ringlog.audit.leeway import always, leeways_of
from ringlog.audit.rules import AuditRules, PublishedTable
from ringlog.audit.streams import PublishedGeneration, PublishedRange
from ringlog.audit.topics import AuditError, Decoder, latest


def published_rules(
    bootstrap: str, cluster: str, decoder: Decoder, leeway_us: int | None, archived: Iterable[bytes] = ()
) -> AuditRules:
    """All that the verdict on a write depends on; raises AuditError where the topics contradict one another.

    ``leeway_us``: None: as the metadata log has it. ``archived``: records that this has no more.
    """
    entries = published_entries(bootstrap, cluster, decoder, archived) if leeway_us is None else []
    leeways = leeways_of(entries, decoder) if leeway_us is None else always(leeway_us)
    history = columns_over_time(entries, decoder)
    return AuditRules(
        _cluster_id(bootstrap, cluster, decoder),
        _tables(bootstrap, cluster, decoder, history),
        published_generations(bootstrap, cluster, decoder),
        leeways,
        history,
    )


def published_generations(bootstrap: str, cluster: str, decoder: Decoder) -> list[PublishedGeneration]:
    """The generations by ascending timestamp, from ``cdc-generations`` and ``cdc-streams``."""
    ranges: dict[str, dict[str, list[PublishedRange]]] = {}
    for value in latest(bootstrap, f"{cluster}.cdc-streams").values():
        row = decoder.decode(value)
        streams = tuple(bytes(stream) for stream in row["streams"])
        by_table = ranges.setdefault(row["generation"], {})
        # Records of an earlier release have no table.
        by_table.setdefault(row.get("table", ""), []).append(PublishedRange(row["end"], row["ignore_msb"], streams))
    found = []
    for value in latest(bootstrap, f"{cluster}.cdc-generations").values():
        row = decoder.decode(value)
        tables = {name: tuple(sorted(own, key=lambda r: r.end)) for name, own in ranges.get(row["id"], {}).items()}
        if row["status"] == "expired" and not tables:
            found.append(PublishedGeneration(row["timestamp"], (), row["committed"]))
            continue
        everything = [one for own in tables.values() for one in own]
        streams_found = sum(len(r.streams) for r in everything)
        if (len(everything), streams_found) != (row["ranges"], row["streams"]) or "" not in tables:
            raise AuditError(
                f"generation {row['id']} has {row['ranges']} ranges with {row['streams']} streams; "
                f"{len(everything)} with {streams_found} are published"
            )
        found.append(PublishedGeneration(row["timestamp"], tables.pop(""), row["committed"], tables))
    return sorted(found, key=lambda g: g.timestamp)


def _tables(bootstrap: str, cluster: str, decoder: Decoder, history: ColumnSteps) -> dict[str, PublishedTable]:
    tables = {}
    for key, value in latest(bootstrap, f"{cluster}.schema").items():
        if key.startswith(b"table/"):
            row = decoder.decode(value)
            name, logged = f"{row['keyspace']}.{row['name']}", as_logged(row)
            tables[name] = PublishedTable(
                _columns(logged, history.kinds.get(name, {}), bool(row.get("stored"))),
                _names(row),
                bool(row["cdc"]["enabled"]),
                row["cdc"]["delta"] == "keys",
                _images(logged),
                row["id"],
                bool(row.get("respelled")),
                _stored(row),
            )
    return tables


def as_logged(row: dict[str, Any]) -> dict[str, Any]:
    """The record of a table with columns as rows of the log call them. Records of an earlier release have no others."""
    names = _stored(row)
    return row | {
        "columns": [column | {"name": names.get(column["name"], column["name"])} for column in row["columns"]],
        "partition_key": [names.get(name, name) for name in row["partition_key"]],
        "clustering_key": [names.get(name, name) for name in row["clustering_key"]],
    }


def _stored(row: dict[str, Any]) -> dict[str, str]:
    return {one["column"]: one["stored"] for one in row.get("stored", ())}


def _images(row: dict[str, Any]) -> Wanted | None:
    options = row["cdc"]
    if not options["enabled"] or (options["preimage"] == "false" and not options["postimage"]):
        return None
    own = [column for column in row["columns"] if column["name"] not in (*row["partition_key"], *row["clustering_key"])]
    return Wanted(
        options["preimage"],
        options["postimage"],
        tuple(column["name"] for column in own if not column.get("static")),
        tuple(column["name"] for column in own if column.get("static")),
    )


def _names(row: dict[str, Any]) -> frozenset[str]:
    key = {*row["partition_key"], *row["clustering_key"]}
    return frozenset(column["name"] for column in row["columns"]) - key


def _columns(row: dict[str, Any], ever: dict[str, tuple[str, bool]], renamed: bool) -> AuditColumns:
    """``ever``: (type, static) of the columns that there ever were: rows of before have those that were dropped."""
    types = {name: kind for name, (kind, _) in ever.items()}
    types |= {column["name"]: column["type"] for column in row["columns"]}
    static = {name for name, (_, is_static) in ever.items() if is_static}
    return AuditColumns(
        partition=tuple(types[name] for name in row["partition_key"]),
        clustering=tuple(types[name] for name in row["clustering_key"]),
        static=frozenset(static | {column["name"] for column in row["columns"] if column.get("static")}),
        collections={
            name: kind for name, kind in types.items() if kind.strip().startswith(("list", "set", "map", "udt"))
        },
        renamed=renamed,
    )


def _cluster_id(bootstrap: str, cluster: str, decoder: Decoder) -> bytes:
    found = [decoder.decode(value)["cluster_id"] for value in latest(bootstrap, f"{cluster}.epochs").values()]
    if not found:
        raise AuditError(f"nothing is published in {cluster}.epochs: is the publisher running?")
    return uuid.UUID(found[0]).bytes
