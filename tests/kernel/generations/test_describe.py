"""Descriptions of generations: the documented example, colocation, determinism, digest, parts, and stream lookup."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.commands.cdc.generations import parts_of
from ringlog.kernel.generations import check, vectors
from ringlog.kernel.generations.acceptance import generation_at, range_of, stream_of
from ringlog.kernel.generations.check import broken_part
from ringlog.kernel.generations.describe import generate, ranges_digest
from ringlog.kernel.generations.vectors import StreamTable
from ringlog.kernel.model.state import Node
from ringlog.kernel.model.stream_id import StreamId, StreamIdError, decode, encode
from ringlog.kernel.ownership.placements import natural, ring_of
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.ring.shards import first_token_of_shard, shard_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, DatacenterReplication, GenerationRange, Replication, replace
from tests.kernel.generations.clusters import Owners, described, directory, generation, rings, tokens
from tests.kernel.ownership.rings import a_node

SEED = bytes(range(16))
HALF = 1 << 64


def test_slots_of_the_documented_ranges() -> None:
    """Three shards and 12 ignored bits. The tokens are those of the first six stream ids in ScyllaDB's
    documentation.
    """
    ends = [0x807AE73E07DBD411 - HALF, 0x80838C6B76E19A1B - HALF, 0x7FFE0C687FCCE86D]
    found = generate(dict.fromkeys(ends, "a"), directory((3, 12)), SEED)
    assert [[decode(stream).token for stream in part.streams] for part in found[:2]] == [
        [-9223372036854775807, -9221870836978985642, 9222822729861621870],
        [-9187343239835811840, ends[1], -9188777836090239982],
    ]


@given(rings())
def test_shape(ring: tuple[Owners, dict[str, Node]]) -> None:
    owners, nodes = ring
    found = generate(owners, nodes, SEED)
    assert [part.end for part in found] == sorted(owners)
    for index, part in enumerate(found):
        owner = nodes[owners[part.end]]
        assert (len(part.streams), part.ignore_msb) == (owner.shards, owner.ignore_msb)
        assert len(set(part.streams)) == owner.shards
        for slot, stream in enumerate(part.streams):
            fields = decode(stream)
            assert (fields.index, fields.version) == (index, 1)
            assert in_range(fields.token, found[index - 1].end, part.end)
            assert fields.token == part.end or shard_of(fields.token, owner.shards, owner.ignore_msb) == slot


@given(rings(), st.sets(tokens, min_size=1, max_size=6), st.lists(tokens, min_size=1, max_size=20), st.integers(1, 3))
def test_rows_are_colocated_with_their_writes(
    ring: tuple[Owners, dict[str, Node]], joining: set[int], writes: list[int], factor: int
) -> None:
    """A generation for a join colocates rows with their writes before and after the join.

    The test covers each replication strategy: simple, entire, and by datacenter with racks.
    """
    before, nodes = ring
    after = before | dict.fromkeys(joining - set(before), "new")
    nodes = {**nodes, "new": replace(nodes["a"], id="new", name="new", shards=5)}
    nodes = {
        name: replace(node, datacenter=f"dc{place % 2}", rack=f"r{place // 2 % 2}")
        for place, (name, node) in enumerate(sorted(nodes.items()))
    }
    made = generation(generate(after, nodes, SEED))
    local = tuple(DatacenterReplication(name, factor) for name in ("dc0", "dc1"))
    ways = Replication("simple", factor), Replication("entire", 0), Replication("network", 2 * factor, local)
    for owners in (before, after):
        layout = ring_of(owners, nodes)
        for token in writes:
            row = decode(stream_of(made, token)).token
            for way in ways:
                assert natural(way, layout, end_at(owners, row)) == natural(way, layout, end_at(owners, token))


def end_at(owners: Owners, token: int) -> int:
    return min((end for end in owners if end >= token), default=min(owners))


@given(described(), st.lists(tokens, min_size=1, max_size=20))
def test_rows_have_the_shard_of_their_writes(ranges: tuple[GenerationRange, ...], writes: list[int]) -> None:
    """The stream of a write belongs to the write's own shard, which owns part of the range."""
    for token in writes:
        end = end_at({part.end: "" for part in ranges}, token)
        part = next(part for part in ranges if part.end == end)
        shards = len(part.streams)
        row = decode(stream_of(generation(ranges), token)).token
        assert shard_of(row, shards, part.ignore_msb) == shard_of(token, shards, part.ignore_msb)


@given(rings(), st.binary(min_size=16, max_size=16))
def test_the_seed_alone_decides_the_random_bits(ring: tuple[Owners, dict[str, Node]], seed: bytes) -> None:
    owners, nodes = ring
    turned_round = dict(reversed(owners.items()))
    assert generate(owners, nodes, seed) == generate(turned_round, nodes, seed)
    if seed != SEED:
        assert generate(owners, nodes, seed) != generate(owners, nodes, SEED)


def test_known_bytes() -> None:
    """The bytes are fixed, because another release may continue a preparation and must create the same ids."""
    ranges = generate({-5: "a", 70: "b"}, directory((2, 12), (1, 0)), SEED)
    assert [[stream.hex() for stream in part.streams] for part in ranges] == [
        ["0000000000000047196a8b2848000001", "0008000000000000dfe1b175f4000001"],
        ["fffffffffffffffcbdfd87c0f0000011"],
    ]
    assert ranges_digest(ranges) == "3ea6782fb4c6f82f0d9c88c307ffc668ca075db58386388a318fdcf8c33ee7b2"


