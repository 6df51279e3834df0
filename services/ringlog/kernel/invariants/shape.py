"""The structure of an invariant: a sentence about every state, the sections that can break it, and its check.

A check gets the state and a *known* valid one, an earlier state of the same log. Objects that both share need no check.
The empty state is always valid: with it a check covers everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from immutables import Map

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value

K = TypeVar("K", str, int)
V = TypeVar("V")

Details = Iterator[str]
"""Descriptions of violations; empty if the invariant holds."""


class Invariant(Value):
    """An invariant. ``sentence`` is true of every state; only the named ``parts`` of the state can make it false."""

    name: str
    sentence: str
    parts: frozenset[str]
    check: Callable[[ClusterState, ClusterState], Details]


class BrokenInvariant(Value):
    """An invariant that does not hold in a state, and the violation."""

    invariant: str
    sentence: str
    detail: str


def invariant(sentence: str, *parts: str) -> Callable[[Callable[[ClusterState, ClusterState], Details]], Invariant]:
    """Return a decorator that makes an invariant of a check; its name is the function's."""

    assert parts, "an invariant names at least one section"
    assert len({*parts}) == len(parts), "sections are not repeated"

    def made(check: Callable[[ClusterState, ClusterState], Details]) -> Invariant:
        return Invariant(check.__name__, sentence, frozenset(parts), check)

    return made


def changed_items(now: Map[K, V], known: Map[K, V]) -> list[tuple[K, V]]:
    """Return the items of a map that ``known`` does not have as the same object, by key."""
    if now is known:
        return []
    return sorted((key, value) for key, value in now.items() if known.get(key) is not value)
