"""The plan chain on disk: created only if absent, atomic, pruned; changes and losses are detected."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.plan.chain import canonical
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry, close_entry, route_entry
from ringlog_cdc.plan.store import PlanStore, claim_checkpoint, give_up_claim
from ringlog_cdc.stored_files import create_if_absent
from tests.refusals import raises_code
from tests.waiting import at_once


def part(before: PlanEntry, batch: int, end: int) -> PlanEntry:
    """Return a part that covers partition 0 up to ``end``."""
    start = dict(before.positions).get(0, 0)
    return route_entry(
        before,
        batch=batch,
        part=0,
        last=True,
        ranges=[OffsetRange(0, start, end)],
        epoch=1,
        context="c",
        horizon=9,
        used=end,
        incarnation="i",
    )


def test_one_of_many_creators_of_a_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    won: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if create_if_absent(path, str(number).encode()):
            won.append(number)

    at_once(create, range(8))
    assert len(won) == 1
    assert path.read_text() == str(won[0])
    assert list(tmp_path.iterdir()) == [path]


def test_old_entries_are_dropped_and_the_chain_still_loads(tmp_path: Path) -> None:
    store = PlanStore(tmp_path, kept=3)
    for batch in range(10):
        store.append(part(store.head, batch, batch + 1))
        store.mark_done(store.head)
    again = PlanStore(tmp_path, kept=3)
    assert again.head == store.head
    assert again.durable_positions() == {0: 10}
    assert len(list((tmp_path / "plans").glob("*.json"))) == 3
    assert len(list((tmp_path / "plans").glob("*.done"))) == 3


def test_a_changed_entry_breaks_the_chain(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    store.append(part(store.head, 0, 3))
    store.append(part(store.head, 1, 5))
    path = tmp_path / "plans" / "000000000000.json"
    path.write_bytes(path.read_bytes().replace(b'"used":3', b'"used":2'))
    with pytest.raises(ChainBroken, match="digest"):
        PlanStore(tmp_path)


def test_a_missing_entry_breaks_the_chain(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    for batch in range(3):
        store.append(part(store.head, batch, batch + 1))
    (tmp_path / "plans" / "000000000001.json").unlink()
    with pytest.raises(ChainBroken, match="missing"):
        PlanStore(tmp_path)


def test_a_changed_context_is_detected(tmp_path: Path) -> None:
    name = PlanStore(tmp_path).put_context({"b": 1, "a": [2]})
    (tmp_path / "plans" / "contexts" / f"{name}.json").write_bytes(canonical({"b": 1, "a": [3]}))
    with pytest.raises(ChainBroken, match="changed"):
        PlanStore(tmp_path).context(name)


def test_a_checkpoint_belongs_to_one_cluster_and_writer(tmp_path: Path) -> None:
    assert claim_checkpoint(tmp_path, "c1", "spark", 8, registered=False)
    assert not claim_checkpoint(tmp_path, "c1", "spark", 8, registered=True)
    for cluster, writer in (("c2", "spark"), ("c1", "other")):
        with raises_code(CdcError, "checkpoint_of_another"):
            claim_checkpoint(tmp_path, cluster, writer, 8, registered=True)


def test_a_cdc_topic_with_another_number_of_partitions_is_refused(tmp_path: Path) -> None:
    claim_checkpoint(tmp_path, "c1", "spark", 8, registered=False)
    with raises_code(CdcError, "partitions_changed"):
        claim_checkpoint(tmp_path, "c1", "spark", 16, registered=True)


def test_an_empty_checkpoint_of_a_used_writer_is_lost(tmp_path: Path) -> None:
    with raises_code(CdcError, "checkpoint_lost"):
        claim_checkpoint(tmp_path, "c1", "spark", 8, registered=True)
    assert claim_checkpoint(tmp_path, "c1", "spark", 8, registered=False)
    give_up_claim(tmp_path)
    assert claim_checkpoint(tmp_path, "c1", "spark", 8, registered=False)


def test_old_entries_and_closings_are_pruned_in_order(tmp_path: Path) -> None:
    store = PlanStore(tmp_path, kept=3)
    for number in range(10):
        if number in (2, 8):
            store.append(close_entry(store.head, generations=["g"], low_watermark=5, epoch=1, incarnation="i"))
        else:
            store.append(part(store.head, number, number + 1))
            store.mark_done(store.head)
    assert PlanStore(tmp_path, kept=3).head == store.head
    assert sorted(int(path.stem) for path in (tmp_path / "plans").glob("*.json")) == [7, 8, 9]


def test_an_open_entry_and_its_successors_are_kept(tmp_path: Path) -> None:
    store = PlanStore(tmp_path, kept=2)
    for number in range(6):
        store.append(part(store.head, number, number + 1))
        if number != 1:
            store.mark_done(store.head)
    assert store.durable_positions() == {}
    assert PlanStore(tmp_path, kept=2).parts(1)


def test_only_gaps_from_pruning_are_accepted(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    for number in range(6):
        store.append(part(store.head, number, number + 1))
        store.mark_done(store.head)
    (tmp_path / "plans" / "000000000001.json").unlink()
    assert PlanStore(tmp_path, kept=4).durable_positions() == {0: 6}
    with pytest.raises(ChainBroken, match="missing"):
        PlanStore(tmp_path, kept=5)
