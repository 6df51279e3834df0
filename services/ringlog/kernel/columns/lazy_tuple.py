"""Lazy values: a sequence that builds its items on demand, and a cache keyed by identity.

A lazy tuple is equal to the tuple, with the same hash, representation, encoding and digest. It keeps the items that it
has built, so they stay the same objects.

The cache has the results of pure functions. Values are immutable, so a result stays right. The cache holds its keys, so
another object cannot get the same identity. A fold asks for the same plan at each stage, and for the same token map at
each movement.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class LazyTuple(Sequence[T]):
    """A sequence of at least one value, built by ``_make``. Subclasses never change their columns."""

    __slots__ = ("_made",)
    _made: tuple[T, ...] | None

    @abstractmethod
    def _make(self) -> tuple[T, ...]: ...

    def as_tuple(self) -> tuple[T, ...]:
        """Return the values, the same objects each time."""
        if self._made is None:
            self._made = self._make()
            assert 0 < len(self._made) == len(self), "the sequence has the length of its columns"
        return self._made

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        return self.as_tuple()[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self.as_tuple())

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is type(self):
            return self._equals(other)
        return self.as_tuple() == other if isinstance(other, tuple) else NotImplemented

    def _equals(self, other: LazyTuple[T]) -> bool:
        """Compare with another value of the same class."""
        return self.as_tuple() == other.as_tuple()

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        return repr(self.as_tuple())


K = TypeVar("K")
V = TypeVar("V")


class IdentityCache(Generic[K, V]):
    """A cache of at most ``most`` results; the oldest one is evicted first."""

    __slots__ = ("_entries", "_most")

    def __init__(self, most: int) -> None:
        assert most > 0, "a cache holds at least one result"
        self._most = most
        self._entries: tuple[tuple[K, V], ...] = ()

    def get(self, of: K) -> V | None:
        """Return the value stored for this very object, or None."""
        for key, value in self._entries:
            if key is of:
                return value
        return None

    def put(self, of: K, value: V) -> V:
        """Store and return ``value``. Several threads fold, so the entries are replaced as a whole."""
        self._entries = ((of, value), *self._entries[: self._most - 1])
        return value
