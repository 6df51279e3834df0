"""Records the state sections that a function reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringlog.kernel import fold
from ringlog.kernel.model import state
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.values import replace

_PARTS = frozenset(PARTS)
_read: set[str] = set()


class NotingState(ClusterState):
    """A state that records the sections read from it."""

    def __getattribute__(self, name: str) -> Any:
        if name in _PARTS:
            _read.add(name)
        return object.__getattribute__(self, name)


def _all_of(found: ClusterState) -> dict[str, Any]:
    return {name: object.__getattribute__(found, name) for name in ClusterState.__struct_fields__}


def parts_read(found: ClusterState, look: Callable[[ClusterState], object]) -> frozenset[str]:
    """Return the sections of ``found`` that ``look`` reads."""
    noting = NotingState(**_all_of(found))
    _read.clear()
    look(noting)
    return frozenset(_read)


def unnoted_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude the sections that a command copies to the next state and counts and weighs there."""
    monkeypatch.setattr(state, "replace", lambda before, **given: replace(ClusterState(**_all_of(before)), **given))
    monkeypatch.setattr(state, "getattr", object.__getattribute__, raising=False)
    monkeypatch.setattr(fold, "too_many", lambda before, after: None)
    monkeypatch.setattr(fold, "too_large", lambda before, after, command: None)
