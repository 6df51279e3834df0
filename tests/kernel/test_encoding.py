"""Canonical encoding: equal bytes in each process, different bytes for different values, and digests by section.

States are restored from their bytes, and other bytes are rejected. The incremental digest of a state equals its full
digest and needs little encoding.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import cache
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from immutables import Map
from msgspec import defstruct

from ringlog.kernel.columns.blocks import in_blocks, with_items
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop, TakeOver
from ringlog.kernel.encoding import digester as production
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_state
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import command_digest, digest, encode, framed_record, part_digests
from ringlog.kernel.fold import fold
from ringlog.kernel.model.applied_history import Applied, History
from ringlog.kernel.model.state import EMPTY_STATE, PARTS, ClusterState, Placement, RangeGroup, Replica
from ringlog.kernel.values import Column, Value, replace
from tests.kernel.entries import applied, entry, founded, node, random_command, random_history

BUILD = "import random; from tests.kernel.entries import random_history; "
BUILD += "from ringlog.kernel.encoding.encoder import digest; "
PRINT = "s = random_history(random.Random(35), 600); print(s.epoch, digest(s))"


def kernel_values() -> st.SearchStrategy[Any]:
    """Draw nested values of all classes that a state may contain."""
    scalars = st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None)) | st.binary()
    keys = st.text(max_size=3) | st.integers(-3, 3)
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(keys, inner, max_size=4).map(Map)
            | st.builds(Column, st.text(max_size=2), st.text(max_size=2))
        ),
        max_leaves=12,
    )


def typed(value: Any) -> Any:
    """Return a value that differs for each difference of class or content (``1 == True`` otherwise)."""
    if isinstance(value, tuple):
        return (tuple, tuple(typed(item) for item in value))
    if isinstance(value, Map):
        return (Map, frozenset((typed(key), typed(item)) for key, item in value.items()))
    if isinstance(value, Column):
        return (Column, value.name, value.type)
    return (type(value), value)


@settings(deadline=None)
@given(kernel_values(), kernel_values())
def test_equal_bytes_mean_equal_values(one: Any, other: Any) -> None:
    assert (encode(one) == encode(other)) == (typed(one) == typed(other))


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers()), unique_by=lambda pair: pair[0]), st.randoms())
def test_a_map_has_the_same_bytes_however_it_was_built(pairs: list[tuple[int, int]], draw: random.Random) -> None:
    shuffled = draw.sample(pairs, len(pairs))
    detour = Map(pairs).set(99, 1).delete(99)
    assert encode(Map(pairs)) == encode(Map(shuffled)) == encode(detour)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, b"N0:"),
        (True, b"T0:"),
        (1, b"I1:1"),
        (-12, b"I3:-12"),
        ("é", b"S2:\xc3\xa9"),
        (b"a", b"B1:a"),
        ((1, ""), b"L7:I1:1S0:"),
        (Map({"b": 1, "a": 2}), b"M16:S1:aI1:2S1:bI1:1"),
        (Noop(), b"R7:S4:Noop"),
        (TakeOver("r", "i", 1), b"R48:S8:TakeOverS8:instanceS1:iS4:roleS1:rS4:termI1:1"),
    ],
)
def test_the_format(value: object, expected: bytes) -> None:
    assert encode(value) == expected


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}, (1, 2.0), {1}, object()])
def test_invalid_values_have_no_encoding(value: object) -> None:
    with pytest.raises(TypeError, match="no canonical encoding"):
        encode(value)


def test_a_later_field_with_a_default_changes_no_bytes() -> None:
    old = defstruct("Thing", [("name", str)], bases=(Value,), frozen=True)
    new = defstruct("Thing", [("name", str), ("extra", int, 0)], bases=(Value,), frozen=True)
    assert encode(new("x")) == encode(old("x"))
    assert len({encode(new("x")), encode(new("x", 1)), encode(new("x", False))}) == 3


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", BUILD + PRINT]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(run.stdout)
    state = random_history(random.Random(35), 600)
    assert found == {f"{state.epoch} {digest(state)}\n"}
    assert state.epoch > 20, "a history without applied entries would prove nothing"
    assert {"nodes", "keyspaces", "tables", "terms", "settings", "principals", "plans"} <= set(part_digests(state))


def test_every_field_of_the_state_counts() -> None:
    state = applied(founded(), node(1))
    other = applied(founded(), node(2), TakeOver("validator", "x", 1))
    changes: dict[str, Any] = {"time": 0, "name": "x", "cluster_id": "x", "schema_version": "x", "generations": (1,)}
    names = {"epoch", "state_id", "settings", "terms", "nodes", "node_names", "history", "changed"}
    changes |= {name: getattr(other, name) for name in names - {"settings"}}
    changes |= {name: Map({"x": 1}) for name in PARTS if name not in changes and name != "prepared"}
    changes |= {"prepared": 1, "chain": b"x"}
    assert set(changes) == set(ClusterState.__struct_fields__)
    digests = {digest(replace(state, **{name: value})) for name, value in changes.items()}
    assert len(digests | {digest(state)}) == len(changes) + 1


def test_command_digests_depend_on_kind_version_and_payload() -> None:
    found = {command_digest(*parts) for parts in [("A", 1, b"x"), ("B", 1, b"x"), ("A", 2, b"x"), ("A", 1, b"")]}
    assert len(found) == 4
    assert all(len(one) == 64 for one in found)


@pytest.mark.parametrize("parts", [("Noop", 1, b""), ("", -12, b"\0x"), ("ü\ud800", 2**70, b"y" * 200)])
def test_a_command_digest_equals_that_of_the_tuple(parts: tuple[str, int, bytes]) -> None:
    assert command_digest(*parts) == sha256(encode(parts)).hexdigest()


@pytest.mark.parametrize("texts", [("", "", ""), ("m" * 36, "r" * 36, "d" * 64), ("ü%b", "\ud800", "%d")])
@pytest.mark.parametrize("epoch", [0, 1, 12_345, 2**70])
def test_a_history_entry_is_encoded_as_a_record(texts: tuple[str, str, str], epoch: int) -> None:
    entry = Applied(epoch, *texts)
    assert encode(entry) == framed_record(entry, encode)


LETTERS = b"0123456789-:NTFISBLMRax"


@cache
def long_life() -> bytes:
    """Return the bytes of a state with entries in many sections."""
    return encode(random_history(random.Random(6), 400))


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 60))
def test_states_of_random_histories_round_trip(draw: random.Random, length: int) -> None:
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
def test_changed_bytes_are_another_state_or_invalid(draw: random.Random, times: int) -> None:
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
def test_any_bytes_decode_or_fail_cleanly(data: bytes) -> None:
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
def test_invalid_states_are_rejected(broken: dict[str, object]) -> None:
    state = applied(founded(), Noop())
    with pytest.raises(StateUndecodable):
        decode_state(encode(replace(state, **broken)))  # type: ignore[arg-type]


def test_a_duplicate_history_id_is_rejected() -> None:
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


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_incremental_digests_equal_full_digests(draw: random.Random, length: int) -> None:
    state, digester = EMPTY_STATE, Digester()
    for _ in range(length):
        command = random_command(draw, state) if state.epoch else InitializeCluster("c")
        state = fold(state, entry(state, command)).state
        if draw.random() < 0.7:
            assert digester.digest(state) == digest(state)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_gives_the_same_digests(seed: int) -> None:
    draw = random.Random(seed)
    states = [EMPTY_STATE, founded(), random_history(draw, 60), random_history(draw, 200)]
    digester = Digester()
    for state in draw.choices(states, k=30):
        assert digester.digest(state) == digest(state)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of the values encoded by a test."""
    values: list[object] = []

    def noted(value: object) -> bytes:
        values.append(value)
        return encode(value)

    monkeypatch.setattr(production, "encode", noted)
    return values


