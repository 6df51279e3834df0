"""Parts of a checkpoint that do not belong together are found before anything is done, with or without new input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map

from ringlog.kernel.state import CdcWriter, ClusterState
from ringlog.kernel.values import Position
from ringlog_cdc.agreement import check_agreement, check_images, check_said
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.images.files import BEGUN, ImageFiles
from ringlog_cdc.plan import close_entry
from ringlog_cdc.plan_store import PlanStore
from tests.cdc.test_plan_store import part

TOPIC = "c.mutations"
IMAGES = {"images": {"ks.t": {"id": "t", "preimage": "full", "postimage": False, "columns": [], "partition_key": [],
                              "clustering_key": []}}, "image_ttl_us": 0}  # fmt: skip


def batch(checkpoint: Path, number: int, end: int, *, planned: bool = True, done: bool = True) -> None:
    """One batch as the job leaves it, committed if it is done."""
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
    """Two batches, and a closing behind them."""
    batch(tmp_path, 0, 3)
    batch(tmp_path, 1, 5)
    store = PlanStore(tmp_path)
    store.append(close_entry(store.head, generations=["g"], low_watermark=2, epoch=1, incarnation="i"))
    return tmp_path


def looked_at(checkpoint: Path) -> None:
    check_agreement(checkpoint, PlanStore(checkpoint), TOPIC)


def test_what_a_job_leaves_behind_belongs_together_wherever_it_dies(tmp_path: Path, checkpoint: Path) -> None:
    looked_at(tmp_path / "new")
    looked_at(checkpoint)
    batch(checkpoint, 2, 9, planned=False)
    looked_at(checkpoint)
    batch(checkpoint, 2, 9, done=False)
    looked_at(checkpoint)
    first = tmp_path / "first"
    batch(first, 0, 3, planned=False)
    looked_at(first)


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
def test_what_was_lost_in_part_is_found_at_the_start(checkpoint: Path, lose: Callable[[Path], object]) -> None:
    lose(checkpoint)
    with pytest.raises(ChainBroken):
        looked_at(checkpoint)


def writer(name: str, registered: int, decided: int, source: str = TOPIC) -> CdcWriter:
    return CdcWriter(name, f"of {name}", registered, 9, 0, 0, (), (), source=source, decided=(Position(0, decided),))


def state(*writers: CdcWriter) -> ClusterState:
    return ClusterState(writers=Map({one.name: one for one in writers}))


def test_a_checkpoint_has_what_the_log_says_is_decided(tmp_path: Path, checkpoint: Path) -> None:
    def look(found: int, *writers: CdcWriter, at: Path = checkpoint) -> None:
        check_said(state(*writers), "w", TOPIC, PlanStore(at), {0: found})

    look(0, writer("w", 4, 5))
    look(0, writer("w", 4, 3))  # it died before it said all of it
    look(0, writer("w", 4, 99), at=tmp_path / "new")  # an empty one looks up what is there
    look(7, writer("w", 4, 7))  # as one did that has not come so far again
    with pytest.raises(CdcError, match="decided up to 6, and the checkpoint, an older copy of itself, knows of 5"):
        look(3, writer("w", 4, 6))


def test_a_checkpoint_does_not_come_back_behind_another_writer_of_its_source(checkpoint: Path) -> None:
    def look(*others: CdcWriter) -> None:
        check_said(state(writer("w", 4, 5), *others), "w", TOPIC, PlanStore(checkpoint), {})

    look(writer("before", 3, 2))
    look(writer("elsewhere", 8, 99, source="c.others"))
    with pytest.raises(CdcError) as behind:
        look(writer("since", 8, 0))
    assert behind.value.code == "checkpoint_cut_off"


def test_states_of_images_that_are_gone_are_found_at_the_start(tmp_path: Path) -> None:
    files, store = ImageFiles(tmp_path / "images"), PlanStore(tmp_path)
    check_images(files, store)
    entry = part(store.head, 0, 3)
    store.append(replace(entry, context=store.put_context(IMAGES)))
    check_images(files, store)  # it is not carried out yet
    store.mark_done(store.head)
    files.folder.mkdir()
    for missing in (BEGUN, "0.db"):
        with pytest.raises(CdcError) as lost:
            check_images(files, store)
        assert lost.value.code == "images_lost"
        (files.folder / missing).touch()
    check_images(files, store)
