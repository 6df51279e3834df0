"""Records that are not small: a task stops before the first one, and what is left is known."""

from __future__ import annotations

import pyarrow as pa

from ringlog_cdc.plan import OffsetRange
from ringlog_cdc.sizes import CUT, MARK, before_mark, left_of
from ringlog_cdc.tally import of_kind


class Counts:
    def __init__(self) -> None:
        self.tally: dict[tuple[str, int], int] = {}

    def add(self, tally: dict[tuple[str, int], int]) -> None:
        self.tally |= tally


def batch(first: int, appended: list[int]) -> pa.RecordBatch:
    offsets = range(first, first + len(appended))
    columns = [pa.array([3] * len(appended), pa.int32()), pa.array(offsets, pa.int64()), pa.array(appended, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "appended"])


def test_a_task_goes_as_far_as_the_first_mark_and_reads_on_to_its_end() -> None:
    read = []

    def task() -> object:
        for one in (batch(0, [7, 7]), batch(2, [7, MARK, 7, MARK]), batch(6, [7])):
            read.append(one)
            yield one

    counts = Counts()
    found = [number for one in before_mark(task(), counts) for number in one.column("offset").to_pylist()]
    assert found == [0, 1, 2]
    assert len(read) == 3
    cut = of_kind(counts.tally, CUT)
    assert left_of([OffsetRange(2, 0, 9), OffsetRange(3, 0, 7)], cut) == [OffsetRange(3, 3, 7)]


def test_a_mark_at_offset_zero_leaves_everything() -> None:
    counts = Counts()
    assert [one.num_rows for one in before_mark([batch(0, [MARK])], counts)] == [0]
    assert left_of([OffsetRange(3, 0, 1)], of_kind(counts.tally, CUT)) == [OffsetRange(3, 0, 1)]


def test_without_a_mark_nothing_is_cut() -> None:
    counts = Counts()
    assert [one.num_rows for one in before_mark([batch(0, [7]), batch(1, [])], counts)] == [1, 0]
    assert counts.tally == {}
