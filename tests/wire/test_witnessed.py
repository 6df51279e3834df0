"""Witnesses that are read all at once are those that are read one by one, of whatever bytes, and say the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.columns.ack_columns import AckColumns
from ringlog.kernel.commands.rules import bad_witnesses
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.operations.gates import Gate, acknowledged
from ringlog.kernel.values import Witness
from ringlog.wire.avro import ack_columns as witnessed
from ringlog.wire.avro import reading
from ringlog.wire.avro.ack_columns import witnesses_reader
from ringlog.wire.commands import decode_command, encode_command
from tests.kernel.ownership.rings import a_cluster

ITEM: Any = {"fields": [{"name": "node"}, {"name": "applied"}, {"name": "drained"}]}
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.integers(8_000, 9_000)


def uuid(number: int) -> str:
    return f"{number:08x}-0000-7000-8000-000000000002"


IDS = st.integers(0, 3).map(uuid) | st.text(max_size=3) | st.just("ü" * 18) | st.text(min_size=36, max_size=36)


def one_by_one() -> reading.Read:
    """The general reader of the array."""
    return reading.array(reading.record([reading.text_at, reading.number_at, reading.number_at], Witness))


def outcome(read: reading.Read, body: bytes, at: int) -> object:
    try:
        return read(body, at)
    except (IndexError, ValueError):
        return None


def written(witnesses: tuple[Witness, ...]) -> bytes:
    """The array alone: what a command without them has not."""
    whole, bare = (encode_command(AdvanceOperation("", "", some))[2] for some in (witnesses, ()))
    return whole[2 : len(whole) - (len(bare) - 3)]


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnessed, "PACKED_FROM", 1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.builds(Witness, IDS, NUMBERS, NUMBERS), max_size=4).map(tuple)
    | st.lists(st.builds(Witness, IDS, st.integers(64, 8_191), st.integers(64, 8_191)), max_size=4).map(tuple),
    st.integers(0, 400),
    st.integers(0, 255),
    st.integers(0, 3),
)
def test_any_bytes_are_read_as_one_by_one(witnesses: tuple[Witness, ...], place: int, byte: int, cut: int) -> None:
    read, body = witnesses_reader(ITEM, one_by_one()), written(witnesses)
    assert outcome(one_by_one(), body, 0) == (witnesses, len(body))
    damaged = bytearray(body)
    damaged[place % len(body)] = byte
    for data in (body, bytes(damaged), body[: len(body) - cut], b"\7" + body + b"\1"):
        at = 1 if data[:1] == b"\7" else 0
        assert outcome(read, data, at) == outcome(one_by_one(), data, at)


def test_a_command_brings_those_of_many_nodes_packed_and_is_written_as_before() -> None:
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
def test_they_are_refused_and_counted_as_one_by_one(witnesses: list[Witness]) -> None:
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
