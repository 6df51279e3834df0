"""Inconsistent parts of a checkpoint are detected before any work, with or without new input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from ringlog.client.cdc.copies.partition import FoldedShape
from ringlog.client.data.row_merge import merged
from ringlog.kernel.changes import TableChange
from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog.kernel.rows.log_rows import fold
from ringlog.kernel.rows.partition import PartitionState
from ringlog.kernel.rows.reading import seen
from ringlog.kernel.values import CdcOptions, Column, Position, replace
from ringlog.wire.records import CdcRow, Cell, Mutation, decode_cdc_row, encode_mutation
from ringlog_cdc.bulk.arrow import going_out
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.images.files import BEGUN, ImageFiles
from ringlog_cdc.plan.agreement import check_agreement, check_images, check_said
from ringlog_cdc.plan.plan import close_entry
from ringlog_cdc.plan.store import PlanStore
from tests.cdc.test_columnar import LARGE, NOW, TABLE, batch_of, definition_of
from tests.cdc.test_plan_store import part
from tests.refusals import raises_code

TOPIC = "c.mutations"
IMAGES = {"images": {"ks.t": {"id": "t", "preimage": "full", "postimage": False, "columns": [], "partition_key": [],
                              "clustering_key": []}}, "images_before": [], "image_ttl_us": 0}  # fmt: skip


def batch(checkpoint: Path, number: int, end: int, *, planned: bool = True, done: bool = True) -> None:
    """Write one batch as the job leaves it, committed if it is done."""
    for name in ("offsets", "commits"):
        (checkpoint / "spark" / name).mkdir(parents=True, exist_ok=True)
    (checkpoint / "spark" / "offsets" / str(number)).write_text("v1\n{}\n" + json.dumps({TOPIC: {"0": end}}))
    store = PlanStore(checkpoint)
    if planned:
        entry = part(store.head, number, end)
        store.append(entry)
        if done:
            store.mark_done(entry)
            (checkpoint / "spark" / "commits" / str(number)).write_text("v1\n{}")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return two batches and a closing after them."""
    batch(tmp_path, 0, 3)
    batch(tmp_path, 1, 5)
    store = PlanStore(tmp_path)
    store.append(close_entry(store.head, generations=["g"], low_watermark=2, epoch=1, incarnation="i"))
    return tmp_path


def checked(checkpoint: Path) -> None:
    check_agreement(checkpoint, PlanStore(checkpoint), TOPIC)


def test_a_job_leaves_a_consistent_checkpoint_wherever_it_dies(tmp_path: Path, checkpoint: Path) -> None:
    checked(tmp_path / "new")
    checked(checkpoint)
    batch(checkpoint, 2, 9, planned=False)
    checked(checkpoint)
    batch(checkpoint, 2, 9, done=False)
    checked(checkpoint)
    first = tmp_path / "first"
    batch(first, 0, 3, planned=False)
    checked(first)


