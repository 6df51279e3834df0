"""Image settings of a part of a batch, from the earlier plans and from the tables of its context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog_cdc.bulk.arrow import read, records_of, rows_function
from ringlog_cdc.bulk.image_work import ImageFolder, ImageWork
from ringlog_cdc.bulk.tally import Tally, TallyParam
from ringlog_cdc.images.files import ImageFiles
from ringlog_cdc.images.store import HELD_BYTES_MAX, ImagesLost
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry, route_entry
from tests.cdc.bench import Bench
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.test_easy import batch_of, random_write, routing
from tests.cdc.test_columnar import LARGE, NOW

IMAGES = CdcOptions(True, preimage="true")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a batch runner on a separate checkpoint, with the tables ``orders`` and ``quiet``."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        made = Bench(metadata, replica, tmp_path)
        made.world.schema()
        yield made


def part(bench: Bench, batch: int, start: int, end: int) -> tuple[PlanEntry, dict[str, Any]]:
    """Return a stored part of partition 0 under the current tables, and its context."""
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


def task_settings(bench: Bench, made: tuple[PlanEntry, dict[str, Any]]) -> ImageWork | None:
    """Return the image settings for the tasks of a part; afterwards the tasks count as run without records."""
    runner: Any = bench.runner
    found: ImageWork | None = runner._images.part(bench.store, *made)
    if found is not None:
        runner._images.settle(found, ())
    return found


def test_images_begin_with_the_first_imaged_part(bench: Bench) -> None:
    plain = part(bench, 0, 0, 4)
    assert plain[1]["images"] == {}
    assert task_settings(bench, plain) is None
    bench.world.apply(AlterTable("shop", "orders", cdc=IMAGES))
    parts = [part(bench, number, 4 * number, 4 * number + 4) for number in (1, 2, 3)]
    works = [task_settings(bench, one) for one in parts]
    assert [work and work.born for work in works] == [((0, 4),)] * 3
    assert [work and work.kept_from for work in works] == [((0, 0),), ((0, 4),), ((0, 8),)]
    assert {name for work in works if work for name, _ in work.tables} == {"shop.orders"}
    again = task_settings(bench, parts[1])
    assert again is not None
    assert task_settings(bench, parts[2]) is not None


def test_a_part_after_an_imaged_part_needs_its_states(bench: Bench, tmp_path: Path) -> None:
    bench.world.apply(AlterTable("shop", "orders", cdc=IMAGES))
    assert task_settings(bench, part(bench, 0, 0, 4)) is not None
    for path in (tmp_path / "images").iterdir():
        path.unlink()
    with pytest.raises(ImagesLost, match="missing"):
        task_settings(bench, part(bench, 1, 4, 8))
    bench.world.apply(AlterTable("shop", "orders", cdc=CdcOptions(True)))
    assert task_settings(bench, part(bench, 2, 8, 9)) is None
    bench.world.apply(AlterTable("shop", "orders", cdc=IMAGES))
    begun = task_settings(bench, part(bench, 3, 9, 12))
    assert begun is not None
    assert begun.born == ((0, 9),)


# Parts of batches as Spark runs them: the driver's folder, the task function, and repeated tasks.


class Counts:
    """The accumulator that a task function gets."""

    def __init__(self) -> None:
        self.value = Tally()

    def add(self, tally: Tally) -> None:
        self.value = TallyParam().addInPlace(self.value, tally)


@pytest.mark.parametrize("held_bytes_max", [HELD_BYTES_MAX, 2_000])
def test_repeated_tasks_agree(held_bytes_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog_cdc.images.store.HELD_BYTES_MAX", held_bytes_max)
    chance, table, memory = Random(3), routing("full", True), MemoryStates()
    driver = ImageFolder(ImageFiles(tmp_path / "images"), 1)
    parts: list[tuple[OffsetRange, list[pa.RecordBatch], list[Any]]] = []
    for start in range(0, 120, 30):
        values = [random_write(chance) for _ in range(30)]
        cuts = [(0, 11), (11, 30)]
        batches = [batch_of(values[a:b], start + a, [NOW + start + at for at in range(a, b)]) for a, b in cuts]
        wanted = [row for one in batches for row in records_of(table, read(one), LARGE, memory).batch().to_pylist()]
        parts.append((OffsetRange(3, start, start + 30), batches, wanted))

    def carry_out(number: int, attempts: int) -> None:
        item, batches, wanted = parts[number]
        kept_from = dict.fromkeys((1, 3), parts[max(number - 1, 0)][0].start)
        idle = OffsetRange(1, item.start, item.end)
        images = driver.work(
            tuple((name, one.id) for name, one in sorted(table.definition.images.items())),
            [item, idle],
            kept_from,
            kept_before=None if number == 0 else True,
        )
        for _ in range(attempts):
            counts = Counts()
            task = rows_function(SimpleNamespace(value=table), LARGE, counts, images)
            assert [row for made in task(iter(batches)) for row in made.to_pylist()] == wanted
            assert counts.value.records == 30
            assert counts.value.with_states == {3: 30}
        assert images is not None
        driver.settle(images, counts.value.with_states)

    for number, attempts in ((0, 1), (1, 2), (0, 1), (1, 1), (2, 1), (1, 3), (2, 1), (3, 1)):
        carry_out(number, attempts)
