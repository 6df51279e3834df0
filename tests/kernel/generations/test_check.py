"""The rules of a part on all ranges at once, against the rules one after the other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.generations import check
from ringlog.kernel.generations.check import broken_part
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange
from tests.kernel.ownership.rings import a_node

ENDS = st.lists(st.integers(TOKEN_MIN, TOKEN_MAX) | st.integers(-3, 3), min_size=1, max_size=8, unique=True)


@given(ENDS, st.integers(1, 3), st.integers(0, 7), st.data())
def test_a_part_is_sound_if_and_only_if_no_rule_is_broken(
    ends: list[int], shards: int, first: int, data: st.DataObject
) -> None:
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
