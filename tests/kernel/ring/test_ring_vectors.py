"""Shards of tokens compared with documented values and a search, and vectorized functions with scalar ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ringlog.kernel.ring import vectors
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.ring.shards import first_token_of_shard, shard_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN

high_bytes = st.lists(st.integers(0x70, 0xFF), max_size=40).map(bytes)


def flat(keys: list[bytes], dtype: type = np.int32) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, keys)]).astype(dtype)
    return np.frombuffer(b"".join(keys), dtype=np.uint8), offsets


@given(st.lists(st.binary(max_size=100) | high_bytes, max_size=40))
def test_tokens_equal_the_scalar_ones(keys: list[bytes]) -> None:
    data, offsets = flat(keys)
    assert vectors.tokens_of(data, offsets).tolist() == [token_of(key) for key in keys]


def test_all_lengths_with_every_byte_high_over_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "CHUNK_ROWS", 7)
    rng = np.random.default_rng(20240229)
    keys = [rng.integers(low, 256, length, dtype=np.uint8).tobytes() for length in range(101) for low in (0, 0x80)]
    data, offsets = flat(keys, np.int64)
    assert vectors.tokens_of(data, offsets).tolist() == [token_of(key) for key in keys]


def test_an_arrow_slice_begins_in_the_middle_of_its_buffer() -> None:
    keys = [b"first", b"", b"\xff" * 17, b"last"]
    data, offsets = flat(keys)
    assert vectors.tokens_of(data, offsets[1:]).tolist() == [token_of(key) for key in keys[1:]]
    assert vectors.tokens_of(data, offsets[:1]).tolist() == []


def test_the_illegal_hash_becomes_the_greatest_token() -> None:
    data, offsets = flat([bytes.fromhex("a1ded3809597e1fa5a0c902750d0d7f2")])
    assert vectors.tokens_of(data, offsets).tolist() == [TOKEN_MAX]


@pytest.mark.parametrize("offsets", [[], [0, 4], [0, 2, 1], [-1, 2]])
def test_bad_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets must ascend"):
        vectors.tokens_of(np.zeros(3, dtype=np.uint8), np.array(offsets, dtype=np.int64))


@given(
    hnp.arrays(np.int64, st.integers(0, 50), elements=st.integers(TOKEN_MIN, TOKEN_MAX)),
    st.integers(1, 4096),
    st.integers(0, 63),
)
def test_shards_equal_the_scalar_ones(tokens: np.ndarray, shards: int, ignore_msb: int) -> None:
    expected = [shard_of(token, shards, ignore_msb) for token in tokens.tolist()]
    assert vectors.shards_of(tokens, shards, ignore_msb).tolist() == expected
    per_row = np.full(len(tokens), shards), np.full(len(tokens), ignore_msb)
    assert vectors.shards_of(tokens, *per_row).tolist() == expected


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
    """With most bits ignored, a slice has few tokens, so a linear search finds the first one."""
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
    """A wrapping range near the ends of the ring is searched up to the greatest token, then from the least."""
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
