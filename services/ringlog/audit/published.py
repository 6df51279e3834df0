"""What the change topics say about generations and tables, read like any consumer would."""

from __future__ import annotations

import uuid
from typing import Any

from ringlog.audit.compound import Columns
from ringlog.audit.history import columns_over_time, published_entries
from ringlog.audit.images import Wanted
from ringlog.audit.leeway import always, leeways_of
from ringlog.audit.rules import PublishedTable, Rules
from ringlog.audit.streams import PublishedGeneration, PublishedRange
from ringlog.audit.topics import AuditError, Decoder, latest


def published_rules(bootstrap: str, cluster: str, decoder: Decoder, leeway_us: int | None) -> Rules:
    """All that the verdict on a write depends on; raises AuditError where the topics contradict one another.

    ``leeway_us``: None: as the metadata log has it.
    """
    entries = published_entries(bootstrap, cluster, decoder) if leeway_us is None else []
    leeways = leeways_of(entries, decoder) if leeway_us is None else always(leeway_us)
    return Rules(
        _cluster_id(bootstrap, cluster, decoder),
        _tables(bootstrap, cluster, decoder),
        published_generations(bootstrap, cluster, decoder),
        leeways,
        columns_over_time(entries, decoder),
    )


def published_generations(bootstrap: str, cluster: str, decoder: Decoder) -> list[PublishedGeneration]:
    """The generations by ascending timestamp, from ``cdc-generations`` and ``cdc-streams``."""
    ranges: dict[str, list[PublishedRange]] = {}
    for value in latest(bootstrap, f"{cluster}.cdc-streams").values():
        row = decoder.decode(value)
        streams = tuple(bytes(stream) for stream in row["streams"])
        ranges.setdefault(row["generation"], []).append(PublishedRange(row["end"], row["ignore_msb"], streams))
    found = []
    for value in latest(bootstrap, f"{cluster}.cdc-generations").values():
        row = decoder.decode(value)
        own = sorted(ranges.get(row["id"], []), key=lambda r: r.end)
        if row["status"] == "expired" and not own:
            found.append(PublishedGeneration(row["timestamp"], (), row["committed"]))
            continue
        streams_found = sum(len(r.streams) for r in own)
        if (len(own), streams_found) != (row["ranges"], row["streams"]) or not own:
            raise AuditError(
                f"generation {row['id']} has {row['ranges']} ranges with {row['streams']} streams; "
                f"{len(own)} with {streams_found} are published"
            )
        found.append(PublishedGeneration(row["timestamp"], tuple(own), row["committed"]))
    return sorted(found, key=lambda g: g.timestamp)


def _tables(bootstrap: str, cluster: str, decoder: Decoder) -> dict[str, PublishedTable]:
    tables = {}
    for key, value in latest(bootstrap, f"{cluster}.schema").items():
        if key.startswith(b"table/"):
            row = decoder.decode(value)
            tables[f"{row['keyspace']}.{row['name']}"] = PublishedTable(
                _columns(row), _names(row), bool(row["cdc"]["enabled"]), row["cdc"]["delta"] == "keys", _images(row)
            )
    return tables


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


def _columns(row: dict[str, Any]) -> Columns:
    types = {column["name"]: column["type"] for column in row["columns"]}
    return Columns(
        partition=tuple(types[name] for name in row["partition_key"]),
        clustering=tuple(types[name] for name in row["clustering_key"]),
        static=frozenset(column["name"] for column in row["columns"] if column.get("static")),
        collections={
            name: kind for name, kind in types.items() if kind.strip().startswith(("list", "set", "map", "udt"))
        },
    )


def _cluster_id(bootstrap: str, cluster: str, decoder: Decoder) -> bytes:
    found = [decoder.decode(value)["cluster_id"] for value in latest(bootstrap, f"{cluster}.epochs").values()]
    if not found:
        raise AuditError(f"nothing is published in {cluster}.epochs: is the publisher running?")
    return uuid.UUID(found[0]).bytes
