"""Rows of the CDC topic as test data for other languages: ``docs/build/golden/cdc-rows.json``.

``python -m tests.cdc.golden_rows`` writes the file. Each write has its bytes, the bytes of its rows or of its dead
letter, and their decoded fields.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, asdict
from ringlog.wire.avro.codec import split
from ringlog.wire.records import (
    Bounds,
    Cell,
    DeletedElements,
    Mutation,
    MutationStatement,
    decode_cdc_row,
    decode_dead_letter,
)
from ringlog_schemas import published
from tests.audit.memory_topics import MemoryCluster
from tests.audit.test_lives import START, created
from tests.kernel.entries import uuid

FILE = Path(__file__).parents[2] / "docs" / "build" / "golden" / "cdc-rows.json"
ID = "00000000-0000-4000-8000-0000000000ff"
ROW = ((5).to_bytes(4, "big"),)
NOW = START + 1_000
COLUMNS = (
    Column("k", "text"),
    Column("c", "int"),
    Column("v", "text"),
    Column("w", "text"),
    Column("s", "text", static=True),
    Column("m", "map<text, int>"),
)
ELEMENTS = (1).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"e" + (4).to_bytes(4, "big") + (7).to_bytes(4, "big")


def write(operation: str = "UPDATE", *cells: Cell, table: str = "plain", **changes: Any) -> Mutation:
    """Return a mutation of row 5 in the partition ``key``."""
    given: dict[str, Any] = {"clustering_key": ROW, "mutation_id": None, "cluster_id": None, "ttl": None} | changes
    return Mutation(
        keyspace="ks", table=table, timestamp=NOW, operation=operation, partition_key=(b"key",), cells=cells, **given
    )


def writes() -> dict[str, Mutation | bytes]:
    """Return pairs of description and write."""
    v, null = Cell("v", b"one"), Cell("w", None)
    more = (MutationStatement("INSERT", ROW, (v,)), MutationStatement("UPDATE", ROW, (v,), NOW + 1))
    return {
        "an insert that deletes a column": write("INSERT", v, null, mutation_id=ID),
        "an update of a time to live": write("UPDATE", v, ttl=60),
        "a time to live and a null are two rows": write("UPDATE", v, null, ttl=60),
        "a column named twice has the greatest value": write("UPDATE", Cell("v", b"b"), v, Cell("v", b"a")),
        "a column named twice is null if one value is": write("UPDATE", v, Cell("v", None)),
        "a delete of a row": write("ROW_DELETE"),
        "a delete of a partition": write("PARTITION_DELETE", clustering_key=()),
        "a delete of a range is two rows": write("RANGE_DELETE", clustering_key=(), bounds=Bounds(ROW, True, (), True)),
        "two statements of two timestamps": write("UPDATE", v, more=more),
        "a static column": write("UPDATE", Cell("s", b"static"), table="wide", clustering_key=()),
        "elements that are added and taken out": write(
            "UPDATE", Cell("m", ELEMENTS), table="wide", deleted_elements=(DeletedElements("m", (b"f",)),)
        ),
        "a collection that is replaced": write("UPDATE", Cell("m", ELEMENTS), table="wide", replaced=("m",)),
        "renamed columns have their stored names": write("UPDATE", v, Cell("w", b"two"), table="renamed"),
        "the first write with images": write("INSERT", v, table="imaged"),
        "the second write with images": write("UPDATE", Cell("v", b"two"), table="imaged"),
        "a refused write: no such table": write("UPDATE", v, table_id=uuid(99, space=6)),
        "a refused write: no such column": write("UPDATE", Cell("x", b"")),
        "a refused write: a clustering key of another type": write("UPDATE", v, clustering_key=(b"5",)),
        "a refused write: a value of another type": write("UPDATE", Cell("v", b"\xff")),
        "a refused write: no mutation": b"no mutation",
    }


def content() -> dict[str, Any]:
    """Return the content of the file."""
    cluster = MemoryCluster((START,), 5_000_000)
    created(cluster)
    full = CdcOptions(True, "full", True)
    for number, (name, columns, options) in enumerate(
        (
            ("plain", COLUMNS[:4], CdcOptions(True)),
            ("wide", COLUMNS, CdcOptions(True)),
            ("renamed", COLUMNS[:4], CdcOptions(True)),
            ("imaged", COLUMNS[:4], full),
        )
    ):
        cluster.enter(CreateTable("ks", name, uuid(number, space=6), columns, ("k",), ("c",), options))
    cluster.enter(AlterTable("ks", "renamed", (Column("v", "text"),), drop_columns=("v",)))
    swapped = ColumnRename("v", "x"), ColumnRename("w", "v"), ColumnRename("x", "w")
    cluster.enter(AlterTable("ks", "renamed", rename_columns=swapped), SettleVerdicts(START + 20_000_000))
    named = writes()
    for mutation in named.values():
        cluster.write(mutation, NOW + 1_000)
    cluster.carry_out()
    records = [(suffix, record) for suffix in ("cdc", "dead-letters") for record in cluster.topics.records(suffix)]
    cases = []
    for number, (name, record) in enumerate(zip(named, cluster.topics.records("mutations"), strict=True)):
        out = [(suffix, one) for suffix, one in records if _offset(suffix, one.value() or b"") == number]
        cases.append({"what": name, "mutation": _hex(record.value()), "records": [_shown(*one) for one in out]})
    used = {f"{split(bytes.fromhex(one['value']))[0]:016x}" for case in cases for one in case["records"]}
    used |= {f"{split(bytes.fromhex(case['mutation']))[0]:016x}" for case in cases[:-1]}
    return {
        "append_time": NOW + 1_000,
        "schemas": {key: _without_docs(json.loads(text)) for key, text in published() if key in used},
        "cases": cases,
    }


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_docs(one) for name, one in schema.items() if name != "doc"}
    return [_without_docs(one) for one in schema] if isinstance(schema, list) else schema


def _offset(suffix: str, value: bytes) -> int:
    return decode_cdc_row(value).source_offset if suffix == "cdc" else decode_dead_letter(value).offset


def _shown(suffix: str, record: Any) -> dict[str, Any]:
    value = record.value()
    says = asdict(decode_cdc_row(value) if suffix == "cdc" else decode_dead_letter(value))
    return {"topic": suffix, "key": _hex(record.key()), "value": _hex(value), "says": plain(says)}


def _hex(data: bytes | None) -> str:
    return (data or b"").hex()


def plain(value: Any) -> Any:
    """Convert a value to JSON types: bytes to hex, ids to hex without dashes."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.replace("-", "") if isinstance(value, str) and len(value) == 36 and value.count("-") == 4 else value


if __name__ == "__main__":
    FILE.write_text(json.dumps(content(), indent=1) + "\n")
