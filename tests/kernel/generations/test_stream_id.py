"""Stream ids: the documentation's examples, the bit layout, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.generations.stream_id import StreamId, StreamIdError, decode, encode
from ringlog.kernel.ring.shards import first_token_of_shard, shard_of
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN

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
    """The three slots of the documentation's ranges 0 (which wraps) and 1 follow from the ranges' bounds."""
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
