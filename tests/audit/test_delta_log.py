"""The Delta reader of the audit, tested with handwritten tables in the format of the Delta protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from ringlog_audit.sources.delta_log import DeltaFiles, open_lake, tables_in
from ringlog_audit.sources.topics import AuditError

LOCAL = fs.LocalFileSystem()
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def add(table: Path, name: str, generation: int, *numbers: int) -> dict[str, Any]:
    """Write a file with these numbers and return its ``add`` action."""
    table.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": list(numbers)}), table / name)
    return {"add": {"path": name.replace(" ", "%20"), "partitionValues": {"g": str(generation)}, "size": 1}}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))


def checkpoint(table: Path, version: int, *actions: dict[str, Any], parts: int | None = None) -> None:
    """Write a checkpoint in one or several parts and delete the earlier commits."""
    log = table / "_delta_log"
    kind = pa.struct([("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string()))])
    adds = [{"path": a["add"]["path"], "partitionValues": list(a["add"]["partitionValues"].items())} for a in actions]
    for part in range(parts or 1):
        mine = adds[part :: parts or 1]
        name = f"{version:020d}.checkpoint" + (f".{part + 1:010d}.{parts:010d}" if parts else "") + ".parquet"
        pq.write_table(pa.table({"add": pa.array(mine, kind)}), log / name)
    (log / "_last_checkpoint").write_text(json.dumps({"version": version} | ({"parts": parts} if parts else {})))
    for path in log.glob("*.json"):
        if int(path.stem) <= version:
            path.unlink()


def rows(table: Path) -> list[tuple[Any, ...]]:
    return sorted(DeltaFiles(LOCAL, str(table)).rows(("g", "n")))


def test_a_table_contains_added_files_without_removed_files(tmp_path: Path) -> None:
    commit(tmp_path, 0, PROTOCOL, add(tmp_path, "a b.parquet", 1, 1, 2))
    commit(tmp_path, 1, add(tmp_path, "c.parquet", 2, 3))
    assert rows(tmp_path) == [("1", 1), ("1", 2), ("2", 3)]
    commit(
        tmp_path, 2, {"remove": {"path": "a%20b.parquet"}}, add(tmp_path, "d.parquet", 1, 1), {"txn": {"appId": "x"}}
    )
    assert rows(tmp_path) == [("1", 1), ("2", 3)]


@pytest.mark.parametrize("parts", [None, 2])
def test_a_checkpoint_replaces_earlier_commits(tmp_path: Path, parts: int | None) -> None:
    first, second = add(tmp_path, "a", 1, 1), add(tmp_path, "b", 1, 2)
    commit(tmp_path, 0, PROTOCOL, first)
    commit(tmp_path, 1, second)
    checkpoint(tmp_path, 1, first, second, parts=parts)
    commit(tmp_path, 2, {"remove": {"path": "a"}}, add(tmp_path, "c", 2, 3))
    assert rows(tmp_path) == [("1", 2), ("2", 3)]


def test_invalid_tables_and_later_reader_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="not a Delta table"):
        DeltaFiles(LOCAL, str(tmp_path))
    commit(tmp_path, 0, {"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}})
    with pytest.raises(AuditError, match="reader version 3"):
        DeltaFiles(LOCAL, str(tmp_path))
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text('{"version": 7}')
    with pytest.raises(AuditError, match="checkpoint 7"):
        DeltaFiles(LOCAL, str(tmp_path))


def test_the_tables_of_a_lake_are_those_of_its_keyspaces(tmp_path: Path) -> None:
    for name in ("shop/orders_scylla_cdc_log", "shop/other", "cdc-streams/x_scylla_cdc_log", "a/b_scylla_cdc_log"):
        (tmp_path / name).mkdir(parents=True)
    system, root = open_lake(str(tmp_path))
    assert sorted(tables_in(system, root, "_scylla_cdc_log")) == ["a.b", "shop.orders"]
    assert tables_in(*open_lake(tmp_path.as_uri() + "/nowhere"), "_scylla_cdc_log") == {}
    with pytest.raises(AuditError, match="cannot open"):
        open_lake("nothing://x")
