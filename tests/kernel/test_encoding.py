"""Canonical bytes: the same in every process, different for different values; digests part by part."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import make_dataclass, replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.encoding.encoder import command_digest, digest, encode, framed_record, part_digests
from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.values import Column
from tests.kernel.entries import applied, founded, node, random_history

BUILD = "import random; from tests.kernel.entries import random_history; "
BUILD += "from ringlog.kernel.encoding.encoder import digest; "
PRINT = "s = random_history(random.Random(13), 600); print(s.epoch, digest(s))"


def kernel_values() -> st.SearchStrategy[Any]:
    """Values of every class that a state may hold, nested."""
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
    """A value that differs wherever class or content differs (``1 == True`` otherwise)."""
    if isinstance(value, tuple):
        return (tuple, tuple(typed(item) for item in value))
    if isinstance(value, Map):
        return (Map, frozenset((typed(key), typed(item)) for key, item in value.items()))
    if isinstance(value, Column):
        return (Column, value.name, value.type)
    return (type(value), value)


@settings(deadline=None)
@given(kernel_values(), kernel_values())
def test_bytes_are_equal_exactly_if_the_values_are(one: Any, other: Any) -> None:
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
def test_what_the_state_may_not_hold_has_no_encoding(value: object) -> None:
    with pytest.raises(TypeError, match="no canonical encoding"):
        encode(value)


def test_a_later_field_with_a_default_changes_no_bytes() -> None:
    old = make_dataclass("Thing", [("name", str)], frozen=True)
    new = make_dataclass("Thing", [("name", str), ("extra", int, 0)], frozen=True)
    assert encode(new("x")) == encode(old("x"))
    assert len({encode(new("x")), encode(new("x", 1)), encode(new("x", False))}) == 3


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", BUILD + PRINT]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(run.stdout)
    state = random_history(random.Random(13), 600)
    assert found == {f"{state.epoch} {digest(state)}\n"}
    assert state.epoch > 20, "a history in which nothing applies would prove nothing"
    assert {"nodes", "keyspaces", "tables", "terms", "settings"} <= set(part_digests(state))


def test_every_field_of_the_state_counts() -> None:
    state = applied(founded(), node(1))
    other = applied(founded(), node(2), TakeOver("validator", "x", 1))
    changes: dict[str, Any] = {"time": 0, "name": "x", "cluster_id": "x", "schema_version": "x", "generations": (1,)}
    names = {"epoch", "state_id", "settings", "terms", "nodes", "node_names", "history", "changed"}
    changes |= {name: getattr(other, name) for name in names - {"settings"}}
    changes |= {name: Map({"x": 1}) for name in PARTS if name not in changes and name != "prepared"}
    changes["prepared"] = 1
    assert set(changes) == set(ClusterState.__dataclass_fields__)
    digests = {digest(replace(state, **{name: value})) for name, value in changes.items()}
    assert len(digests | {digest(state)}) == len(changes) + 1


def test_command_digests_tell_kind_version_and_payload_apart() -> None:
    found = {command_digest(*parts) for parts in [("A", 1, b"x"), ("B", 1, b"x"), ("A", 2, b"x"), ("A", 1, b"")]}
    assert len(found) == 4
    assert all(len(one) == 64 for one in found)


@pytest.mark.parametrize("parts", [("Noop", 1, b""), ("", -12, b"\0x"), ("ü\ud800", 2**70, b"y" * 200)])
def test_a_command_digest_is_that_of_the_encoded_tuple(parts: tuple[str, int, bytes]) -> None:
    assert command_digest(*parts) == sha256(encode(parts)).hexdigest()


@pytest.mark.parametrize("texts", [("", "", ""), ("m" * 36, "r" * 36, "d" * 64), ("ü%b", "\ud800", "%d")])
@pytest.mark.parametrize("epoch", [0, 1, 12_345, 2**70])
def test_an_entry_of_the_history_is_encoded_as_every_record(texts: tuple[str, str, str], epoch: int) -> None:
    entry = Applied(epoch, *texts)
    assert encode(entry) == framed_record(entry, encode)
