"""A write is cut into commands that are small, whatever its size; what is not whole is told from what is another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.cache import redis_cache
from ringlog.cache.port import CacheUnavailable

rows = st.lists(st.tuples(st.integers(0, 9), st.text(max_size=3), st.integers(0, 40).map(lambda size: "x" * size)))


@given(rows, st.integers(1, 7), st.integers(1, 60))
def test_no_piece_is_larger_than_one_command_may_be(written: list[tuple[int, str, str]], count: int, size: int) -> None:
    most = redis_cache.AT_ONCE_ROWS_MAX, redis_cache.AT_ONCE_BYTES_MAX
    redis_cache.AT_ONCE_ROWS_MAX, redis_cache.AT_ONCE_BYTES_MAX = count, size
    try:
        pieces = list(redis_cache._pieces(written))
    finally:
        redis_cache.AT_ONCE_ROWS_MAX, redis_cache.AT_ONCE_BYTES_MAX = most
    assert [row for piece in pieces for row in piece] == written
    for piece in pieces:
        assert 1 <= len(piece) <= count
        assert len(piece) == 1 or sum(len(field) + len(value) for _, field, value in piece) <= size


META = {"cluster_id": "c", "epoch": "7", "state_id": "s", "digest": "d", "offset": "8", "confirmed_at": "9"}
PARTS: list[dict[str, str]] = [{"a": "1"}, {}, {"b": "2", "c": "3"}]


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ("1 0", "has 2 parts, this release reads 3: another release's keeper wrote it"),
        ("1 0 2 4", "has 4 parts, this release reads 3: another release's keeper wrote it"),
        ("1 0 3", "lost a part of epoch 7"),
        ("", "lost a part of epoch 7"),
    ],
)
def test_what_is_not_whole_is_not_read_and_says_why(counts: str, why: str) -> None:
    with pytest.raises(CacheUnavailable, match=why):
        redis_cache.decode_stored(META | {"counts": counts}, PARTS)


def test_without_counts_a_part_is_lost() -> None:
    """The sound one beside those above is the conformance suite's, which has all parts."""
    with pytest.raises(CacheUnavailable, match="lost a part"):
        redis_cache.decode_stored(META, PARTS)
