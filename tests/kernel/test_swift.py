"""A value that is made quickly is the value that its class makes."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from ringlog.kernel.encoding import encode
from ringlog.kernel.memory import History
from ringlog.kernel.outcome import Entry
from ringlog.kernel.state import EMPTY_STATE, ClusterState, advance
from ringlog.kernel.swift import maker_of, replaced
from tests.kernel.entries import Noop, applied, entry, founded

STATE = applied(founded(), Noop())


@pytest.mark.parametrize("value", [STATE, STATE.history, entry(STATE, Noop())], ids=lambda value: type(value).__name__)
def test_it_is_the_same_value(value: ClusterState | History | Entry) -> None:
    kind = type(value)
    made = maker_of(kind)(*(getattr(value, field.name) for field in fields(kind)))
    assert type(made) is kind
    assert made == value
    assert hash(made) == hash(value)
    assert repr(made) == repr(value)
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(kind)[0].name, None)


def test_a_state_with_other_fields_is_as_any_other() -> None:
    again = replaced(STATE, epoch=STATE.epoch)
    assert again == STATE
    assert encode(again) == encode(STATE)
    assert pickle.loads(pickle.dumps(replaced(EMPTY_STATE, name="x"))) == ClusterState(name="x")


def test_fields_are_replaced_as_python_replaces_them() -> None:
    made = entry(STATE, Noop())
    given = {"submitter": "another", "at": 7}
    assert replaced(made, **given) == replace(made, **given) != made
    assert replaced(made) == made
    with pytest.raises(TypeError, match=r"Entry has no fields \['epoch'\]"):
        replaced(made, epoch=1)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        replaced(made, at=7).at = 8  # type: ignore[misc]


def test_a_next_state_is_stamped_where_a_part_is_another_object() -> None:
    same, other = STATE.nodes, STATE.settings.set("history_entries", 7)
    after = advance(STATE, 9, nodes=same, settings=other, name="x")
    assert after == replace(STATE, settings=other, name="x", changed=STATE.changed.set("settings", 9))
    assert advance(STATE, 9) == STATE
    with pytest.raises(TypeError, match=r"ClusterState has no fields \['node'\]"):
        advance(STATE, 9, node=same)
