"""Conversion of CDC changes to plain JSON, Debezium's envelope and CloudEvents 1.0. Pure functions.

JSON has fewer types than CQL. Bytes become ``0x`` and hex digits, a tuple becomes an array, a user type becomes an
object. A collection becomes an array; that of a map or list has pairs. NaN and the infinities become text.

**Debezium.** The payload of a record as connectors write it without embedded schemas: before, after, source, op, ts_ms
(also in µs and ns), transaction. The key contains partition and clustering columns by name.

=================  ====  ==========================================================================================
Effect             op    before, after
=================  ====  ==========================================================================================
Insert             c     Preimage or null; postimage, or else the key and the written columns.
Update             u     As for an insert. Without a postimage, columns that the write did not change are absent.
Row delete         d     Preimage, or else the key; null.
Partition delete   d     The key is the partition key only: it deletes all rows of the partition.
Range delete       m     A message record, because a range has no row key, and a sink would delete too much.
                         It has the form of logical messages; the content (base64 of JSON) contains the bounds.
=================  ====  ==========================================================================================

Values that do not fit a column of the table are in ``source.undecoded``, name to hex digits
(``ringlog.client.cdc.rows``).

**CloudEvents.** Structured JSON mode, one event for each effect. ``id`` consists of stream, time and row number of the
write. Together with ``source`` it is unique, and a repeated delivery has the same id. The extension ``partitionkey``
contains the partition key. ``data.undecoded`` has the same content as in Debezium's envelope.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ringlog import __version__
from ringlog.client.cdc.row_changes import Bound, RowEffect, effects
from ringlog.client.cdc.rows import CdcChange, TableTypes
from ringlog.kernel.values import Micros
from ringlog.wire.avro.mapping import uuid_text
from ringlog.wire.records import Mutation, MutationStatement

Json = dict[str, Any]

OPS: Mapping[str, str] = {
    "insert": "c",
    "update": "u",
    "row_delete": "d",
    "partition_delete": "d",
    "range_delete": "m",
}
MESSAGE_PREFIX = "ringlog.range_delete"
EVENT_TYPE = "ringlog.cdc."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def json_value(value: Any) -> Any:
    """Convert a typed value to JSON."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return json_names(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def json_names(names: Mapping[str, Any]) -> Json:
    """Convert columns by name to JSON."""
    return {name: json_value(value) for name, value in names.items()}


def change_json(change: CdcChange) -> Json:
    """Convert a change with all its log rows to JSON."""
    return {
        "table": change.name,
        "table_id": change.table_id,
        "epoch": change.epoch,
        "timestamp": change.timestamp,
        "generation": change.generation,
        "stream_id": change.stream_id.hex(),
        "time": uuid_text(change.time),
        "mutation_id": change.mutation_id,
        "partition": change.place[0],
        "offset": change.place[1],
        "rows": [
            {
                "operation": row.operation,
                "batch_seq_no": row.batch_seq_no,
                "ttl": row.ttl,
                "key": json_names(row.key),
                "values": json_names(row.values),
                "deleted": list(row.deleted),
                "deleted_elements": json_names(row.deleted_elements),
                "undecoded": json_names(row.undecoded),
            }
            for row in change.rows
        ],
    }


def mutation_json(mutation: Mutation, types: TableTypes) -> Json:
    """Convert a mutation to JSON. A value that does not fit its column becomes ``0x`` and hex digits."""
    head = ("mutation_id", "table_id", "table_version", "epoch", "timestamp", "ttl")
    return {
        "table": f"{mutation.keyspace}.{mutation.table}",
        **{name: getattr(mutation, name) for name in head},
        "partition_key": _key_json(mutation.partition_key, types.partition_key, types),
        **_statement_json(mutation, types),
        "more": [{"timestamp": one.timestamp, "ttl": one.ttl, **_statement_json(one, types)} for one in mutation.more],
    }


def _statement_json(statement: Mutation | MutationStatement, types: TableTypes) -> Json:
    found: Json = {
        "operation": statement.operation,
        "clustering_key": _key_json(statement.clustering_key, types.clustering_key, types),
        "cells": {cell.column: json_value(types.value(cell.column, cell.value)) for cell in statement.cells},
        "replaced": list(statement.replaced),
        "deleted_elements": {one.column: [json_value(key) for key in one.keys] for one in statement.deleted_elements},
    }
    bounds = statement.bounds
    if bounds is not None:
        for side, key, inclusive in (
            ("start", bounds.start, bounds.start_inclusive),
            ("end", bounds.end, bounds.end_inclusive),
        ):
            found[side] = {"key": _key_json(key, types.clustering_key, types), "inclusive": inclusive}
    return found