def test_too_many_ranges_do_not_fit_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog.kernel.model.stream_id.RANGES_MAX", 3)
    nodes = directory((1, 0))
    assert len(generate(dict.fromkeys(range(3), "a"), nodes, SEED)) == 3
    with pytest.raises(StreamIdError, match="index 3"):
        generate(dict.fromkeys(range(4), "a"), nodes, SEED)


@given(described(), st.integers(1, 40))
def test_parts_contain_all_ranges_in_order(ranges: tuple[GenerationRange, ...], most: int) -> None:
    parts = parts_of("g", ranges, most)
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {(part.generation, part.parts) for part in parts} == {("g", len(parts))}
    assert tuple(one for part in parts for one in part.ranges) == ranges
    for part, following in pairwise(parts):
        streams = sum(len(one.streams) for one in part.ranges)
        assert len(part.ranges) == 1 or streams <= most
        assert streams + len(following.ranges[0].streams) > most, "each part is full before the next one starts"


@given(described())
def test_the_digest_covers_every_field_and_the_order_of_slots(ranges: tuple[GenerationRange, ...]) -> None:
    head, *rest = ranges
    changed = [
        replace(head, end=head.end ^ 1),
        replace(head, ignore_msb=head.ignore_msb + 1),
        replace(head, streams=head.streams[1:]),
        replace(head, streams=(b"\0" * 16, *head.streams[1:])),
    ]
    if len(head.streams) > 1:
        changed.append(replace(head, streams=(head.streams[1], head.streams[0], *head.streams[2:])))
    digests = {ranges_digest((one, *rest)) for one in (head, *changed)}
    assert len(digests) == 1 + len(changed)


# Stream ids: the documented examples, the bit layout, and invalid ids.


TABLE = Path(__file__).parents[2] / "testdata" / "stream_ids.txt"
ROWS = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("row", ROWS)
def test_worked_ids(row: list[str]) -> None:
    data = bytes.fromhex(row[0])
    stream = decode(data)
    assert (stream.token, stream.index, stream.version) == (int(row[1]), int(row[2]), 1)
    assert encode(stream) == data
    if row[4] != "-":
        assert shard_of(stream.token, 3, 12) == int(row[4])


def test_slot_tokens_of_the_worked_ranges() -> None:
    """The three slots of the documentation's ranges 0 (which wraps) and 1 follow from the bounds of the ranges."""
    bounds = {
        "0": (0x7FFE0C687FCCE86D, 0x807AE73E07DBD411 - (1 << 64)),
        "1": (0x807AE73E07DBD411 - (1 << 64), 0x80838C6B76E19A1B - (1 << 64)),
    }
    slots = [row for row in ROWS if row[3] != "-"]
    assert len(slots) == 6
    for _, token, index, slot, _ in slots:
        start, end = bounds[index]
        assert first_token_of_shard(start, end, int(slot), 3, 12) == int(token)


@given(st.integers(TOKEN_MIN, TOKEN_MAX), st.integers(0, (1 << 38) - 1), st.integers(0, (1 << 22) - 1))
def test_layout(token: int, random: int, index: int) -> None:
    data = encode(StreamId(token, random, index))
    number = int.from_bytes(data, "big")
    assert number >> 64 == token % (1 << 64)
    assert number % (1 << 64) == random * 2**26 + index * 2**4 + 1
    assert decode(data) == StreamId(token, random, index, 1)


def test_unversioned_ids_are_read_and_later_versions_refused() -> None:
    assert decode(bytes(16)).version == 0
    with pytest.raises(StreamIdError, match="version 2"):
        decode(bytes(15) + b"\x02")


@pytest.mark.parametrize("length", [0, 8, 15, 17])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(StreamIdError, match="16 bytes"):
        decode(bytes(length))


@pytest.mark.parametrize(
    ("stream", "named"),
    [
        (StreamId(1 << 63, 0, 0), "token"),
        (StreamId(0, 1 << 38, 0), "random"),
        (StreamId(0, -1, 0), "random"),
        (StreamId(0, 0, 1 << 22), "index"),
        (StreamId(0, 0, 0, 0), "version"),
        (StreamId(0, 0, 0, 2), "version"),
    ],
)
def test_fields_that_do_not_fit_are_named(stream: StreamId, named: str) -> None:
    with pytest.raises(StreamIdError, match=named):
        encode(stream)


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
    """Slots for spread ends, bisection for dense ends, and a batch of several non-contiguous chunks."""
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


# The vectorized rules for all ranges of a part against the scalar rules.


ENDS = st.lists(st.integers(TOKEN_MIN, TOKEN_MAX) | st.integers(-3, 3), min_size=1, max_size=8, unique=True)


@given(ENDS, st.integers(1, 3), st.integers(0, 7), st.data())
def test_vectorized_rules_equal_scalar_rules(ends: list[int], shards: int, first: int, data: st.DataObject) -> None:
    nodes = {"n": replace(a_node("n"), shards=shards)}
    ranges = list(generate(dict.fromkeys(ends, "n"), nodes, bytes(16))[first:])
    if ranges and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(ranges) - 1))
        ranges[at] = data.draw(changed_range(ranges[at], ranges))
    index = check._first_index(ranges)
    if index is None:
        assert broken_part(ranges) is not None
    else:
        assert broken_part(ranges) == check._first_broken(ranges, index)


def changed_range(described: GenerationRange, others: list[GenerationRange]) -> st.SearchStrategy[GenerationRange]:
    """Draw the range with a change in one of its fields."""
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
