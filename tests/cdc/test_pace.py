"""Sizes of the parts of a batch: a job that dies repeatedly still makes progress."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringlog_cdc.bulk.arrow_batching import MARK, before_mark, left_of
from ringlog_cdc.bulk.tally import Tally
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.plan.plan import FIRST, LEAST, PART_S, OffsetRange, at_most, next_limit
from ringlog_cdc.plan.source_partitioning import SOURCES_MAX, batch_ends, decode_offsets, shares_of, sources_of

SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 900))
def test_parts_of_a_batch_are_small_and_complete(sizes: list[int], limit: int) -> None:
    left = tuple(OffsetRange(number, 10, 10 + size) for number, size in enumerate(sizes))
    parts = 0
    while left:
        part, is_last = at_most(left, True, limit)
        assert sum(item.end - item.start for item in part) <= max(limit, len(part))
        assert [item.start for item in part] == [item.start for item in left]
        ends = {item.partition: item.end for item in part}
        rest = [OffsetRange(item.partition, ends[item.partition], item.end) for item in left]
        left = tuple(item for item in rest if item.start < item.end)
        assert is_last == (not left)
        parts += 1
    assert parts <= sum(sizes)
    assert not at_most((OffsetRange(0, 0, 1),), False, limit)[1], "a held part completes no batch"


@given(st.floats(1e-6, 0.01), st.floats(50, 100), st.floats(0, 40))
@example(0.0005322697594119105, 50.0, 31.0)
def test_short_lived_drivers_make_progress(each: float, life: float, start: float) -> None:
    """``each`` is the time of one offset in seconds. A driver that dies leaves a part, and the next driver
    repeats it.
    """
    batch, done, begun = 500_000, 0, 0
    work = life - max(start, 0)
    lives = 0
    while done < batch and lives < 10_000:
        lives += 1
        limit, left, together = FIRST, work, 0
        while done < batch:
            part = begun or min(limit, batch - done)
            if part * each > left:
                begun = part
                break
            left -= part * each
            done, begun = done + part, 0
            together += part
            limit = next_limit(limit, part, part * each, together)
        if FIRST * each > work:
            return  # not even the first part fits, and no driver can know that
        assert begun * each <= work
    assert done == batch


def test_quick_parts_grow_and_slow_ones_shrink() -> None:
    assert next_limit(FIRST, FIRST, 0.5, FIRST) == FIRST, "the second part is as large as the first"
    assert next_limit(FIRST, FIRST, 0.5, 2 * FIRST) == 2 * FIRST
    assert next_limit(FIRST, 100, 0.5, 2 * FIRST) == FIRST, "a small part changes nothing"
    assert next_limit(FIRST, FIRST, 10 * PART_S, FIRST) == FIRST // 10
    assert next_limit(LEAST, LEAST, 10 * PART_S, LEAST) == LEAST
    assert next_limit(100 * FIRST, 100 * FIRST, PART_S, 300 * FIRST) == 100 * FIRST


# Large records: a task stops before the first one, and the job knows the remaining records.


class Counts:
    def __init__(self) -> None:
        self.tally = Tally()

    def add(self, tally: Tally) -> None:
        self.tally.add(tally)


def batch(first: int, appended: list[int]) -> pa.RecordBatch:
    offsets = range(first, first + len(appended))
    columns = [pa.array([3] * len(appended), pa.int32()), pa.array(offsets, pa.int64()), pa.array(appended, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "appended"])


def test_a_task_writes_up_to_the_first_mark_and_reads_to_its_end() -> None:
    read = []

    def task() -> object:
        for one in (batch(0, [7, 7]), batch(2, [7, MARK, 7, MARK]), batch(6, [7])):
            read.append(one)
            yield one

    counts = Counts()
    found = [number for one in before_mark(task(), counts) for number in one.column("offset").to_pylist()]
    assert found == [0, 1, 2]
    assert len(read) == 3
    cut = counts.tally.cuts
    assert left_of([OffsetRange(2, 0, 9), OffsetRange(3, 0, 7)], cut) == [OffsetRange(3, 3, 7)]


def test_a_mark_at_offset_zero_leaves_all_records() -> None:
    counts = Counts()
    assert [one.num_rows for one in before_mark([batch(0, [MARK])], counts)] == [0]
    assert left_of([OffsetRange(3, 0, 1)], counts.tally.cuts) == [OffsetRange(3, 0, 1)]


def test_without_a_mark_nothing_is_cut() -> None:
    counts = Counts()
    assert [one.num_rows for one in before_mark([batch(0, [7]), batch(1, [])], counts)] == [1, 0]
    assert counts.tally == Tally()


# Shares of the source partitions, and a line per source in Spark's offset log.


@given(st.integers(1, 100), st.integers(1, 1_000_000), st.none() | st.integers(1, 20))
def test_each_partition_is_read_once_with_an_equal_share(partitions: int, limit: int, sources: int | None) -> None:
    shares = shares_of(partitions, limit, sources)
    assert len(shares) == min(partitions, sources or SOURCES_MAX)
    assert sorted(partition for share in shares for partition in share.partitions) == list(range(partitions))
    sizes = [len(share.partitions) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert len({share.limit for share in shares}) == 1
    assert limit <= sum(share.limit for share in shares) < limit + len(shares)


def test_a_checkpoint_keeps_its_number_of_sources(tmp_path: Path) -> None:
    assert sources_of(tmp_path) is None
    offsets = tmp_path / "spark" / "offsets"
    offsets.mkdir(parents=True)
    assert sources_of(tmp_path) is None
    (offsets / ".10.crc").write_bytes(b"")
    (offsets / "9").write_text('v1\n{}\n{"t":{"0":1}}')
    assert sources_of(tmp_path) == 1
    (offsets / "10").write_text('v1\n{}\n{"t":{"0":1,"2":3}}\n-\n')
    assert sources_of(tmp_path) == 2
    assert batch_ends(tmp_path, 10, "t") == {0: 1, 2: 3}
    with pytest.raises(ChainBroken, match="does not contain batch 11"):
        batch_ends(tmp_path, 11, "t")


def test_the_end_of_a_batch_is_that_of_all_its_sources() -> None:
    assert decode_offsets(b'v1\n{"batch":1}\n{"t":{"1":5}}\n-\n{"t":{"0":7,"2":0}}\n', "t") == {0: 7, 1: 5, 2: 0}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1",
        b"v1\n{}\n",
        b"v1\n{}\n-",
        b'v2\n{}\n{"t":{"0":1}}',
        b'v1\n{}\n{"u":{"0":1}}',
        b'v1\n{}\n{"t":{"0":1}}\n{"t":{"0":1}}',
        b'v1\n{}\n{"t":{"0":1.5}}',
        b'v1\n{}\n{"t":{"x":1}}',
        b'v1\n{}\n{"t":[]}',
        b"\xff",
    ],
)
def test_invalid_offset_logs_are_refused(data: bytes) -> None:
    with pytest.raises(ChainBroken, match="unreadable"):
        decode_offsets(data, "t")
