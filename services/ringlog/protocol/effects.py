"""Effects: what a protocol asks of the world, as values. Each says what its outcome is.

An effect is performed whole before the next one is asked for. ``carry_out`` is the loop for drivers that may block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ringlog.kernel.state import ClusterState
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
    ``patience``.
    """

    patience: Micros


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Outcome: the offset after the last record of the metadata log now. The driver asks until it is answered, and
    raises after ``patience``.
    """

    patience: Micros


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """Wait until all before offset ``end`` is folded; outcome: that state. The driver raises after ``patience``."""

    end: int
    patience: Micros


@dataclass(frozen=True, slots=True)
class CatchUp:
    """As ``Barrier``, for as long as it takes while the replica gets on: a log of months takes minutes."""


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for the folded state on which ``found`` gives a value; outcome: that value, or None after ``patience``.

    ``what`` completes "waited 3 s for".
    """

    found: Callable[[ClusterState], Any]
    patience: Micros
    what: str


@dataclass(frozen=True, slots=True)
class Alone:
    """Perform ``steps`` while nobody else in this process decides; outcome: what they return. Not nested.

    The driver raises if its turn has not come after ``patience``.
    """

    steps: Steps[Any]
    patience: Micros


@dataclass(frozen=True, slots=True)
class At:
    """A named point between two effects, where faults like to strike. Production passes by."""

    moment: str


def read_barrier(patience: Micros) -> Steps[ClusterState]:
    """What performs ``Barrier``: the end is asked for after this begins, since what is behind it was not yet there."""
    deadline = (yield Now()) + patience
    end: int = yield LogEnd(patience)
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
