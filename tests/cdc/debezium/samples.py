"""Change events in the shapes that Debezium documents for its connectors, and matching tables."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import CdcOptions, Column

AT_US = 1_700_000_000_123_456
AT_MS = AT_US // 1_000


def table(full_name: str, columns: dict[str, str], key: tuple[str, ...], clustering: tuple[str, ...] = ()) -> Table:
    """Return a table with these columns."""
    keyspace, _, name = full_name.partition(".")
    types = tuple(Column(column, kind) for column, kind in columns.items())
    return Table("t", keyspace, name, types, key, clustering, CdcOptions(True), "v", 1)


CUSTOMERS = table(
    "inventory.customers",
    {"id": "int", "first_name": "text", "last_name": "text", "email": "text", "changed": "timestamp", "owed": "double"},
    ("id",),
)
READINGS = table(
    "ks.readings", {"device": "text", "at": "bigint", "value": "double", "note": "text"}, ("device",), ("at",)
)


def postgres(op: str, before: Any, after: Any, at_us: int = AT_US, **extra: Any) -> dict[str, Any]:
    """Return the payload of an event of the PostgreSQL connector."""
    source = {
        "version": "3.2.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": at_us // 1_000,
        "ts_us": at_us,
        "ts_ns": at_us * 1_000,
        "snapshot": op == "r",
        "db": "postgres",
        "sequence": '["24023119","24023128"]',
        "schema": "inventory",
        "table": "customers",
        "txId": 555,
        "lsn": 24023128,
        "xmin": None,
    }
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": at_us // 1_000 + 70} | extra


def mysql(op: str, before: Any, after: Any) -> dict[str, Any]:
    """Return the payload of an event of a MySQL connector whose release knew only milliseconds."""
    source = {
        "version": "1.9.7.Final",
        "connector": "mysql",
        "name": "shop",
        "ts_ms": AT_MS,
        "snapshot": "false",
        "db": "inventory",
        "table": "customers",
        "server_id": 223344,
        "gtid": None,
        "file": "mysql-bin.000003",
        "pos": 484,
        "row": 0,
        "thread": 7,
        "query": None,
    }
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": AT_MS + 2, "transaction": None}


def scylla(op: str, before: Any, after: Any) -> dict[str, Any]:
    """Return the payload of an event of ScyllaDB's connector."""
    source = {
        "version": "1.2.0",
        "connector": "scylla",
        "name": "shop",
        "ts_ms": AT_MS,
        "ts_us": AT_US,
        "snapshot": "false",
        "db": "shop",
        "keyspace_name": "ks",
        "table_name": "readings",
    }
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": AT_MS + 30_000, "transaction": None}


def field(name: str, kind: str, semantic: str = "", **parameters: Any) -> dict[str, Any]:
    """Return a column of an embedded schema."""
    found: dict[str, Any] = {"type": kind, "optional": True, "field": name}
    if semantic:
        found |= {"name": semantic, "version": 1}
    return found | ({"parameters": parameters} if parameters else {})


ROW_FIELDS = [
    field("id", "int32"),
    field("first_name", "string"),
    field("last_name", "string"),
    field("email", "string"),
    field("changed", "int64", "io.debezium.time.MicroTimestamp"),
    field("owed", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
]


def with_schema(payload: dict[str, Any], fields: list[dict[str, Any]] = ROW_FIELDS) -> bytes:
    """Return the value of a record as the JSON converter writes it with schemas enabled."""
    image = {"type": "struct", "optional": True, "name": "shop.inventory.customers.Value", "fields": fields}
    schema = {
        "type": "struct",
        "fields": [image | {"field": "before"}, image | {"field": "after"}, {"type": "string", "field": "op"}],
        "optional": False,
        "name": "shop.inventory.customers.Envelope",
        "version": 1,
    }
    return json.dumps({"schema": schema, "payload": payload}).encode()


AVRO = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.inventory.customers",
    "fields": [
        {
            "name": "before",
            "default": None,
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "int"},
                        {"name": "first_name", "type": ["null", "string"], "default": None},
                        {
                            "name": "changed",
                            "default": None,
                            "type": [
                                "null",
                                {
                                    "type": "long",
                                    "connect.version": 1,
                                    "connect.name": "io.debezium.time.MicroTimestamp",
                                },
                            ],
                        },
                        {
                            "name": "owed",
                            "default": None,
                            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
                        },
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector.postgresql",
                "fields": [
                    {"name": "connector", "type": "string"},
                    {"name": "ts_us", "type": ["null", "long"], "default": None},
                    {"name": "schema", "type": "string"},
                    {"name": "table", "type": "string"},
                ],
            },
        },
        {"name": "op", "type": "string"},
    ],
}
KEY = {
    "type": "record",
    "name": "Key",
    "namespace": "shop.inventory.customers",
    "fields": [{"name": "id", "type": "int"}],
}


def avro_record(schema: dict[str, Any], number: int, id_bytes: int, record: dict[str, Any]) -> bytes:
    """Return a record in the wire format of a schema registry."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), record)
    return b"\0" + number.to_bytes(id_bytes, "big") + body.getvalue()