def test_unchanged_sections_are_not_encoded_again(encoded: list[object]) -> None:
    before = applied(founded(), *(node(number) for number in range(1, 30)))
    after = applied(before, node(30))
    digester = Digester()
    digester.digest(before)
    encoded.clear()
    assert digester.digest(after) == digest(after)
    records = [value for value in encoded if isinstance(value, Value)]
    assert records == [after.nodes[node(30).id], after.history.at(after.epoch)]


def test_the_digester_keeps_no_old_states() -> None:
    small, large = founded(), random_history(random.Random(3), 200)
    worn, fresh = Digester(), Digester()
    for state in (small, large, small):
        worn.digest(state)
    fresh.digest(small)
    assert _kept(worn) == _kept(fresh)


def _kept(digester: Digester) -> dict[str, int]:
    return {name: len(one._rows) + len(one._items) + len(one._inner) for name, one in digester._encoders.items()}


def test_a_step_of_a_large_ring_encodes_changed_ranges_only(encoded: list[object]) -> None:
    placement = Placement("simple:1", in_blocks(ranges(2_000)), tuple(range(2_000)))
    before = replace(founded(), placements=Map({placement.key: placement}))
    others = [replace(placement.ranges[at], changed=9) for at in (7, 8, 1_500)]
    moved = replace(placement, ranges=with_items(placement.ranges, (7, 8, 1_500), others))
    after = replace(before, epoch=9, placements=before.placements.set(placement.key, moved))
    digester = Digester()
    digester.digest(before)
    encoded.clear()
    assert digester.digest(after) == digest(after)
    assert [value for value in encoded if type(value) is RangeGroup] == others
    assert digester.digest(before) == digest(before)


def ranges(count: int) -> tuple[RangeGroup, ...]:
    return tuple(RangeGroup(end - 1, end, (), (Replica(f"n{end % 7}", 1),), 1) for end in range(count))


@pytest.mark.parametrize("most", [100, 128, 300, 5_000])
def test_a_history_digest_works_from_any_beginning(most: int) -> None:
    state, digester = applied(founded(), ChangeSettings((("history_entries", most),))), Digester()
    for _ in range(400):
        state = applied(state, Noop())
        assert digester.digest(state) == digest(state)
