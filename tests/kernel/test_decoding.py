"""States come back from their bytes, and nothing but their bytes is taken for a state."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from immutables import Map

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.applied_history import Applied, History
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from tests.kernel.entries import applied, entry, founded, random_command, random_history

LETTERS = b"0123456789-:NTFISBLMRax"


@cache
def long_life() -> bytes:
    """The bytes of a state with something of much."""
    return encode(random_history(random.Random(6), 400))


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_states_of_random_lives_come_back(draw: random.Random, length: int) -> None:
    state = EMPTY_STATE
    for _ in range(length):
        command = random_command(draw, state) if state.epoch else InitializeCluster("c")
        state = fold(state, entry(state, command)).state
    found = decode_state(encode(state))
    assert found == state
    assert digest(found) == digest(state)
    assert fold(found, entry(state, Noop())) == fold(state, entry(state, Noop()))


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_changed_bytes_are_another_state_or_none(draw: random.Random, times: int) -> None:
    data = bytearray(long_life())
    for _ in range(times):
        place = draw.randrange(len(data))
        end = place + draw.choice([0, 1, 1, 1, 7])
        data[place:end] = bytes(draw.choices(LETTERS, k=draw.choice([0, 1, 1, 1, 2])))
    _is_inverse(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(LETTERS.decode(), max_size=60).map(str.encode))
@example(b"")
@example(b"R20:S12:ClusterStatex")
@example(b"R99999999999999999999:")
def test_any_bytes_have_an_answer(data: bytes) -> None:
    _is_inverse(data)
    _is_inverse(b"R%d:S12:ClusterState%b" % (len(data) + 16, data))


def _is_inverse(data: bytes) -> None:
    try:
        found = decode_state(data)
    except StateUndecodable:
        return
    assert encode(found) == data


def test_equal_members_and_equal_groups_are_one_object() -> None:
    state = decode_state(long_life())
    groups = [group for placement in state.placements.values() for group in placement.ranges]
    members = {member: member for group in groups for member in group.read}
    assert members
    assert all(members[member] is member for group in groups for member in group.read)
    sides = {side: side for group in groups for side in (group.read, group.write)}
    assert all(sides[side] is side for group in groups for side in (group.read, group.write))


@pytest.mark.parametrize(
    "broken",
    [
        {"epoch": 3},
        {"epoch": 10**39},
        {"epoch": 1},
        {"history": EMPTY_STATE.history},
        {"time": 10**50},
        {"epoch": True},
        {"generations": (1,)},
        {"nodes": Map({1: "x"})},
    ],
)
def test_what_no_state_holds_is_refused(broken: dict[str, object]) -> None:
    state = applied(founded(), Noop())
    with pytest.raises(StateUndecodable):
        decode_state(encode(replace(state, **broken)))  # type: ignore[arg-type]


def test_an_id_that_is_twice_in_the_history_is_refused() -> None:
    twice = Applied(1, "a", "r", "d"), Applied(2, "b", "r", "d")
    state = ClusterState(epoch=2, history=History(0, (), twice))
    with pytest.raises(StateUndecodable, match="twice"):
        decode_state(encode(state))


def test_state_ids_that_do_not_ascend_are_refused() -> None:
    turned = Applied(1, "b", "r1", "d"), Applied(2, "a", "r2", "d")
    state = ClusterState(epoch=2, history=History(0, (), turned))
    with pytest.raises(StateUndecodable, match="ascend"):
        decode_state(encode(state))


def test_a_text_with_the_bytes_of_a_member_is_a_text() -> None:
    state = decode_state(long_life())
    member = next(group.read[0] for one in state.placements.values() for group in one.ranges if group.read)
    body = encode(member).partition(b":")[2].decode()
    strange = replace(state, name=body, schema_version=body)
    assert decode_state(encode(strange)) == strange
