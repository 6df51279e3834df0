"""Which parts of a state a look at it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from ringlog.kernel import fold
from ringlog.kernel.model import state
from ringlog.kernel.model.state import PARTS, ClusterState

_PARTS = frozenset(PARTS)
_read: set[str] = set()


class NotingState(ClusterState):
    """A state like any other, which notes what is read of it."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _PARTS:
            _read.add(name)
        return object.__getattribute__(self, name)


def _all_of(found: ClusterState) -> dict[str, Any]:
    return {field.name: object.__getattribute__(found, field.name) for field in fields(ClusterState)}


def parts_read(found: ClusterState, look: Callable[[ClusterState], object]) -> frozenset[str]:
    """The parts of ``found`` that ``look`` reads."""
    noting = NotingState(**_all_of(found))
    _read.clear()
    look(noting)
    return frozenset(_read)


def unnoted_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the parts that a command copies into the next state, and counts and weighs there, are no reads."""
    stamper_of = state.stamper_of

    def quiet(*of: Any) -> Callable[..., Any]:
        make = stamper_of(*of)
        return lambda before, *given: make(ClusterState(**_all_of(before)), *given)

    monkeypatch.setattr(state, "stamper_of", quiet)
    monkeypatch.setattr(fold, "too_many", lambda before, after: None)
    monkeypatch.setattr(fold, "too_large", lambda before, after, command: None)
