"""Look-up of streams: a linear scan as the oracle of the scalar one, and the scalar one as that of the table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.generations import check, vectors
from ringlog.kernel.generations.acceptance import generation_at, range_of, stream_of
from ringlog.kernel.generations.check import broken_part
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.vectors import StreamTable
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange
from tests.kernel.generations.clusters import described, directory, generation, tokens
from tests.kernel.ownership.rings import a_node

Ranges = tuple[GenerationRange, ...]


@given(described(), st.lists(tokens, min_size=1, max_size=30))
def test_range_of_against_a_scan(ranges: Ranges, writes: list[int]) -> None:
    for token in writes:
        holding = [index for index, part in enumerate(ranges) if in_range(token, ranges[index - 1].end, part.end)]
        assert [range_of(ranges, token)] == holding


def test_generation_at_its_edges() -> None:
    first, second = generation((), 100, "one"), generation((), 200, "two")
    found = [generation_at((first, second), at) for at in (99, 100, 199, 200, 10**9)]
    assert found == [None, first, first, second, second]
    assert generation_at((), 5) is None


def with_ends(ranges: Ranges, writes: list[int]) -> list[int]:
    return [*writes, *(part.end for part in ranges), *(part.end - 1 for part in ranges), -(2**63)]


@given(described(), st.lists(tokens, max_size=40))
def test_the_table_equals_the_scalar_look_up(ranges: Ranges, writes: list[int]) -> None:
    writes = with_ends(ranges, writes)
    found = StreamTable([ranges]).route(np.array(writes, dtype=np.int64), 0)
    assert found.shape == (len(writes), 16)
    assert [row.tobytes() for row in found] == [stream_of(generation(ranges), token) for token in writes]


@given(st.lists(described(), min_size=1, max_size=4), st.lists(st.tuples(tokens, st.integers(0, 3)), max_size=60))
def test_several_generations_in_one_batch(several: list[Ranges], writes: list[tuple[int, int]]) -> None:
    table = StreamTable(several)
    which = np.array([index % len(several) for _, index in writes], dtype=np.int32)
    drawn = np.array([token for token, _ in writes], dtype=np.int64)
    expected = [
        stream_of(generation(several[g]), token) for token, g in zip(drawn.tolist(), which.tolist(), strict=True)
    ]
    assert [row.tobytes() for row in table.route(drawn, which)] == expected
    assert [table.streams[row].tobytes() for row in table.locate(drawn, which)] == expected


def test_even_and_clustered_rings_of_many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots where ends are spread, bisection where they crowd; a batch of several chunks, not contiguous."""
    monkeypatch.setattr(vectors, "CHUNK_ROWS", 100)
    rng = np.random.default_rng(20240229)
    nodes = directory((3, 12), (5, 0))
    spread = rng.integers(-(2**63) + 1, 2**63 - 1, 500, dtype=np.int64).tolist()
    crowded = list(range(-200, 200))
    for ends in (spread, crowded):
        ranges = generate({end: "ab"[place % 2] for place, end in enumerate(ends)}, nodes, b"x" * 16)
        near = [end + step for end in ends for step in (-1, 0, 1)]
        drawn = np.array([*near, *rng.integers(-(2**63), 2**63 - 1, 1000, dtype=np.int64).tolist()], dtype=np.int64)
        strided = np.repeat(drawn, 2)[::2]
        expected = [stream_of(generation(ranges), token) for token in drawn.tolist()]
        assert [row.tobytes() for row in StreamTable([ranges]).route(strided, 0)] == expected


def test_refused_rows_and_unknown_generations_have_no_stream() -> None:
    table = StreamTable([generate({0: "a"}, directory((1, 0)), b"x" * 16)])
    batch = np.array([1, 2], dtype=np.int64)
    for which in (np.array([0, -1]), np.array([0, 1]), 1, -1):
        with pytest.raises(IndexError, match="between 0 and 0"):
            table.route(batch, which)
    assert table.route(batch[:0], np.empty(0, dtype=np.int32)).shape == (0, 16)
    assert StreamTable([]).route(batch[:0], np.empty(0, dtype=np.int32)).shape == (0, 16)


# The rules of a part on all ranges at once, against the rules one after the other.


ENDS = st.lists(st.integers(TOKEN_MIN, TOKEN_MAX) | st.integers(-3, 3), min_size=1, max_size=8, unique=True)


@given(ENDS, st.integers(1, 3), st.integers(0, 7), st.data())
def test_a_part_is_sound_if_no_rule_is_broken(ends: list[int], shards: int, first: int, data: st.DataObject) -> None:
    nodes = {"n": replace(a_node("n"), shards=shards)}
    ranges = list(generate(dict.fromkeys(ends, "n"), nodes, bytes(16))[first:])
    if ranges and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(ranges) - 1))
        ranges[at] = data.draw(bent(ranges[at], ranges))
    index = check._first_index(ranges)
    if index is None:
        assert broken_part(ranges) is not None
    else:
        assert broken_part(ranges) == check._first_broken(ranges, index)


def bent(described: GenerationRange, others: list[GenerationRange]) -> st.SearchStrategy[GenerationRange]:
    """The range with something else in one of its fields."""
    streams = described.streams

    def flipped(bit: int) -> tuple[bytes, ...]:
        number = int.from_bytes(streams[0], "big") ^ 1 << bit
        return (number.to_bytes(16, "big"), *streams[1:])

    others_streams = [one.streams for one in others]
    other = st.sampled_from([(), (*streams, streams[0]), (streams[-1][:15],), *others_streams])
    return (
        st.sampled_from([TOKEN_MIN - 1, TOKEN_MAX + 1, 2**70, 0, *(one.end for one in others)]).map(
            lambda end: replace(described, end=end)
        )
        | st.sampled_from([-1, 0, 63, 64, 2**40]).map(lambda bits: replace(described, ignore_msb=bits))
        | (st.integers(0, 127).map(flipped) | other).map(lambda given: replace(described, streams=given))
    )
