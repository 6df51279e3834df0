"""The lake without Spark: identities, paths, supported columns, and rows as Arrow batches."""

from __future__ import annotations

import uuid
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from ringlog.wire.records import CdcRow, Cell, DeletedElements, encode_cdc_row
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.lake.column_names import columns_to_omit, current_names
from ringlog_cdc.lake.columns import LakeColumns, TableFields, table_of
from ringlog_cdc.lake.delta import description_path, log_path
from ringlog_cdc.lake.heads import BadRow, heads_of
from ringlog_cdc.lake.identity import (
    FILE,
    Identity,
    Made,
    author_prefix,
    forget_filled,
    identify,
    is_filled,
    mark_filled,
)
from ringlog_cdc.lake.sink import KEPT, decoder, with_heads
from ringlog_cdc.stored_files import encode_file
from tests.refusals import raises_code

CLUSTER = str(uuid.UUID(int=1))
FIELDS = (1, [["id", "bigint"], ["name", "text"], ["tags", "set<text>"]], ["id"], [])


def row(**changes: object) -> CdcRow:
    fields: dict[str, object] = {
        "stream_id": (-5).to_bytes(8, "big", signed=True) + bytes(8),
        "generation": 1_000,
        "time": bytes(range(16)),
        "batch_seq_no": 0,
        "operation": 2,
        "ttl": None,
        "end_of_batch": True,
        "keyspace": "shop",
        "table": "people",
        "mutation_id": None,
        "source_topic": "c.mutations",
        "source_partition": 3,
        "source_offset": 2**40,
        "timestamp": 1_700_000_000_000_000,
        "partition_key": ((7).to_bytes(8, "big"),),
        "clustering_key": (),
        "cells": (Cell("name", b"Ada"),),
        "deleted": (),
        "deleted_elements": (),
    }
    return CdcRow(**{**fields, **changes})  # type: ignore[arg-type]


def decoded(fields: TableFields | None, rows: pa.Array, out: frozenset[str] = frozenset()) -> pa.RecordBatch:
    """Return the batch of rows that one version reads."""
    columns = LakeColumns(((table_of("shop.people", fields), out),), {0: 0, 7: 0})
    (batch,) = columns.batches(rows, pa.array(heads_of(rows).epochs))
    return batch


def encoded(*rows: CdcRow) -> pa.Array:
    return pa.array([encode_cdc_row(one) for one in rows], pa.binary())


def test_a_checkpoint_keeps_its_author(tmp_path: Path) -> None:
    one = identify(tmp_path, CLUSTER, "spark", "/lake")
    again = identify(tmp_path, CLUSTER, "spark", "/lake")
    assert one is not None
    assert one == again
    (tmp_path / FILE).unlink()
    other = identify(tmp_path, CLUSTER, "spark", "/lake")
    assert other is not None
    assert other.author != one.author
    assert one.author.startswith(author_prefix(CLUSTER))


def test_a_changed_lake_is_refused(tmp_path: Path) -> None:
    assert identify(tmp_path, CLUSTER, "spark", None) is None
    assert not (tmp_path / FILE).exists()
    identify(tmp_path, CLUSTER, "spark", "/lake")
    with raises_code(CdcError, "lake_left_out", match="pass --lake /lake"):
        identify(tmp_path, CLUSTER, "spark", None)
    with raises_code(CdcError, "lake_changed", match="not to /other"):
        identify(tmp_path, CLUSTER, "spark", "/other")


def test_changed_tables_of_a_lake_are_refused(tmp_path: Path) -> None:
    one = identify(tmp_path, CLUSTER, "spark", "/lake", ("shop.*", "ks.t"))
    assert one == identify(tmp_path, CLUSTER, "spark", "/lake", ("ks.t", "shop.*", "ks.t"))
    assert one is not None
    assert [name for name in ("shop.orders", "ks.t", "ks.tt", "Shop.orders") if one.selects(name)] == [
        "shop.orders",
        "ks.t",
    ]
    for other in ((), ("ks.t",)):
        with raises_code(CdcError, "lake_tables_changed", match="writes ks.t,shop.* to its lake, not"):
            identify(tmp_path, CLUSTER, "spark", "/lake", other)
    assert Identity(CLUSTER, "spark", "c", "/lake").selects("any.table")


