"""A write is cut into commands that are small, whatever its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringlog.cache import redis_cache

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
