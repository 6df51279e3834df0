"""Shards of tokens and the first token of a shard: worked tables, and a plain search as the oracle."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.ring.shards import first_token_of_shard, shard_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN

TESTDATA = Path(__file__).parents[2] / "testdata"


def table(name: str) -> list[list[str]]:
    lines = (TESTDATA / name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def test_shard_of_every_worked_token() -> None:
    head, *rows = table("shards.txt")
    settings = [tuple(int(part[1:]) for part in pair.split(",")) for pair in head[1:]]
    assert len(rows) == 12
    for token, *shards in rows:
        assert [shard_of(int(token), n, k) for n, k in settings] == [int(shard) for shard in shards]


@pytest.mark.parametrize("row", table("slots.txt"))
def test_first_tokens_of_worked_ranges(row: list[str]) -> None:
    start, end, shards, ignore_msb, *slots = (int(cell) for cell in row)
    assert [first_token_of_shard(start, end, j, shards, ignore_msb) for j in range(shards)] == slots


@given(
    start=st.integers(-60, 60),
    width=st.integers(1, 60),
    shards=st.integers(1, 9),
    ignore_msb=st.integers(57, 63),
    shard=st.integers(0, 8),
)
def test_first_token_against_a_walk(start: int, width: int, shards: int, ignore_msb: int, shard: int) -> None:
    """With most bits ignored a slice is a few tokens long, so a plain walk can find the first one."""
    shard %= shards
    end = start + width
    walked = next((t for t in range(start + 1, end + 1) if shard_of(t, shards, ignore_msb) == shard), end)
    assert first_token_of_shard(start, end, shard, shards, ignore_msb) == walked


@given(
    gap_start=st.integers(-6, 6),
    gap=st.integers(0, 60),
    shards=st.integers(1, 9),
    ignore_msb=st.integers(57, 63),
    shard=st.integers(0, 8),
)
def test_first_token_of_a_wrapping_range(gap_start: int, gap: int, shards: int, ignore_msb: int, shard: int) -> None:
    """A range that wraps near the ends of the ring: walked up to the greatest token, then from the least."""
    shard %= shards
    start, end = TOKEN_MAX - gap, TOKEN_MIN + 6 + gap_start
    walk = [*range(start + 1, TOKEN_MAX + 1), *range(TOKEN_MIN, end + 1)]
    walked = next((t for t in walk if shard_of(t, shards, ignore_msb) == shard), end)
    assert first_token_of_shard(start, end, shard, shards, ignore_msb) == walked


tokens = st.integers(TOKEN_MIN, TOKEN_MAX)


@given(start=tokens, end=tokens, shards=st.integers(1, 300), ignore_msb=st.integers(0, 16), shard=st.integers(0, 299))
def test_first_token_lies_in_range_and_shard(start: int, end: int, shards: int, ignore_msb: int, shard: int) -> None:
    shard %= shards
    found = first_token_of_shard(start, end, shard, shards, ignore_msb)
    assert in_range(found, start, end)
    assert found == end or shard_of(found, shards, ignore_msb) == shard
    before = found - 1
    if found != end and before != start and before >= TOKEN_MIN:
        assert shard_of(before, shards, ignore_msb) != shard
