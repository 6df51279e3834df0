"""The reference page of the schemas, made from the schemas by ``python -m ringlog_schemas.docs``.

Its output is ``docs/reference/schemas.md``. The text comes from the ``doc`` attributes. A test compares the committed
page with this output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ringlog_schemas.catalogue import FAMILIES, CatalogueSchema, current

_INTRODUCTION = """\
# Schemas

<!-- Made by `python -m ringlog_schemas.docs`; do not edit. -->

Ringlog writes these Avro records to Kafka. Its reference nodes also use them over gRPC and on disk. A value is encoded
as a **single object**: the two bytes `C3 01`, the CRC-64-AVRO fingerprint of the writer's schema (8 bytes,
little-endian), and the plain Avro binary body. The only exception is the command in a log entry or a request: it is a
plain body, and the fields for kind and version name its schema.

A consumer gets the schema of a fingerprint in one of these ways:

* **from Kafka**: the compacted topic `<cluster>.schemas` has one record for each schema. The key is the fingerprint as
  16 hex digits in UTF-8 (most significant digit first), and the value is the schema as JSON. Any Kafka client with any
  Avro library can read it;
* **from the wheel**: the package `ringlog_schemas` contains the files. `ringlog_schemas.by_fingerprint()` returns one,
  and `ringlog_schemas.published()` lists the pairs of the topic;
* **from the repository**: `schemas/ringlog_schemas/<family>/<Record>.avsc`. Every file is self-contained.

The schema topic of a cluster keeps every version that the cluster has used. A new version must be FULL compatible with
each of them: new fields have a default, enums get new symbols only at the end, and types do not change. A release with
incompatible schemas publishes nothing there. The envelope `ringlog.log.LogEntry` never changes. A command has no
fingerprint, so a changed command gets a new version number.
"""

_TITLES = {
    "log": "log: the envelope",
    "commands": "commands: the content of log entries",
    "requests": "requests: requests to the validator, and its answers",
    "acks": "acks: the progress of nodes",
    "load": "load: the load of tablets on nodes",
    "agents": "agents: the status of agents",
    "snapshots": "snapshots: stored states that readers start from",
    "mutations": "mutations: writes to base tables",
    "cdc": "cdc: the CDC log and its dead letters",
    "changes": "changes: the state, topic by topic",
    "data": "data: messages and journal of the reference nodes",
}


def page() -> str:
    """The whole page in Markdown."""
    lines = [_INTRODUCTION]
    for family in FAMILIES:
        members = [schema for schema in current().values() if schema.family == family]
        if members:
            lines.append(f"## {_TITLES[family]}\n")
            for schema in sorted(members, key=lambda schema: schema.name):
                lines += _record(schema)
    return "\n".join(lines).rstrip("\n") + "\n"


def _record(schema: CatalogueSchema) -> Iterator[str]:
    yield f"### {schema.name}\n"
    yield f"`{schema.full_name}`, fingerprint `{schema.hex}`. {schema.json['doc']}\n"
    inner: dict[str, Mapping[str, Any]] = {}
    if schema.json["fields"]:
        yield from _table(schema.json, inner)
    for name, part in inner.items():
        if part["type"] == "record":
            yield f"`{name}`: {part['doc']}\n"
            yield from _table(part, {})


def _table(record: Mapping[str, Any], inner: dict[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for field in record["fields"]:
        default = f" Default: {json.dumps(field['default'])}." if "default" in field else ""
        yield f"| `{field['name']}` | {_type(field['type'], inner)} | {field['doc']}{default} |"
    yield ""


def _type(schema: Any, inner: dict[str, Mapping[str, Any]]) -> str:
    """A type in words; the named records that it defines are collected in ``inner``."""
    if isinstance(schema, list):
        return " or ".join(_type(branch, inner) for branch in schema)
    if isinstance(schema, str):
        return schema.rsplit(".", 1)[-1]
    if schema["type"] == "array":
        return f"array of {_type(schema['items'], inner)}"
    if schema["type"] == "enum":
        return f"{schema['name']}: {', '.join(schema['symbols'])}"
    if schema["type"] == "fixed":
        return f"{schema['name']} (fixed, {schema['size']} bytes)"
    inner[schema["name"]] = schema
    for field in schema["fields"]:
        _type(field["type"], inner)
    return str(schema["name"])


if __name__ == "__main__":
    print(page(), end="")
