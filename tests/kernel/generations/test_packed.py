"""Ranges in columns are those of the tuple: as values, in their digests and encodings, joined, and in a state."""

from __future__ import annotations

import pickle
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.encoding.decoder import decode_parts
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest, encode, encoded_parts
from ringlog.kernel.generations.check import broken_part, broken_whole
from ringlog.kernel.generations.describe import generate, ranges_digest
from ringlog.kernel.generations.packed import (
    PACKED_FROM,
    PackedRanges,
    Ranges,
    as_ranges,
    ends_of,
    joined,
    no_ends,
    packed,
    streams_in,
)
from ringlog.kernel.model.state import ClusterState
from tests.kernel.generations.clusters import described, directory, generation


def columns_of(ranges: Ranges) -> PackedRanges:
    found = packed(ranges)
    assert found is not None
    assert packed(found) is found
    return found


@given(described(), st.sets(st.integers(-60, 60), max_size=4))
def test_columns_are_the_ranges(ranges: Ranges, some: set[int]) -> None:
    columns = columns_of(ranges)
    assert (columns[0], columns[-1], len(columns)) == (ranges[0], ranges[-1], len(ranges))
    assert ends_of(columns) == ends_of(ranges)
    tokens = sorted(some | {ranges[0].end, ranges[-1].end})
    assert no_ends(columns, tokens) == no_ends(ranges, tokens) == sorted(set(tokens) - set(ends_of(ranges)))
    assert streams_in(columns) == streams_in(ranges) == sum(len(one.streams) for one in ranges)
    assert ranges_digest(columns) == ranges_digest(ranges)
    assert broken_part(columns) == broken_part(ranges)
    assert broken_whole([columns]) == broken_whole([ranges])
    assert columns._made is None  # nothing of that makes single ranges
    assert columns == ranges
    assert ranges == columns
    assert hash(columns) == hash(ranges)
    assert encode(columns) == encode(ranges)
    assert repr(columns) == repr(ranges)
    assert pickle.loads(pickle.dumps(columns)) == columns_of(ranges) == columns
    assert all(one is other for one, other in zip(columns, columns[:], strict=True))


@given(described(), described())
def test_other_ranges_are_not_equal(one: Ranges, other: Ranges) -> None:
    assert (columns_of(one) == columns_of(other)) == (one == other)
    assert (columns_of(one) == other) == (one == other)
    assert columns_of(one) != list(one)


@given(described(), st.lists(st.integers(0, 24), max_size=3), st.data())
def test_parts_are_joined(ranges: Ranges, cuts: list[int], data: st.DataObject) -> None:
    bounds = sorted({0, len(ranges), *(cut for cut in cuts if cut < len(ranges))})
    parts = [ranges[start:end] for start, end in pairwise(bounds)]
    mixed = [part if data.draw(st.booleans()) else as_ranges(columns_of(part)) for part in parts]
    assert joined(mixed) == ranges
    whole = joined([as_ranges(columns_of(part)) for part in parts])
    assert isinstance(whole, PackedRanges)
    assert whole == ranges


def test_a_stored_state_has_them_packed() -> None:
    ends = range(-PACKED_FROM // 2, PACKED_FROM // 2)
    ranges = generate(dict.fromkeys(ends, "a"), directory((1, 12)), bytes(16))
    state = ClusterState(generations=(generation(ranges), generation(ranges[1:], 2, "h")))
    found = decode_parts(encoded_parts(state))
    assert [isinstance(one.ranges, PackedRanges) for one in found.generations] == [True, False]
    assert found.generations == state.generations
    assert digest(found) == digest(state) == Digester().digest(found)