IDENTITY = {"cluster_id": "c", "writer": "w", "checkpoint": "1f", "root": "/lake", "tables": ""}


@pytest.mark.parametrize("content", [[], {"root": "x"}, IDENTITY | {"writer": 1}, IDENTITY | {"more": ""}])
def test_an_invalid_identity_is_refused(content: object, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode_file("lake", content))
    with pytest.raises(ChainBroken, match=FILE):
        identify(tmp_path, CLUSTER, "spark", "/lake")


def test_an_identity_names_its_tables(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode_file("lake", {name: IDENTITY[name] for name in IDENTITY if name != "tables"}))
    with pytest.raises(ChainBroken, match="missing"):
        identify(tmp_path, "c", "w", "/lake")


def test_identities_fill_tables_separately(tmp_path: Path) -> None:
    one = identify(tmp_path, CLUSTER, "spark", "/lake")
    assert one is not None
    mark_filled(tmp_path, one)
    forget_filled(tmp_path, one)
    assert is_filled(tmp_path)
    (tmp_path / FILE).unlink()
    other = identify(tmp_path, CLUSTER, "spark", "/lake")
    assert other is not None
    forget_filled(tmp_path, other)
    assert not is_filled(tmp_path)


def test_paths_of_tables_and_descriptions() -> None:
    assert log_path("/lake/", "shop.orders") == "/lake/shop/orders_scylla_cdc_log"
    assert description_path("s3a://bucket/lake", "cdc-streams") == "s3a://bucket/lake/cdc-streams"


def test_columns_delta_cannot_store_are_omitted() -> None:
    def omitted(columns: dict[str, str], first: dict[str, str]) -> frozenset[str]:
        table = table_of("shop.people", (1, [["id", "bigint"], *columns.items()], ["id"], []))
        return columns_to_omit([table], first.items())[0]

    assert omitted({"a": "int", "b": "text"}, {}) == frozenset()
    assert omitted({"a": "int"}, {"a": "int", "gone": "string"}) == frozenset()
    assert omitted({"a": "int"}, {"a": "string"}) == {"a"}
    of_upper = {"A", "cdc$deleted_A"}
    assert omitted({"a": "int", "A": "int"}, {}) == of_upper
    assert omitted({"a": "int", "A": "int"}, {"a": "int"}) == of_upper
    assert omitted({"A": "int"}, {"a": "int"}) == {"A"}
    # The removed elements of ``x`` and the deletion of ``elements_x`` have the same name.
    assert omitted({"x": "set<int>", "elements_x": "int"}, {}) == {"cdc$deleted_elements_x"}


def test_a_view_has_the_current_names() -> None:
    def period(column: str, name: str, begin: int, end: int | None) -> dict[str, object]:
        return {"table_id": "t", "column": column, "name": name, "from_epoch": begin, "until_epoch": end}

    columns = ["id", "note", "cdc$deleted_note", "cdc$deleted_elements_note", "price", "price@9", "cdc$deleted_price"]
    rows = [period("id", "id", 1, None), period("note", "note", 1, 5), period("price", "price", 1, 9)]
    rows += [period("note", "memo", 5, None), period("price@9", "price", 9, None)]
    assert list(current_names(rows, columns).values()) == [
        "id",
        "memo",
        "cdc$deleted_memo",
        "cdc$deleted_elements_memo",
        "price@dropped",
        "price",
        "cdc$deleted_price@dropped",
    ]
    dropped = [{**row, "until_epoch": row["until_epoch"] or 12} for row in rows]
    assert current_names(dropped, columns) == current_names(rows, columns)
    assert current_names([], columns) == {name: name for name in columns}


