"""Changes of the CDC log for others: plain JSON, Debezium's envelope, CloudEvents 1.0. Pure functions.

JSON has fewer types than CQL: bytes are ``0x`` and hex digits, a collection is an array (of pairs for a map or a list
of the log), a tuple an array, a user type an object, NaN and the infinities are text.

**Debezium.** The payload of a record as connectors write it without embedded schemas: before, after, source, op, ts_ms
(and in µs, ns), transaction. Key: partition and clustering columns by name.

=================  ====  ==========================================================================================
effect             op    before, after
=================  ====  ==========================================================================================
insert             c     preimage or null; postimage, else key and the columns written
update             u     likewise; columns that the write did not touch are absent without a postimage
row delete         d     preimage, else the key; null
partition delete   d     the partition key alone is the key: all rows under it are gone
range delete       m     no row has that key, and a sink that took it for one would delete too much: a message record,
                         as connectors write them for logical messages, whose content (base64 of JSON) has the bounds
=================  ====  ==========================================================================================

What no column of the table can take is in ``source.undecoded``, name to hex digits (``ringlog.client.cdc.rows``).

**CloudEvents.** Structured JSON mode, one event for each effect. ``id`` is stream, time and row number of the write:
with ``source`` it is unique, and a repeated delivery has the same. The extension ``partitionkey`` is the partition key.
``data.undecoded`` as above.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ringlog import __version__
from ringlog.client.cdc.row_changes import Bound, Effect, effects
from ringlog.client.cdc.rows import CdcChange
from ringlog.kernel.values import Micros
from ringlog.wire.avro.mapping import uuid_text

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
    """A typed value as JSON has it."""
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
    """Columns by name."""
    return {name: json_value(value) for name, value in names.items()}


def change_json(change: CdcChange) -> Json:
    """A change with all its rows of the log."""
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


def debezium(change: CdcChange, cluster: str, now_us: Micros) -> list[tuple[Json, Json]]:
    """(key, envelope) for each effect. ``now_us``: when the change is handed on."""
    return [(json_names(found.key), _envelope(change, found, cluster, now_us)) for found in effects(change)]


def _envelope(change: CdcChange, effect: Effect, cluster: str, now_us: Micros) -> Json:
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


def _before(effect: Effect) -> Json | None:
    if effect.before is not None:
        return json_names(effect.before)
    return json_names(effect.key) if effect.operation.endswith("delete") else None


def _after(effect: Effect) -> Json | None:
    if effect.operation.endswith("delete"):
        return None
    if effect.after is not None:
        return json_names(effect.after)
    return json_names(effect.key) | dict.fromkeys(effect.deleted) | json_names(effect.values)


def _source(change: CdcChange, effect: Effect, cluster: str) -> Json:
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


def _undecoded(effect: Effect) -> Json:
    """Nothing where everything is decoded, as it nearly always is: the shape is others'."""
    return {"undecoded": json_names(effect.undecoded)} if effect.undecoded else {}


def cloudevents(change: CdcChange, cluster: str) -> list[Json]:
    """An event for each effect."""
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


def _data(change: CdcChange, effect: Effect) -> Json:
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


def _bounds(effect: Effect) -> Json:
    assert effect.start is not None, "a range has a start"
    assert effect.end is not None, "a range has an end"
    return {"start": _bound(effect.start), "end": _bound(effect.end)}


def _bound(bound: Bound) -> Json:
    return {"key": json_names(bound.key), "inclusive": bound.inclusive}


def _instant(micros: Micros) -> str:
    """RFC 3339; of a timestamp that no calendar has, the nearest that one has."""
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return "9999-12-31T23:59:59.999999Z"
