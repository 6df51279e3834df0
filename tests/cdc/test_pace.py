"""How large parts of a batch are: a job that dies again and again gets through all the same."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ringlog_cdc.pace import FIRST, LEAST, PART_S, next_limit
from ringlog_cdc.plan import OffsetRange, at_most

SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 900))
def test_parts_of_a_batch_are_small_leave_nothing_out_and_end(sizes: list[int], limit: int) -> None:
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
    assert not at_most((OffsetRange(0, 0, 1),), False, limit)[1], "what is held completes no batch"


@given(st.floats(1e-6, 0.01), st.floats(50, 100), st.floats(0, 40))
@example(0.0005322697594119105, 50.0, 31.0)
def test_who_lives_about_as_long_again_and_again_gets_through(each: float, life: float, start: float) -> None:
    """``each``: seconds that one offset takes. A driver that dies leaves a part, which the next one begins with."""
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
            return  # not even the first part fits: nobody could know
        assert begun * each <= work
    assert done == batch


def test_quick_parts_grow_and_slow_ones_shrink() -> None:
    assert next_limit(FIRST, FIRST, 0.5, FIRST) == FIRST, "a second part as large as the first"
    assert next_limit(FIRST, FIRST, 0.5, 2 * FIRST) == 2 * FIRST
    assert next_limit(FIRST, 100, 0.5, 2 * FIRST) == FIRST, "a small part says nothing"
    assert next_limit(FIRST, FIRST, 10 * PART_S, FIRST) == FIRST // 10
    assert next_limit(LEAST, LEAST, 10 * PART_S, LEAST) == LEAST
    assert next_limit(100 * FIRST, 100 * FIRST, PART_S, 300 * FIRST) == 100 * FIRST
