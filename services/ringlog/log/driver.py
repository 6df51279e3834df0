"""Performs the effects of protocols on a metadata log and its replica, by blocking the thread that asks.

Errors of the log end the protocol that met them; only an append without an answer does not, since the log itself tells
what became of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.port import MetadataLog
from ringlog.log.replay import catch_up
from ringlog.log.replica import Replica
from ringlog.protocol.effects import (
    Alone,
    Append,
    At,
    Barrier,
    CatchUp,
    Newest,
    Now,
    Steps,
    Until,
    WallClock,
    carry_out,
)
from ringlog.runtime.clock import Clock, SystemClock

T = TypeVar("T")
Handlers = dict[type, Callable[[Any], Any]]

log = structlog.get_logger(__name__)


def micros(seconds: float) -> Micros:
    """A duration as protocols count it."""
    return round(seconds * 1_000_000)


class LogDriver:
    """``look`` is called now and then during long waits, every ``look_s``; it may raise.

    ``handlers``: how each effect is performed; who knows more effects adds to them.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        replica: Replica,
        clock: Clock | None = None,
        look: Callable[[], None] | None = None,
        look_s: float = float("inf"),
    ) -> None:
        self._log = metadata
        self._replica = replica
        self._look = look or (lambda: None)
        self._look_s = look_s
        clock = clock or SystemClock()
        self.handlers: Handlers = {
            Newest: lambda _: replica.state,
            Now: lambda _: time.monotonic_ns() // 1_000,
            WallClock: lambda _: clock.now_us(),
            Append: self._append,
            Barrier: lambda effect: replica.read_barrier(effect.patience / 1e6),
            CatchUp: lambda _: catch_up(replica, look=self._look),
            Until: self._until,
            Alone: self._alone,
            At: lambda _: None,
        }

    def carry_out(self, steps: Steps[T]) -> T:
        """Perform a protocol to its end. Raises LogError, and what the protocol raises."""
        return carry_out(steps, self._perform)

    def _perform(self, effect: Any) -> Any:
        return self.handlers[type(effect)](effect)

    def _append(self, effect: Append) -> None:
        try:
            self._log.append(list(effect.records))
        except LogUnavailable as error:
            log.warning("append_unanswered", log=self._log.name, entries=len(effect.records), error=error.message)

    def _until(self, effect: Until) -> Any:
        deadline = time.monotonic() + effect.patience / 1e6
        while True:
            left_s = deadline - time.monotonic()
            try:
                return self._replica.wait_for(effect.found, min(left_s, self._look_s), effect.what)
            except WaitTimedOut:
                if left_s <= self._look_s:
                    return None
            self._look()

    def _alone(self, effect: Alone) -> Any:
        started = time.monotonic()
        if not self._replica.decisions.acquire(timeout=effect.patience / 1e6):
            raise WaitTimedOut("another decision of this process", time.monotonic() - started, "nothing was sent")
        try:
            return self.carry_out(effect.steps)
        finally:
            self._replica.decisions.release()
