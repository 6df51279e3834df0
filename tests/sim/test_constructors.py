"""Hastened constructors: the same values, the same arguments, as immutable as before."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError, dataclass, field
from types import ModuleType

import pytest

from ringlog.sim.constructors import hasten


@dataclass(frozen=True, slots=True)
class Value:
    one: int
    two: str = "two"
    three: list[int] = field(default_factory=list)
    four: bool = False
    type: str = "text"

    def __post_init__(self) -> None:
        if self.one < 0:
            raise ValueError("one")


@pytest.fixture
def hastened(monkeypatch: pytest.MonkeyPatch) -> type[Value]:
    """``Value``, as if it were of a module of the project; its own constructor comes back afterwards."""
    module = ModuleType("ringlog.made_up")
    module.__dict__["Value"] = Value
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Value, "__module__", module.__name__)
    before = Value.__init__
    monkeypatch.setattr(Value, "__init__", before)
    others = {
        name: found for name, found in sys.modules.items() if name.partition(".")[0] in ("ringlog", "ringlog_cdc")
    }
    for name in others:
        if name != module.__name__:
            monkeypatch.delitem(sys.modules, name)
    hasten()
    assert Value.__init__ is not before
    return Value


def test_values_are_what_they_were(hastened: type[Value]) -> None:
    plain = hastened(1)
    assert (plain.one, plain.two, plain.three, plain.four) == (1, "two", [], False)
    assert hastened(1).three is not plain.three
    assert hastened(2, four=True, two="x") == hastened(2, "x", [], True)
    assert type(plain) is Value
    with pytest.raises(FrozenInstanceError):
        plain.one = 2  # type: ignore[misc]


def test_wrong_arguments_and_values_are_still_refused(hastened: type[Value]) -> None:
    with pytest.raises(TypeError):
        hastened()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hastened(1, five=5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="one"):
        hastened(-1)


def test_an_object_of_a_subclass_stays_one(hastened: type[Value]) -> None:
    class Other(hastened):  # type: ignore[misc, valid-type]
        pass

    other = Other(1, three=[2])
    assert type(other) is Other
    assert (other.one, other.two, other.three, other.four) == (1, "two", [2], False)
    with pytest.raises(ValueError, match="one"):
        Other(-1)
