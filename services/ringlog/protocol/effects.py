"""Effects: the requests of a protocol to its driver, as values. Each docstring names the outcome.

An effect is performed completely before the next one is requested. ``carry_out`` is the loop for drivers that may
block. ``Draw`` is the port for random bits. Its sources are ``ringlog.runtime.draw`` and
``ringlog_sim.devices.world``; both pass ``tests/runtime/test_draw_conformance.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros

T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""A protocol under way: yields effects, is sent their outcomes, returns what it was for."""

FOREVER: Micros = 1_000_000_000_000_000
"""Longer than any process lives: no deadline."""


@dataclass(frozen=True, slots=True)
class Newest:
    """Outcome: the newest folded state."""


@dataclass(frozen=True, slots=True)
class Now:
    """Outcome: microseconds on a clock that never goes back; only differences mean something."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """Outcome: this machine's time in microseconds since 1970. It may be wrong: nothing safe is built on it."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append records to the metadata log, once. No outcome: whether they are there is learned from the log."""

    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Outcome: a state that holds every entry which was in the log when this began. The driver raises after
    ``timeout``.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Outcome: the offset after the last record of the metadata log now. The driver asks until it is answered, and
    raises after ``timeout``.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """Wait until all before offset ``end`` is folded; outcome: that state. The driver raises after ``timeout``."""

    end: int
    timeout: Micros


@dataclass(frozen=True, slots=True)
class CatchUp:
    """As ``Barrier``, for as long as it takes while the replica gets on: a log of months takes minutes."""


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for the folded state on which ``found`` gives a value; outcome: that value, or None after ``timeout``.

    ``what`` completes "waited 3 s for".
    """

    found: Callable[[ClusterState], Any]
    timeout: Micros
    what: str


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Perform ``steps`` under the decision lock of this process; outcome: their result. Not nested.

    The driver raises if it does not get the lock within ``timeout``.
    """

    steps: Steps[Any]
    timeout: Micros


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """A named fault-injection point between two effects; a no-op in production."""

    moment: str


def read_barrier(timeout: Micros) -> Steps[ClusterState]:
    """What performs ``Barrier``: the end is asked for after this begins, since what is behind it was not yet there."""
    deadline = (yield Now()) + timeout
    end: int = yield LogEnd(timeout)
    state: ClusterState = yield ReadUpTo(end, max(deadline - (yield Now()), 0))
    return state


def carry_out(steps: Steps[T], perform: Callable[[Any], Any]) -> T:
    """Perform a protocol to its end; what ``perform`` raises ends it."""
    outcome: Any = None
    try:
        while True:
            effect, outcome = steps.send(outcome), None  # it may be a whole state, and what is performed may be a wait
            outcome = perform(effect)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        steps.close()


class Draw(Protocol):
    """A source of random bits."""

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes. Raises ValueError if ``count`` is negative."""
