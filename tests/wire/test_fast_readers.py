"""The fast readers of ranges and witnesses return the same as the general readers, for any bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.columns.ack_columns import AckColumns
from ringlog.kernel.commands.cdc.generations import PutCdcGenerationData
from ringlog.kernel.commands.rules import bad_witnesses
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.generations.packed import PackedRanges
from ringlog.kernel.operations.gates import Gate, acknowledged
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange, Witness
from ringlog.wire.avro import ack_columns as witnessed
from ringlog.wire.avro import generation_columns as described
from ringlog.wire.avro import reading
from ringlog.wire.avro.ack_columns import witnesses_reader
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import layout
from ringlog.wire.avro.generation_columns import ranges_reader
from ringlog.wire.avro.mapping import Mapper
from ringlog.wire.commands import decode_command, encode_command
from tests.kernel.ownership.rings import a_cluster

ITEM: Any = {"fields": [{"name": "end"}, {"name": "ignore_msb"}, {"name": "streams"}]}
ENDS = st.integers(TOKEN_MIN - 1, TOKEN_MAX) | st.integers(-(2**50), 2**50) | st.integers(-300, 300)
STREAMS = st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple)
DAMAGE = st.tuples(st.integers(0, 400), st.integers(0, 255), st.integers(0, 3))
"""The position of a byte, its new value, and the number of bytes cut off."""
IGNORED = st.sampled_from([0, 12, 63, 12, 12]) | st.integers(-(2**31), 2**31 - 1)


def one_by_one() -> reading.Read:
    """Return the general reader of the array."""
    streams = reading.array(reading.fixed(16, bytes))
    return reading.array(reading.record([reading.number_at, reading.SCALARS["int"], streams], GenerationRange))


def outcome(read: reading.Read, body: bytes, at: int) -> object:
    try:
        return read(body, at)
    except (IndexError, ValueError):
        return None


def read_alike(read: reading.Read, general: reading.Read, body: bytes, place: int, byte: int, cut: int) -> None:
    """Assert that both readers agree on the bytes as they are, changed, cut short, and within other bytes."""
    damaged = bytearray(body)
    damaged[place % len(body)] = byte
    for data in (body, bytes(damaged), body[: len(body) - cut], b"\7" + body + b"\1"):
        at = 1 if data[:1] == b"\7" else 0
        assert outcome(read, data, at) == outcome(general, data, at)


def written(ranges: tuple[GenerationRange, ...]) -> bytes:
    return encode_command(PutCdcGenerationData("g", 0, 1, ranges))[2][4:]


def a_range(draw: random.Random, streams: int) -> GenerationRange:
    end = draw.randint(TOKEN_MIN, TOKEN_MAX) >> draw.choice((0, 0, 0, 8, 20, 40, 57))
    return GenerationRange(end, draw.randint(0, 63), tuple(draw.randbytes(16) for _ in range(streams)))


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described, "PACKED_FROM", 1)
    monkeypatch.setattr(witnessed, "PACKED_FROM", 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.builds(GenerationRange, ENDS, IGNORED, STREAMS), max_size=5).map(tuple),
    DAMAGE,
)
def test_any_range_bytes_are_read_alike(ranges: Any, damage: tuple[int, int, int]) -> None:
    read = ranges_reader(ITEM, one_by_one())
    body = written(ranges)
    read_alike(read, one_by_one(), body, *damage)


@pytest.mark.parametrize("streams", [1, 2, 63, 64])
def test_all_ranges_of_a_ring_are_read_at_once(streams: int) -> None:
    draw = random.Random(streams)
    ranges = tuple(a_range(draw, streams) for _ in range(300))
    found, at = ranges_reader(ITEM, one_by_one())(written(ranges), 0)
    assert isinstance(found, PackedRanges) == (streams < 64)  # a block count must fit into seven bits
    assert (found, at) == (ranges, len(written(ranges)))


@pytest.mark.parametrize("streams", [(1,), (2, 8), (1, 1, 1, 1, 1, 1, 1, 1, 1, 3)])
def test_ascending_ends_are_found_by_runs(monkeypatch: pytest.MonkeyPatch, streams: tuple[int, ...]) -> None:
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


def test_an_end_of_more_than_ten_bytes_gives_the_same_error() -> None:
    draw = random.Random(2)
    ranges = tuple(GenerationRange(TOKEN_MAX - number, 0, (draw.randbytes(16),)) for number in range(20))
    item = len(written(ranges[1:2])) - 2  # without the item count and the final zero
    for place in (4, 5, 6, 12):  # at the start of a run, and inside one
        body = bytearray(written(ranges))
        body[1 + place * item + 9] |= 0x80
        with pytest.raises(ValueError, match="more than 64 bits"):
            ranges_reader(ITEM, one_by_one())(bytes(body), 0)


def test_a_command_has_packed_ranges_and_unchanged_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
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


WITNESS: Any = {"fields": [{"name": "node"}, {"name": "applied"}, {"name": "drained"}]}
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.integers(8_000, 9_000)


def uuid(number: int) -> str:
    return f"{number:08x}-0000-7000-8000-000000000002"


IDS = st.integers(0, 3).map(uuid) | st.text(max_size=3) | st.just("ü" * 18) | st.text(min_size=36, max_size=36)


def witnesses_one_by_one() -> reading.Read:
    """Return the general reader of the array."""
    return reading.array(reading.record([reading.text_at, reading.number_at, reading.number_at], Witness))


def witnesses_written(witnesses: tuple[Witness, ...]) -> bytes:
    """Return the bytes of the array only, from the difference to a command without witnesses."""
    whole, bare = (encode_command(AdvanceOperation("", "", some))[2] for some in (witnesses, ()))
    return whole[2 : len(whole) - (len(bare) - 3)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.builds(Witness, IDS, NUMBERS, NUMBERS), max_size=4).map(tuple)
    | st.lists(st.builds(Witness, IDS, st.integers(64, 8_191), st.integers(64, 8_191)), max_size=4).map(tuple),
    DAMAGE,
)
def test_any_bytes_of_witnesses_are_read_alike(witnesses: tuple[Witness, ...], damage: tuple[int, int, int]) -> None:
    read, body = witnesses_reader(WITNESS, witnesses_one_by_one()), witnesses_written(witnesses)
    assert outcome(witnesses_one_by_one(), body, 0) == (witnesses, len(body))
    read_alike(read, witnesses_one_by_one(), body, *damage)


def test_a_command_has_packed_witnesses_and_unchanged_bytes() -> None:
    command = AdvanceOperation("join-7", "finished", tuple(Witness(uuid(n), 9_000 + n, 9_000) for n in range(100)))
    encoded = encode_command(command)
    found = decode_command(*encoded)
    assert isinstance(found, AdvanceOperation)
    assert isinstance(found.witnesses, AckColumns)
    assert found == command
    assert hash(found.witnesses) == hash(command.witnesses)
    assert found.witnesses[1:3] == command.witnesses[1:3]
    assert encode_command(found) == encoded


@settings(deadline=None)
@given(st.lists(st.builds(Witness, st.sampled_from("ABCX"), st.integers(-1, 7), st.integers(-1, 7)), min_size=1))
def test_packed_witnesses_are_rejected_and_counted_alike(witnesses: list[Witness]) -> None:
    columns: Any = [
        [one.node for one in witnesses],
        [one.applied for one in witnesses],
        [one.drained for one in witnesses],
    ]
    packed = AckColumns(tuple(columns[0]), *map(witnessed.np.array, columns[1:]))
    assert packed == tuple(witnesses)
    state = a_cluster({"A": [100], "B": [200], "C": [300]})
    assert bad_witnesses(state, packed) == bad_witnesses(state, tuple(witnesses))
    gate = Gate("join-7", "prepared", 4, (), ())
    assert acknowledged(gate, packed) == acknowledged(gate, witnesses)
