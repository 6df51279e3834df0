"""The example and the tables of ``docs/build/producers.md``, which do not use Ringlog, against a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system.cdc_world import PARTITIONS, World
from tests.tidy import markdown

from ringlog.client.creation.schemas import publish_schemas
from ringlog.kernel.cql.types import serialize
from ringlog.wire.records import Cell, Mutation, decode_mutation, mutation_partition
from ringlog_cdc.definition.decision import Input, PartContext, decide
from ringlog_cdc.definition.reasons import ROUTED
from ringlog_cdc.plan.decisions import context_of, table_of

PAGE = Path(__file__).parents[2] / "docs" / "build" / "producers.md"


def values(json_value: Any) -> Any:
    """Return the Python value of a JSON value."""
    return tuple(map(values, json_value)) if isinstance(json_value, list) else json_value


def test_each_example_value_has_the_bytes_of_the_table() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Values")[1].split("\n## ")[0]
    rows = [
        [cell.strip().strip("`") for cell in line.split("|")[1:5]] for line in section.splitlines() if "| `" in line
    ]
    for kind, _, example, encoded in rows:
        assert serialize(kind, values(json.loads(example))).hex() == encoded, kind
    assert len(rows) == 18


@pytest.mark.system
def test_the_example_writes_an_accepted_row(shop: World, tmp_path: Path) -> None:
    publish_schemas(shop.bootstrap, shop.cluster)
    blocks = markdown.blocks(PAGE.read_text(encoding="utf-8"))
    (program,) = (block.text for block in blocks if block.language == "python")
    script = tmp_path / "example.py"
    script.write_text(program, encoding="utf-8")
    subprocess.run([sys.executable, "-I", str(script), shop.bootstrap, shop.cluster], check=True, timeout=120)
    (record,) = shop.read("mutations")
    assert record.partition == mutation_partition(record.key, PARTITIONS)
    mutation = decode_mutation(record.value)
    assert isinstance(mutation, Mutation)
    assert mutation.cells == (Cell("amount", b"\0\0\0\7"), Cell("note", "Zoë".encode()))
    table = table_of(context_of(shop.state, "mutations", 8, 1_000_000), (), shop.state)
    part = PartContext("mutations", "test", shop.state.epoch, 1_000_000)
    item = Input(record.partition, record.offset, record.appended, record.key, record.value, mutation)
    assert [out.reason for out in decide(table, item, part)] == [ROUTED]