def test_a_row_has_log_columns_and_its_origin() -> None:
    batch = decoded(FIELDS, encoded(row(), row(deleted=("tags",))))
    first, second = batch.to_pylist()
    assert (first["id"], first["name"], first["tags"], first["cdc$deleted_tags"]) == (7, "Ada", None, None)
    assert second["cdc$deleted_tags"] is True
    assert (first["cdc$stream_token"], first["cdc$generation"], first["cdc$timestamp"]) == (-5, 1_000, row().timestamp)
    source = [first[f"cdc$source_{name}"] for name in ("topic", "partition", "offset")]
    assert source == ["c.mutations", 3, 2**40]


def test_values_of_omitted_columns_keep_their_log_encoding() -> None:
    out = frozenset({"name", "cdc$deleted_name", "cdc$deleted_elements_tags"})
    taken = DeletedElements("tags", (b"x", b"\xff"))
    rows = encoded(row(), row(cells=(), deleted=("name",)), row(deleted_elements=(taken,), cells=()))
    batch = decoded(FIELDS, rows, out)
    assert "name" not in batch.schema.names
    found = [dict(line["cdc$undecoded"]) for line in batch.to_pylist()]
    assert found == [{"name": b"Ada"}, {"cdc$deleted_name": b"\1"}, {"cdc$deleted_elements_tags": b"78,ff"}]


def test_a_value_without_a_column_is_undecoded() -> None:
    odd = row(cells=(Cell("nosuchcol", b"!"), Cell("name", b"Ada")), deleted=("gone",), epoch=7)
    first, second = decoded(FIELDS, encoded(odd, row())).to_pylist()
    assert (first["name"], first["cdc$epoch"]) == ("Ada", 7)
    assert dict(first["cdc$undecoded"]) == {"nosuchcol": b"!", "cdc$deleted_gone": b"\1"}
    assert (second["cdc$undecoded"], second["cdc$epoch"]) == (None, None)


def test_a_row_of_a_pruned_table_keeps_all_fields() -> None:
    batch = decoded(None, encoded(row(clustering_key=(b"c",))))
    assert dict(batch.to_pylist()[0]["cdc$undecoded"]) == {
        "partition_0": (7).to_bytes(8, "big"),
        "clustering_0": b"c",
        "name": b"Ada",
    }


def test_heads_match_the_rows() -> None:
    rows = [
        row(),
        row(ttl=70_000, batch_seq_no=300, mutation_id=str(uuid.uuid4()), keyspace="a", table="b" * 40),
        row(end_of_batch=False, epoch=3),
        row(stream_id=b"\x7f" + bytes(15), source_partition=0, source_offset=0, timestamp=-1, generation=2**62),
        row(epoch=64, deleted_elements=(DeletedElements("tags", (b"\xff" * 9,)),)),
        row(epoch=2**62),
    ]
    found = heads_of(pa.array([encode_cdc_row(one) for one in rows], pa.binary()))
    assert found.tables.to_pylist() == [f"{one.keyspace}.{one.table}" for one in rows]
    assert found.topics.to_pylist() == ["c.mutations"] * len(rows)
    assert found.epochs.tolist() == [one.epoch for one in rows]
    assert found.tokens.tolist() == [int.from_bytes(one.stream_id[:8], "big", signed=True) for one in rows]
    assert found.generations.tolist() == [one.generation for one in rows]
    assert found.numbers.tolist() == [one.batch_seq_no for one in rows]
    assert found.partitions.tolist() == [one.source_partition for one in rows]
    assert found.offsets.tolist() == [one.source_offset for one in rows]
    assert found.lasts.tolist() == [one.end_of_batch for one in rows]
    assert found.timestamps.tolist() == [one.timestamp for one in rows]
    assert heads_of(pa.array([], pa.binary())).offsets.tolist() == []


def test_invalid_rows_are_refused() -> None:
    data = encode_cdc_row(row())
    with pytest.raises(BadRow, match="is not a CDC row"):
        heads_of(pa.array([data, data[:40]], pa.binary()))


