"""Effects: the requests of a protocol to its driver, as values. Each docstring names the outcome.

An effect is performed completely before the next one is requested. ``run_steps`` is the loop for drivers that may
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
"""A running protocol: yields effects, receives their outcomes, returns its result."""

FOREVER: Micros = 1_000_000_000_000_000
"""Longer than any process lives: no deadline."""


@dataclass(frozen=True, slots=True)
class Newest:
    """Outcome: the newest folded state."""


@dataclass(frozen=True, slots=True)
class Now:
    """Outcome: microseconds of a monotonic clock. Only differences have a meaning."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """Outcome: this machine's time in microseconds since 1970. It may be wrong, so safety must not depend on it."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append records to the metadata log, once. No outcome: the log shows whether they arrived."""

    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Outcome: a state that contains every entry that was in the log when this effect began.

    The driver raises after ``timeout``.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Outcome: the present end offset of the metadata log.

    The driver retries until the broker answers, and raises after ``timeout``.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """Wait until every entry before offset ``end`` is folded. Outcome: that state.

    The driver raises after ``timeout``.
    """

    end: int
    timeout: Micros


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A ``Barrier`` without a timeout, while the replica makes progress: a log of months takes minutes to replay."""


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for the first folded state with a result of ``found``. Outcome: that result, or None after ``timeout``.

    ``what`` completes the phrase "waited 3 s for".
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
    """Perform ``Barrier``.

    The end offset is requested after the barrier begins, so every entry that was in the log by then is below it.
    """
    deadline = (yield Now()) + timeout
    end: int = yield LogEnd(timeout)
    state: ClusterState = yield ReadUpTo(end, max(deadline - (yield Now()), 0))
    return state


def run_steps(steps: Steps[T], perform: Callable[[Any], Any]) -> T:
    """Perform a protocol until it returns, and return its result. An exception of ``perform`` ends the protocol."""
    outcome: Any = None
    try:
        while True:
            # Drop the outcome before the next effect: it may be a whole state, and the effect may wait for long.
            effect, outcome = steps.send(outcome), None
            outcome = perform(effect)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        steps.close()


class Draw(Protocol):
    """A source of random bits."""

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises ValueError if ``count`` is negative."""
