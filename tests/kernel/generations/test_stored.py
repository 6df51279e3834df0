"""Generations stored in columns equal their ranges, and a snapshot restores them with the same canonical bytes."""

from __future__ import annotations

import pickle
import random
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.encoding.decoder import StateUndecodable, decode_parts
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest, digest_of_chunks, encode, encoded_parts, sha256_of
from ringlog.kernel.encoding.stored_generations import canonical_chunks, read_generations, stored_generations
from ringlog.kernel.generations.canonical import size_of_canonical
from ringlog.kernel.generations.check import broken_part, broken_whole
from ringlog.kernel.generations.describe import generate, ranges_digest
from ringlog.kernel.generations.packed import (
    PACKED_FROM,
    PackedRanges,
    Ranges,
    as_ranges,
    concatenated,
    ends_of,
    no_ends,
    packed,
    streams_in,
)
from ringlog.kernel.model.state import ClusterState, Forgotten, Generation, Node
from ringlog.kernel.ring.shards import SHARDS_MAX
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange, Position, Token, replace
from tests.kernel.generations.clusters import described, directory, generation, rings

Owners = dict[Token, str]
NODES = directory((3, 12), (1, 0), (9, 60))


def in_columns(ranges: tuple[GenerationRange, ...]) -> PackedRanges:
    found = packed(ranges)
    assert found is not None
    return found


def growing(draw: random.Random, owners: Owners, nodes: dict[str, Node], joins: int) -> list[Generation]:
    """Return a generation for each of several changes of a ring."""
    found = []
    for number in range(joins):
        ranges = generate(owners, nodes, draw.randbytes(16))
        one = replace(generation((), number, f"g{number}"), ranges=as_ranges(in_columns(ranges)))
        found.append(replace(one, positions=(Position(number, 7),), closed_at=number % 2))
        for _ in range(draw.randint(0, 3)):
            owners[draw.randint(TOKEN_MIN, TOKEN_MAX)] = draw.choice(sorted(nodes))
        if len(owners) > 1 and draw.random() < 0.3:
            del owners[draw.choice(sorted(owners))]
        if draw.random() < 0.2:
            owners[draw.choice(sorted(owners))] = draw.choice(sorted(nodes))
    return found


@settings(max_examples=60, deadline=None)
@given(described(), described())
def test_columns_are_encoded_as_ranges(first: tuple[GenerationRange, ...], then: tuple[GenerationRange, ...]) -> None:
    for ranges in (first, then, first[1:] or first, first):
        columns = in_columns(ranges)
        assert encode(columns) == encode(ranges)
        assert size_of_canonical(columns) == len(encode(ranges))
        assert columns._made is None


@settings(max_examples=40, deadline=None)
@given(rings(), st.randoms(use_true_random=False), st.integers(1, 6))
def test_generations_are_restored_from_a_snapshot(
    ring: tuple[Owners, dict[str, Node]], draw: random.Random, joins: int
) -> None:
    generations = growing(draw, dict(ring[0]), ring[1], joins)
    found = read_generations(stored_generations(generations))
    assert found == tuple(generations)
    assert all(type(one.ranges) is PackedRanges for one in found)
    assert b"".join(canonical_chunks(found)) == encode(tuple(generations))
    assert digest_of_chunks(canonical_chunks(generations)) == sha256_of(encode(tuple(generations)))


def test_other_generations_are_stored_unchanged() -> None:
    draw = random.Random(1)
    first, second, third = growing(draw, dict.fromkeys(range(-9, 9), "a"), NODES, 3)
    small = replace(first, ranges=tuple(first.ranges))
    gone = replace(first, ranges=(), forgotten=Forgotten(3, 4, "x"))
    shuffled = replace(second, ranges=as_ranges(in_columns(tuple(reversed(second.ranges)))))
    others = in_columns(
        tuple(replace(one, streams=tuple(map(bytes, [range(16)] * len(one.streams)))) for one in third.ranges)
    )
    strange = replace(third, ranges=as_ranges(others))
    generations = (small, first, gone, shuffled, second, strange, third)
    assert read_generations(stored_generations(generations)) == generations
    assert b"".join(canonical_chunks(generations)) == encode(generations)


