"""Contexts that end objects without a method ``close``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Stops(Protocol):
    """A server, a thread, or a job."""

    def stop(self) -> object:
        """Stop the object."""


class GoesDown(Protocol):
    """A stack."""

    def down(self) -> object:
        """Stop its processes."""


Stopped = TypeVar("Stopped", bound=Stops)
Down = TypeVar("Down", bound=GoesDown)


@contextmanager
def stopping(thing: Stopped) -> Iterator[Stopped]:
    """Stop ``thing`` at the end."""
    try:
        yield thing
    finally:
        thing.stop()


@contextmanager
def taking_down(stack: Down) -> Iterator[Down]:
    """Take the stack down at the end."""
    try:
        yield stack
    finally:
        stack.down()
