"""Ids: ascending, unique, and exact in their fields."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.values import replace
from ringlog.wire.acks import ReceivedAck, incarnation, incarnation_order, newest_ack
from ringlog.wire.errors import WireError
from ringlog.wire.ids import derived_request_id, new_request_id, new_state_id
from ringlog.wire.records import NodeAck, dead_letter_key, mutation_key, mutation_partition

NOW = 1_700_000_000_123_456
clocks = st.integers(-(2**62), 2**62)
entropies = st.binary(min_size=8, max_size=16)


@given(clocks, entropies)
def test_a_fresh_id_is_a_version_7_uuid(now, entropy):
    found = uuid.UUID(new_state_id(None, now, entropy))
    assert (found.version, found.variant) == (7, uuid.RFC_4122)
    assert uuid.UUID(new_request_id(now, entropy)) == found


def test_a_fresh_id_holds_the_milliseconds_and_their_fraction():
    number = uuid.UUID(new_state_id(None, NOW, bytes(8))).int
    assert number >> 80 == NOW // 1000
    assert (number >> 64) & 0xFFF == 456 * 4096 // 1000


@given(st.lists(st.tuples(st.integers(NOW - 3, NOW + 3), entropies), min_size=1, max_size=30))
def test_state_ids_ascend_with_any_clock(ticks):
    previous = None
    for now, entropy in ticks:
        following = new_state_id(previous, now, entropy)
        assert previous is None or following > previous
        assert uuid.UUID(following).version == 7
        previous = following


@given(st.uuids(), clocks, entropies)
def test_a_state_id_is_above_its_predecessor(previous, now, entropy):
    if previous.int >> 80 == 2**48 - 1:
        return
    assert new_state_id(str(previous), now, entropy) > str(previous)


def test_the_fraction_overflows_into_the_next_millisecond():
    full = "018bcfe5-687b-7fff-bfff-ffffffffffff"
    assert new_state_id(full, 0, bytes(8)) == "018bcfe5-687c-7000-8000-000000000000"


def test_a_state_id_follows_an_id_of_a_greater_version():
    assert new_state_id("018bcfe5-687b-f123-8000-000000000000", 0, bytes(8)) == "018bcfe5-687c-7000-8000-000000000000"


def test_the_greatest_id_has_none_above():
    with pytest.raises(WireError, match="no_id_above"):
        new_state_id("ffffffff-ffff-ffff-ffff-ffffffffffff", NOW, bytes(8))


def test_too_little_entropy_is_refused():
    with pytest.raises(WireError, match="too_little_entropy"):
        new_request_id(NOW, bytes(7))


def test_derived_ids_are_a_function_of_their_parts():
    ids = {
        derived_request_id("join-7", "prepared", 9),
        derived_request_id("join-7", "prepared", 10),
        derived_request_id("join-7", "prepared9"),
        derived_request_id("join-7prepared", 9),
        derived_request_id("join-7", "prepared", "9"),
        derived_request_id("join", "-7prepared", 9),
    }
    assert len(ids) == 6
    assert derived_request_id("join-7", "prepared", 9) in ids
    assert {uuid.UUID(found).version for found in ids} == {8}


def test_keys_and_partitions():
    assert mutation_key("flights", "by_plane", b"N1") == b"flights.by_plane\x00N1"
    assert dead_letter_key("c.mutations", 3, 99) == b"c.mutations/3/99"
    assert mutation_partition(b"123456789", 2**32) == 0xCBF43926
    assert {mutation_partition(bytes([n]) * 16, 8) for n in range(200)} == set(range(8))


# The order of a node's incarnations, and the choice of its valid acknowledgement.


ACK = NodeAck("c", "n", "", 0, 0, (), 0, 0)


def received_ack(offset: int, name: str) -> ReceivedAck:
    return offset, replace(ACK, incarnation=name, applied=offset)


def test_a_later_start_is_the_greater_one() -> None:
    assert incarnation_order(incarnation(10, "a")) > incarnation_order(incarnation(9, "z"))
    assert incarnation_order(incarnation(9, "b")) > incarnation_order(incarnation(9, "a"))


@pytest.mark.parametrize(
    "earlier", ["", "12345678-0000-4000-8000-000000000001", "@", "x@y", "²@y", "-1@y", "9" * 40 + "@y"]
)
def test_incarnations_without_a_number_sort_first(earlier: str) -> None:
    assert incarnation_order(earlier) < incarnation_order(incarnation(1, ""))


def test_the_later_record_of_an_incarnation_counts() -> None:
    one, two = received_ack(1, "3@a"), received_ack(2, "3@a")
    assert newest_ack(None, one) == one
    assert newest_ack(one, two) == newest_ack(two, one) == two


def test_an_earlier_incarnation_is_ignored() -> None:
    new, old = received_ack(1, "4@a"), received_ack(9, "3@z")
    assert newest_ack(new, old) == newest_ack(old, new) == new


def test_a_repeated_record_does_not_decrease_positions() -> None:
    newest, again = (2, replace(ACK, incarnation="3@a", applied=7)), (9, replace(ACK, incarnation="3@a", applied=6))
    assert newest_ack(newest, again) == newest_ack(again, newest) == newest
