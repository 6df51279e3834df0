"""The reference page of the schemas, made from the schemas by ``python -m ringlog_schemas.docs``.

Its output is ``docs/reference/schemas.md``. The text comes from the ``doc`` attributes; a test keeps the committed page
equal to what this prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ringlog_schemas.catalogue import FAMILIES, CatalogueSchema, current

_INTRODUCTION = """\
# Schemas

<!-- Made by `python -m ringlog_schemas.docs`; do not edit. -->

Everything that Ringlog writes to Kafka, and what its reference nodes say over gRPC and keep on disk, is one of these
Avro records. Values travel as **single objects**: the two bytes
`C3 01`, the CRC-64-AVRO fingerprint of the writer's schema (8 bytes, little-endian), the plain Avro binary
body. The one exception is a command inside a log entry or a request: a plain body, its schema named by kind and
version beside it.

How a consumer gets the schema of a fingerprint:

* **from Kafka**: the compacted topic `<cluster>.schemas` has one record a schema: key = fingerprint as 16 hex digits
  in UTF-8 (most significant digit first), value = the schema as JSON. Any Kafka client with any Avro library can
  read it;
* **from the wheel**: the package `ringlog_schemas` holds the files; `ringlog_schemas.by_fingerprint()` finds one,
  `ringlog_schemas.published()` lists the pairs of the topic;
* **from the repository**: `schemas/ringlog_schemas/<family>/<Record>.avsc`. Every file is complete in itself.

Versions: a cluster's topic of schemas has every version that was ever used in it. A new version must be FULL
compatible with each of them: fields come with a default, symbols of enums are only added at the end, types stay. A
release whose schemas are not compatible publishes nothing there. The envelope `ringlog.log.LogEntry` never changes. No
fingerprint travels with a command, so a changed command gets a new version number.
"""

_TITLES = {
    "log": "log: the envelope",
    "commands": "commands: what a log entry carries",
    "requests": "requests: asking the validator, and its answer",
    "acks": "acks: how far a node is",
    "load": "load: what the tablets of a node hold and take",
    "agents": "agents: what an agent is doing",
    "snapshots": "snapshots: states that readers begin with",
    "mutations": "mutations: writes to base tables",
    "cdc": "cdc: the CDC log and its dead letters",
    "changes": "changes: the state, topic by topic",
    "data": "data: what the reference nodes say to each other and keep on disk",
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
