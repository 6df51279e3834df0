"""The shape of an invariant: a sentence about every state, the parts that it speaks of, and a check of it.

A check gets the state and one that is *known* to be sound, an earlier one of the same log. What the two share, as the
same object, need not be looked at again. The empty state is always sound: with it a check looks at everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from immutables import Map

from ringlog.kernel.model.state import ClusterState

K = TypeVar("K", str, int)
V = TypeVar("V")

Details = Iterator[str]
"""What is wrong, in words; nothing if the invariant holds."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """``sentence`` is true of every state; only the named ``parts`` of the state can make it false."""

    name: str
    sentence: str
    parts: frozenset[str]
    check: Callable[[ClusterState, ClusterState], Details]


@dataclass(frozen=True, slots=True)
class BrokenInvariant:
    """An invariant that does not hold in a state, and what is wrong there."""

    invariant: str
    sentence: str
    detail: str


def invariant(sentence: str, *parts: str) -> Callable[[Callable[[ClusterState, ClusterState], Details]], Invariant]:
    """Make an invariant of a check; its name is the function's."""

    def made(check: Callable[[ClusterState, ClusterState], Details]) -> Invariant:
        return Invariant(check.__name__, sentence, frozenset(parts), check)

    return made


def news(now: Map[K, V], known: Map[K, V]) -> list[tuple[K, V]]:
    """The items of a map that another one does not have as the same object, by key."""
    if now is known:
        return []
    return sorted((key, value) for key, value in now.items() if known.get(key) is not value)
