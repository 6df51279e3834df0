"""Parts of batches as Spark runs them: the driver's folder, the function of the tasks, and tasks that are run again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ringlog_cdc.arrow import read, records_of, rows_function
from ringlog_cdc.images.files import ImageFiles
from ringlog_cdc.images.store import HELD_BYTES_MAX
from ringlog_cdc.images.work import ImageFolder
from ringlog_cdc.plan import OffsetRange
from ringlog_cdc.tally import RECORDS, WITH_STATES, Tally, TallyParam, of_kind
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.test_easy import batch_of, draw, routing
from tests.cdc.test_columnar import LARGE, NOW


class Counts:
    """What an accumulator is for the function of a task."""

    def __init__(self) -> None:
        self.value: Tally = {}

    def add(self, tally: Tally) -> None:
        self.value = TallyParam().addInPlace(self.value, tally)


@pytest.mark.parametrize("held_bytes_max", [HELD_BYTES_MAX, 2_000])
def test_tasks_that_are_run_again_and_parts_that_are_carried_out_again_give_the_same(
    held_bytes_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringlog_cdc.images.store.HELD_BYTES_MAX", held_bytes_max)
    chance, table, memory = Random(3), routing("full", True), MemoryStates()
    driver = ImageFolder(ImageFiles(tmp_path / "images"), 1)
    parts: list[tuple[OffsetRange, list[pa.RecordBatch], list[Any]]] = []
    for start in range(0, 120, 30):
        values = [draw(chance) for _ in range(30)]
        cuts = [(0, 11), (11, 30)]
        batches = [batch_of(values[a:b], start + a, [NOW + start + at for at in range(a, b)]) for a, b in cuts]
        wanted = [row for one in batches for row in records_of(table, read(one), LARGE, memory).batch().to_pylist()]
        parts.append((OffsetRange(3, start, start + 30), batches, wanted))

    def carry_out(number: int, attempts: int) -> None:
        item, batches, wanted = parts[number]
        kept_from = dict.fromkeys((1, 3), parts[max(number - 1, 0)][0].start)
        idle = OffsetRange(1, item.start, item.end)
        images = driver.work(table.images, [item, idle], kept_from, kept_before=None if number == 0 else True)
        for _ in range(attempts):
            counts = Counts()
            task = rows_function(SimpleNamespace(value=table), LARGE, counts, images)
            assert [row for made in task(iter(batches)) for row in made.to_pylist()] == wanted
            assert counts.value[RECORDS] == 30
            assert of_kind(counts.value, WITH_STATES) == {3: 30}
        assert images is not None
        driver.settle(images, of_kind(counts.value, WITH_STATES))

    for number, attempts in ((0, 1), (1, 2), (0, 1), (1, 1), (2, 1), (1, 3), (2, 1), (3, 1)):
        carry_out(number, attempts)