def test_a_join_adds_few_bytes() -> None:
    draw = random.Random(2)
    owners = {draw.randint(TOKEN_MIN, TOKEN_MAX): "b" for _ in range(1_000)}
    found = []
    for number in range(5):
        owners[draw.randint(TOKEN_MIN, TOKEN_MAX)] = "b"
        ranges = as_ranges(in_columns(generate(owners, NODES, draw.randbytes(16))))
        found.append(replace(generation((), number, f"g{number}"), ranges=ranges))
    sizes = [len(stored_generations(found[:number])) for number in range(1, 6)]
    for before, after in pairwise(sizes):
        assert 5 * 1_000 < after - before < 5 * 1_000 + 500


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_changed_bytes_change_the_generation_or_are_rejected(seed: int, data: st.DataObject) -> None:
    draw = random.Random(seed)
    generations = growing(draw, dict.fromkeys(range(-3, 3), "a"), NODES, 3)
    stored = bytearray(stored_generations(generations))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stored) - 1))
        if data.draw(st.booleans()):
            stored[at] = data.draw(st.integers(0, 255))
        else:
            del stored[at : at + data.draw(st.integers(1, 40))]
        if not stored:
            break
    try:
        found = read_generations(bytes(stored))
    except StateUndecodable:
        return
    assert (found == tuple(generations)) == (
        digest_of_chunks(canonical_chunks(found)) == digest_of_chunks(canonical_chunks(generations))
    )


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xff" * 8, b"\xff" * 60])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(StateUndecodable):
        read_generations(data)


@pytest.mark.parametrize("streams", [0, 7, 2_000 * SHARDS_MAX])
def test_missing_streams_allocate_no_memory(streams: int) -> None:
    records = encode((generation((), 1, "g"),))
    ends = np.arange(2_000)
    new = np.stack((ends, 0 * ends, 0 * ends + SHARDS_MAX), axis=1).astype("<i8")
    head = np.array((0, 0, len(new), 0, streams), "<i8")
    data = len(records).to_bytes(8, "little") + records + head.tobytes() + new.tobytes() + bytes(35)
    tracemalloc.start()
    try:
        with pytest.raises(StateUndecodable):
            read_generations(data)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data)
    finally:
        tracemalloc.stop()


def columns_of(ranges: Ranges) -> PackedRanges:
    found = packed(ranges)
    assert found is not None
    assert packed(found) is found
    return found


@given(described(), st.sets(st.integers(-60, 60), max_size=4))
def test_columns_equal_the_ranges(ranges: Ranges, some: set[int]) -> None:
    columns = columns_of(ranges)
    assert (columns[0], columns[-1], len(columns)) == (ranges[0], ranges[-1], len(ranges))
    assert ends_of(columns) == ends_of(ranges)
    tokens = sorted(some | {ranges[0].end, ranges[-1].end})
    assert no_ends(columns, tokens) == no_ends(ranges, tokens) == sorted(set(tokens) - set(ends_of(ranges)))
    assert streams_in(columns) == streams_in(ranges) == sum(len(one.streams) for one in ranges)
    assert ranges_digest(columns) == ranges_digest(ranges)
    assert broken_part(columns) == broken_part(ranges)
    assert broken_whole([columns]) == broken_whole([ranges])
    assert columns._made is None  # does not create single ranges
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
    assert concatenated(mixed) == ranges
    whole = concatenated([as_ranges(columns_of(part)) for part in parts])
    assert isinstance(whole, PackedRanges)
    assert whole == ranges


def test_a_stored_state_has_packed_generations() -> None:
    ends = range(-PACKED_FROM // 2, PACKED_FROM // 2)
    ranges = generate(dict.fromkeys(ends, "a"), directory((1, 12)), bytes(16))
    state = ClusterState(generations=(generation(ranges), generation(ranges[1:], 2, "h")))
    found = decode_parts(encoded_parts(state))
    assert [isinstance(one.ranges, PackedRanges) for one in found.generations] == [True, False]
    assert found.generations == state.generations
    assert digest(found) == digest(state) == Digester().digest(found)
