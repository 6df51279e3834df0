"""What a part of a batch is told of images: by the plans before it and by the tables of its context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringlog.kernel.commands.schema import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.log.memory import MemoryLog
from ringlog.log.replica import LogReplica
from ringlog_cdc.images.store import ImagesLost
from ringlog_cdc.images.work import ImageWork
from ringlog_cdc.plan import OffsetRange, PlanEntry, route_entry
from tests.cdc.bench import Bench

IMAGES = CdcOptions(True, preimage="true")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A runner of batches on a checkpoint of its own, with the tables ``orders`` and ``quiet``."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        made = Bench(metadata, replica, tmp_path)
        made.world.schema()
        yield made


def part(bench: Bench, batch: int, start: int, end: int) -> tuple[PlanEntry, dict[str, Any]]:
    """A stored part of partition 0 under the tables as they are now, and its context."""
    runner: Any = bench.runner
    context = runner._context(bench.world.state)
    entry = route_entry(
        bench.store.head,
        batch=batch,
        part=0,
        last=True,
        ranges=[OffsetRange(0, start, end)],
        epoch=1,
        context=bench.store.put_context(context),
        horizon=2,
        used=1,
        incarnation="i",
    )
    bench.store.append(entry)
    return entry, context


def told(bench: Bench, made: tuple[PlanEntry, dict[str, Any]]) -> ImageWork | None:
    """What the tasks of a part are told; then it is as if they had found no record."""
    runner: Any = bench.runner
    found: ImageWork | None = runner._images.part(bench.store, *made)
    if found is not None:
        runner._images.settle(found, ())
    return found


def test_images_begin_with_the_first_part_that_has_some_and_what_spark_may_repeat_is_kept(bench: Bench) -> None:
    plain = part(bench, 0, 0, 4)
    assert "images" not in plain[1]
    assert told(bench, plain) is None
    bench.world.apply(AlterTable("shop", "orders", cdc=IMAGES))
    parts = [part(bench, number, 4 * number, 4 * number + 4) for number in (1, 2, 3)]
    works = [told(bench, one) for one in parts]
    assert [work and work.born for work in works] == [((0, 4),)] * 3
    assert [work and work.kept_from for work in works] == [((0, 0),), ((0, 4),), ((0, 8),)]
    assert {name for work in works if work for name, _ in work.tables} == {"shop.orders"}
    again = told(bench, parts[1])
    assert again is not None
    assert told(bench, parts[2]) is not None


def test_a_part_behind_one_with_images_needs_its_states(bench: Bench, tmp_path: Path) -> None:
    bench.world.apply(AlterTable("shop", "orders", cdc=IMAGES))
    assert told(bench, part(bench, 0, 0, 4)) is not None
    for path in (tmp_path / "images").iterdir():
        path.unlink()
    with pytest.raises(ImagesLost, match="missing"):
        told(bench, part(bench, 1, 4, 8))
    bench.world.apply(AlterTable("shop", "orders", cdc=CdcOptions(True)))
    assert told(bench, part(bench, 2, 8, 9)) is None
    bench.world.apply(AlterTable("shop", "orders", cdc=IMAGES))
    begun = told(bench, part(bench, 3, 9, 12))
    assert begun is not None
    assert begun.born == ((0, 9),)