def test_rows_have_sort_columns_and_letters_have_none() -> None:
    rows = [row(), row(stream_id=b"\x7f" + bytes(15), generation=5, keyspace="a", epoch=8)]
    values = [b"a letter", *encoded(*rows).to_pylist(), b""]
    topics = ["letters", "rows", "rows", "letters"]
    batch = pa.record_batch({"topic": topics, "value": pa.array(values, pa.binary())})
    (found,) = with_heads(lambda batches: batches, "rows")([batch])
    assert found.select(["topic", "value"]).equals(batch)
    lines = [tuple(line[name] for name in KEPT) for line in found.to_pylist()]
    none = (None, None, None, None)
    tokens = [int.from_bytes(one.stream_id[:8], "big", signed=True) for one in rows]
    assert lines == [none, ("shop.people", 1_000, tokens[0], 0), ("a.people", 5, tokens[1], 8), none]
    (only,) = with_heads(lambda batches: batches, "nowhere")([batch])
    assert only.column("token").null_count == 4
    (some,) = with_heads(lambda batches: batches, "rows", lambda table: table == "a.people")([batch])
    assert some.column("table").to_pylist() == [None, None, "a.people", None]


@pytest.mark.parametrize("sections", [1, 4])
def test_rows_of_a_file_are_sorted_in_sections(sections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(sections)
    rows = [
        row(
            stream_id=chance.randrange(-3, 3).to_bytes(8, "big", signed=True) + bytes(8),
            generation=chance.choice((1_000, 2_000)),
            timestamp=chance.randrange(5),
            source_partition=chance.randrange(2),
            source_offset=number,
        )
        for number in range(80)
    ]
    values = pa.array([encode_cdc_row(one) for one in rows], pa.binary())
    batches = [
        pa.record_batch({"value": values.slice(at, 10), "epoch": pa.array([1] * 10, pa.int64())})
        for at in range(0, 80, 10)
    ]
    # Two batches are a section, or all.
    limit = 2**30 if sections == 1 else batches[0].nbytes * 3 // 2
    monkeypatch.setattr("ringlog_cdc.lake.sink.SORTED_BYTES", limit)
    monkeypatch.setattr("ringlog_cdc.lake.sink.ARROW_RECORDS", 7)
    empty = batches[0].slice(0, 0)
    columns = LakeColumns(((table_of("shop.people", FIELDS), frozenset()),), {1: 0})
    found = [line for made in decoder(columns)(iter([empty, *batches, empty])) for line in made.to_pylist()]
    order = "cdc$generation", "cdc$stream_token", "cdc$timestamp", "cdc$source_partition", "cdc$source_offset"
    places = [tuple(line[name] for name in order) for line in found]
    size = 80 // sections
    for at in range(0, 80, size):
        assert places[at : at + size] == sorted(places[at : at + size])
        assert sorted(line["cdc$source_offset"] for line in found[at : at + size]) == list(range(at, at + size))
    assert (places == sorted(places)) == (sections == 1)


def test_a_missing_table_is_lost_unless_its_name_is_reused(tmp_path: Path) -> None:
    def made() -> Made:
        return Made(tmp_path, Identity("c", "w", "checkpoint", "/lake"))

    first = made()
    first.check("shop.people", "one")  # the table was never there
    first.note("shop.people", "one")
    for known in (first, made()):
        for same in ("one", ""):
            with pytest.raises(CdcError, match="has lost the table of") as lost:
                known.check("shop.people", same)
            assert (lost.value.code, str(tmp_path / "lake.tables") in lost.value.hint) == ("lake_lost", True)
        known.check("shop.people", "two")
    first.note("shop.people", "two")
    first.note("shop.people", "")  # rows of a dropped table whose id is pruned
    first.check("shop.people", "one")
    with pytest.raises(CdcError):
        made().check("shop.people", "two")


def test_a_mark_without_an_id_fits_any_table(tmp_path: Path) -> None:
    made = Made(tmp_path, Identity("c", "w", "checkpoint", "/lake"))
    made.note("shop.people", "")
    with pytest.raises(CdcError):
        made.check("shop.people", "one")
    made.note("shop.people", "one")
    made.check("shop.people", "two")