def _key_json(parts: Sequence[bytes | None], names: Sequence[str], types: TableTypes) -> Json:
    """Return key components by the names of their columns, or by their numbers if there are more."""
    named = [*names, *map(str, range(len(names), len(parts)))]
    return {name: json_value(types.value(name, part)) for name, part in zip(named, parts, strict=False)}


def debezium(change: CdcChange, cluster: str, now_us: Micros) -> list[tuple[Json, Json]]:
    """Return (key, envelope) of each effect. ``now_us``: the time of publication."""
    return [(json_names(found.key), _envelope(change, found, cluster, now_us)) for found in effects(change)]


def _envelope(change: CdcChange, effect: RowEffect, cluster: str, now_us: Micros) -> Json:
    envelope: Json = {
        "source": _source(change, effect, cluster),
        "transaction": None,
        "op": OPS[effect.operation],
        "ts_ms": now_us // 1_000,
        "ts_us": now_us,
        "ts_ns": now_us * 1_000,
    }
    if effect.operation == "range_delete":
        content = json.dumps(_bounds(effect), separators=(",", ":")).encode()
        return {"message": {"prefix": MESSAGE_PREFIX, "content": base64.b64encode(content).decode()}} | envelope
    return {"before": _before(effect), "after": _after(effect)} | envelope


def _before(effect: RowEffect) -> Json | None:
    if effect.before is not None:
        return json_names(effect.before)
    return json_names(effect.key) if effect.operation.endswith("delete") else None


def _after(effect: RowEffect) -> Json | None:
    if effect.operation.endswith("delete"):
        return None
    if effect.after is not None:
        return json_names(effect.after)
    return json_names(effect.key) | dict.fromkeys(effect.deleted) | json_names(effect.values)


def _source(change: CdcChange, effect: RowEffect, cluster: str) -> Json:
    return {
        "version": __version__,
        "connector": "ringlog",
        "name": cluster,
        "ts_ms": change.timestamp // 1_000,
        "ts_us": change.timestamp,
        "ts_ns": change.timestamp * 1_000,
        "snapshot": "false",
        "db": change.keyspace,
        "keyspace_name": change.keyspace,
        "table_name": change.table,
        "generation": change.generation,
        "stream_id": change.stream_id.hex(),
        "time": uuid_text(change.time),
        "batch_seq_no": effect.number,
        "operation": effect.operation,
    } | _undecoded(effect)


def _undecoded(effect: RowEffect) -> Json:
    """Return the field for undecoded values, or nothing. Regular records keep exactly Debezium's shape."""
    return {"undecoded": json_names(effect.undecoded)} if effect.undecoded else {}


def cloudevents(change: CdcChange, cluster: str) -> list[Json]:
    """Return one event for each effect."""
    identity = f"{change.stream_id.hex()}/{uuid_text(change.time)}"
    key = json.dumps([part.hex() for part in change.raw[0].partition_key], separators=(",", ":"))
    return [
        {
            "specversion": "1.0",
            "id": f"{identity}/{effect.number}",
            "source": f"/ringlog/{cluster}",
            "type": EVENT_TYPE + effect.operation,
            "subject": change.name,
            "time": _instant(change.timestamp),
            "datacontenttype": "application/json",
            "partitionkey": key,
            "data": _data(change, effect),
        }
        for effect in effects(change)
    ]


def _data(change: CdcChange, effect: RowEffect) -> Json:
    found: Json = {"table": change.name, "timestamp": change.timestamp, "key": json_names(effect.key)}
    found |= _undecoded(effect)
    if effect.operation == "range_delete":
        return found | _bounds(effect)
    return found | {
        "values": json_names(effect.values),
        "deleted": list(effect.deleted),
        "deleted_elements": json_names(effect.deleted_elements),
        "before": None if effect.before is None else json_names(effect.before),
        "after": None if effect.after is None else json_names(effect.after),
    }


def _bounds(effect: RowEffect) -> Json:
    assert effect.start is not None, "a range has a start"
    assert effect.end is not None, "a range has an end"
    return {"start": _bound(effect.start), "end": _bound(effect.end)}


def _bound(bound: Bound) -> Json:
    return {"key": json_names(bound.key), "inclusive": bound.inclusive}


def _instant(micros: Micros) -> str:
    """Format a timestamp as RFC 3339. A timestamp beyond the calendar becomes the last one."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return "9999-12-31T23:59:59.999999Z"