def without(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: shutil.rmtree(checkpoint / name)


def one_back(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


@pytest.mark.parametrize(
    "lose",
    [
        without("plans"),
        without("spark"),
        without("spark/offsets"),
        one_back("spark/offsets/1"),
        one_back("plans/000000000001.done"),
        lambda checkpoint: [path.unlink() for path in (checkpoint / "plans").glob("00000000000[12].*")],
        lambda checkpoint: (checkpoint / "spark/offsets/1").write_text("v1\n{}\n" + json.dumps({TOPIC: {"0": 6}})),
    ],
)
def test_a_partial_loss_is_detected_at_the_start(checkpoint: Path, lose: Callable[[Path], object]) -> None:
    lose(checkpoint)
    with pytest.raises(ChainBroken):
        checked(checkpoint)


def writer(name: str, registered: int, decided: int, source: str = TOPIC) -> CdcWriter:
    return CdcWriter(name, f"of {name}", registered, 9, 0, 0, (), (), source=source, decided=(Position(0, decided),))


def state(*writers: CdcWriter) -> ClusterState:
    return ClusterState(writers=Map({one.name: one for one in writers}))


def test_a_checkpoint_has_all_logged_decisions(tmp_path: Path, checkpoint: Path) -> None:
    def look(found: int, *writers: CdcWriter, at: Path = checkpoint) -> None:
        check_said(state(*writers), "w", TOPIC, PlanStore(at), {0: found})

    look(0, writer("w", 4, 5))
    look(0, writer("w", 4, 3))  # it died before it reported everything
    look(0, writer("w", 4, 99), at=tmp_path / "new")  # an empty checkpoint looks up the existing records
    look(7, writer("w", 4, 7))  # a checkpoint that has not reached this position again
    with pytest.raises(CdcError, match="processed up to 6; this checkpoint, an older copy, ends at 5"):
        look(3, writer("w", 4, 6))


def test_a_checkpoint_behind_another_writer_is_refused(checkpoint: Path) -> None:
    def look(*others: CdcWriter) -> None:
        check_said(state(writer("w", 4, 5), *others), "w", TOPIC, PlanStore(checkpoint), {})

    look(writer("before", 3, 2))
    look(writer("elsewhere", 8, 99, source="c.others"))
    with raises_code(CdcError, "checkpoint_cut_off"):
        look(writer("since", 8, 0))


def test_lost_image_states_are_detected_at_the_start(tmp_path: Path) -> None:
    files, store = ImageFiles(tmp_path / "images"), PlanStore(tmp_path)
    check_images(files, store)
    entry = part(store.head, 0, 3)
    store.append(replace(entry, context=store.put_context(IMAGES)))
    check_images(files, store)  # it is not executed yet
    store.mark_done(store.head)
    files.folder.mkdir()
    for missing in (BEGUN, "0.db"):
        with raises_code(CdcError, "images_lost"):
            check_images(files, store)
        (files.folder / missing).touch()
    check_images(files, store)


# A column that one statement names twice has one value on every path: the greatest value, and null above all.


COLUMNS = ("a", "a_name_of_some_length")
SHAPE = TABLE.definition.rules.tables["shop.orders"]
KEY = (Column("k", "blob"), Column("c", "blob"))
EVERY = (*KEY, *(Column(name, "blob") for name in COLUMNS))
CHANGE = TableChange("", "shop", "orders", EVERY, ("k",), ("c",), CdcOptions(True), "", 0, epoch=0)
VALUES = st.none() | st.binary(max_size=2)
"""Few values, so that many are equal or prefixes of each other."""

MUTATIONS = st.builds(
    Mutation,
    mutation_id=st.none(),
    cluster_id=st.none(),
    keyspace=st.just("shop"),
    table=st.just("orders"),
    timestamp=st.just(NOW),
    ttl=st.sampled_from([None, None, 60]),
    operation=st.sampled_from(["INSERT", "UPDATE"]),
    partition_key=st.just((b"k",)),
    clustering_key=st.just((b"c",)),
    cells=st.lists(st.builds(Cell, column=st.sampled_from(COLUMNS), value=VALUES), min_size=1, max_size=6).map(tuple),
)


def wanted_of(mutation: Mutation) -> dict[str, bytes | None]:
    found: dict[str, list[bytes | None]] = {}
    for cell in mutation.cells:
        found.setdefault(cell.column, []).append(cell.value)
    return {
        column: None if None in values else max(value for value in values if value is not None)
        for column, values in found.items()
    }


def values_by(rows: list[CdcRow]) -> dict[str, bytes | None]:
    """Return the values of each column in the rows; a row may contain a column once."""
    pairs = [(cell.column, cell.value) for row in rows for cell in row.cells]
    pairs += [(column, None) for row in rows for column in row.deleted]
    assert len(dict(pairs)) == len(pairs), rows
    return dict(pairs)


@given(st.lists(MUTATIONS, min_size=1, max_size=8))
def test_every_path_has_the_greatest_value(mutations: list[Mutation]) -> None:
    batch = batch_of([encode_mutation(mutation) for mutation in mutations], partitions=1)
    out = going_out(TABLE, batch, LARGE)
    ways = [[(n, v) for n, v in zip(out.numbers.tolist(), out.values.to_pylist(), strict=True)]]
    ways.append([(row["number"], row["value"]) for row in definition_of(batch, LARGE)])
    assert ways[0] == ways[1]
    shape = FoldedShape(CHANGE)
    for number, mutation in enumerate(mutations):
        wanted = wanted_of(mutation)
        alive = {column: value for column, value in wanted.items() if value is not None}
        rows = [decode_cdc_row(value) for place, value in ways[0] if place == number]
        assert values_by(rows) == wanted
        copy = {
            row.clustering_key: row.values
            for row in seen(fold(PartitionState(), rows, shape.columns), shape.columns, NOW)
        }
        assert copy.get((b"c",), {}) == alive
        on_a_node = merged([mutation], SHAPE, NOW).rows
        assert {cell.column: cell.value for row in on_a_node for cell in row.cells} == alive
