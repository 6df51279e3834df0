"""Ranges that are read all at once are those that are read one by one, of whatever bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.cdc.generations import PutCdcGenerationData
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange
from ringlog.wire.avro import generation_columns as described
from ringlog.wire.avro import reading
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import layout
from ringlog.wire.avro.generation_columns import ranges_reader
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.commands import decode_command, encode_command

ITEM: Any = {"fields": [{"name": "end"}, {"name": "ignore_msb"}, {"name": "streams"}]}
ENDS = st.integers(TOKEN_MIN - 1, TOKEN_MAX) | st.integers(-(2**50), 2**50) | st.integers(-300, 300)
STREAMS = st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple)
IGNORED = st.sampled_from([0, 12, 63, 12, 12]) | st.integers(-(2**31), 2**31 - 1)


def one_by_one() -> reading.Read:
    """The general reader of the array."""
    streams = reading.array(reading.fixed(16, bytes))
    return reading.array(reading.record([reading.number_at, reading.SCALARS["int"], streams], GenerationRange))


def outcome(read: reading.Read, body: bytes, at: int) -> object:
    try:
        return read(body, at)
    except (IndexError, ValueError):
        return None


def written(ranges: tuple[GenerationRange, ...]) -> bytes:
    return encode_command(PutCdcGenerationData("g", 0, 1, ranges))[2][4:]


def a_range(draw: random.Random, streams: int) -> GenerationRange:
    end = draw.randint(TOKEN_MIN, TOKEN_MAX) >> draw.choice((0, 0, 0, 8, 20, 40, 57))
    return GenerationRange(end, draw.randint(0, 63), tuple(draw.randbytes(16) for _ in range(streams)))


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described, "PACKED_FROM", 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.builds(GenerationRange, ENDS, IGNORED, STREAMS), max_size=5).map(tuple),
    st.integers(0, 400),
    st.integers(0, 255),
    st.integers(0, 3),
)
def test_any_bytes_are_read_as_one_by_one(ranges: Any, place: int, byte: int, cut: int) -> None:
    read = ranges_reader(ITEM, one_by_one())
    body = written(ranges)
    damaged = bytearray(body)
    damaged[place % len(body)] = byte
    for data in (body, bytes(damaged), body[: len(body) - cut], b"\7" + body + b"\1"):
        at = 1 if data[:1] == b"\7" else 0
        assert outcome(read, data, at) == outcome(one_by_one(), data, at)


@pytest.mark.parametrize("streams", [1, 2, 63, 64])
def test_all_ranges_of_a_ring_are_read_at_once(streams: int) -> None:
    draw = random.Random(streams)
    ranges = tuple(a_range(draw, streams) for _ in range(300))
    found, at = ranges_reader(ITEM, one_by_one())(written(ranges), 0)
    assert isinstance(found, PackedRanges) == (streams < 64)  # twice the number must fit into seven bits
    assert (found, at) == (ranges, len(written(ranges)))


@pytest.mark.parametrize("streams", [(1,), (2, 8), (1, 1, 1, 1, 1, 1, 1, 1, 1, 3)])
def test_ascending_ends_are_found_by_stretches(monkeypatch: pytest.MonkeyPatch, streams: tuple[int, ...]) -> None:
    monkeypatch.setattr(described, "_STRETCH", 50)
    draw = random.Random(len(streams))
    ranges = tuple(sorted((a_range(draw, draw.choice(streams)) for _ in range(400)), key=lambda one: one.end))
    body = written(ranges)
    read = ranges_reader(ITEM, one_by_one())
    found, at = read(body, 0)
    assert isinstance(found, PackedRanges)
    assert (found, at) == (ranges, len(body))
    for _ in range(200):
        damaged = bytearray(body)
        damaged[draw.randrange(len(body))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        cut = len(body) - draw.choice((0, 0, 1, 40))
        data = bytes(damaged[:cut])
        assert outcome(read, data, 0) == outcome(one_by_one(), data, 0)


def test_an_end_of_more_than_ten_bytes_is_refused_in_the_same_words() -> None:
    draw = random.Random(2)
    ranges = tuple(GenerationRange(TOKEN_MAX - number, 0, (draw.randbytes(16),)) for number in range(20))
    item = len(written(ranges[1:2])) - 2  # without the number of items, and the zero behind them
    for place in (4, 5, 6, 12):  # where a stretch begins, and not
        body = bytearray(written(ranges))
        body[1 + place * item + 9] |= 0x80
        with pytest.raises(ValueError, match="more than 64 bits"):
            ranges_reader(ITEM, one_by_one())(bytes(body), 0)


def test_a_command_brings_them_packed_and_is_written_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    command = PutCdcGenerationData("g", 0, 1, tuple(a_range(draw, draw.randint(1, 9)) for _ in range(100)))
    encoded = encode_command(command)
    found = decode_command(*encoded)
    assert isinstance(found, PutCdcGenerationData)
    assert isinstance(found.ranges, PackedRanges)
    assert found == command
    assert encode_command(found) == encoded
    codec: RecordCodec = layout("ringlog.commands.PutCdcGenerationData")
    assert Mapper(PutCdcGenerationData, codec).from_record(codec.decode(encoded[2], canonical=True)) == found
