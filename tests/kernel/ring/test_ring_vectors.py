"""The vectorised hash and shards against the scalar ones, which are their oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ringlog.kernel.ring import vectors
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.shards import shard_of
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
