"""Protocols as coroutines over typed effects: an effect is a request to the driver, and ``await`` returns its outcome.

``state = await Barrier(timeout)``: the coroutine passes the effect to its driver. The driver performs the effect
completely and sends the outcome back. Each effect class names the type of its outcome; its docstring describes it.
``run_steps`` is the loop for drivers that may block. A protocol awaits nothing but effects and other protocols, so it
needs no event loop.

``Draw`` is the port for random bits. Its sources are ``ringlog.runtime.draw`` and ``ringlog_sim.devices.world``; both
pass ``tests/runtime/test_draw_conformance.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, Value

T = TypeVar("T")


class Effect(Generic[T]):
    """A request of a protocol to its driver, a frozen dataclass. ``T``: the type of its outcome; None: no outcome."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[Any], Any, T]:
        outcome: T = yield self
        return outcome


Steps = Coroutine[Effect[Any], Any, T]
"""A running protocol: awaits effects, and returns its result."""

FOREVER: Micros = 1_000_000_000_000_000
"""Longer than any process lives: no deadline."""


class Newest(Effect[ClusterState], Value):
    """Outcome: the newest folded state."""


class Now(Effect[Micros], Value):
    """Outcome: microseconds of a monotonic clock. Only differences have a meaning."""


class WallClock(Effect[Micros], Value):
    """Outcome: this machine's time in microseconds since 1970. It may be wrong, so safety must not depend on it."""


class Append(Effect[None], Value):
    """Append records to the metadata log, once. No outcome: the log shows whether they arrived."""

    records: tuple[bytes, ...]


class Barrier(Effect[ClusterState], Value):
    """Outcome: a state that contains every entry that was in the log when this effect began.

    The driver raises after ``timeout``.
    """

    timeout: Micros


class LogEnd(Effect[int], Value):
    """Outcome: the present end offset of the metadata log.

    The driver retries until the broker answers, and raises after ``timeout``.
    """

    timeout: Micros


class ReadUpTo(Effect[ClusterState], Value):
    """Wait until every entry before offset ``end`` is folded. Outcome: that state.

    The driver raises after ``timeout``.
    """

    end: int
    timeout: Micros


class CatchUp(Effect[ClusterState], Value):
    """A ``Barrier`` without a timeout, while the replica makes progress: a log of months takes minutes to replay."""


class Until(Effect[T | None], Value, Generic[T]):
    """Wait for the first folded state with a result of ``found``. Outcome: that result, or None after ``timeout``.

    ``what`` completes the phrase "waited 3 s for".
    """

    found: Callable[[ClusterState], T | None]
    timeout: Micros
    what: str


class Exclusive(Effect[T], Value, Generic[T]):
    """Perform the steps that ``start`` returns under the decision lock of this process. Outcome: their result.

    Not nested. The driver raises if it does not get the lock within ``timeout``.
    """

    start: Callable[[], Steps[T]]
    timeout: Micros


class FaultPoint(Effect[None], Value):
    """A named fault-injection point between two effects; a no-op in production."""

    moment: str


async def read_barrier(timeout: Micros) -> ClusterState:
    """Perform ``Barrier``.

    The end offset is requested after the barrier begins, so every entry that was in the log by then is below it.
    """
    deadline = await Now() + timeout
    end = await LogEnd(timeout)
    return await ReadUpTo(end, max(deadline - await Now(), 0))


def run_steps(steps: Steps[T], perform: Callable[[Effect[Any]], Any]) -> T:
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
