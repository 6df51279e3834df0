"""What stands where a tuple does, and keeps its values in some other form: they are made when somebody asks for them.

A stand-in is equal to the tuple, with the same hash, representation, encoding and digest. What is made is kept, so that
its items stay the same objects.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class StandIn(Sequence[T]):
    """At least one value. ``_make``: all of them, in their order. Nobody changes what a stand-in has."""

    __slots__ = ("_made",)
    _made: tuple[T, ...] | None

    @abstractmethod
    def _make(self) -> tuple[T, ...]: ...

    def as_tuple(self) -> tuple[T, ...]:
        """The values, the same objects each time."""
        if self._made is None:
            self._made = self._make()
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

    def _equals(self, other: StandIn[T]) -> bool:
        """``other`` is one of the same class."""
        return self.as_tuple() == other.as_tuple()

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        return repr(self.as_tuple())
