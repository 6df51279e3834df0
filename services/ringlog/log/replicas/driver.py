"""Execution of protocol effects on a metadata log and its replica, in the calling thread.

Errors of the log end the protocol that caused them. An append without an answer is the exception: the log itself shows
later whether the records were appended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.replay import catch_up
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import (
    Append,
    Barrier,
    CatchUp,
    Effect,
    Exclusive,
    FaultPoint,
    Newest,
    Now,
    Steps,
    Until,
    WallClock,
    run_steps,
)
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.logs import get_logger

T = TypeVar("T")
Handlers = dict[type, Callable[[Any], Any]]

log = get_logger(__name__)


def micros(seconds: float) -> Micros:
    """Convert seconds to the unit of protocol durations."""
    return round(seconds * 1_000_000)


class _PendingAppend:
    """Records that were handed to the log in one call.

    ``answered_at`` is the monotonic time of their answer, 0 before it.
    """

    def __init__(self, future: Future[None], entries: int) -> None:
        self.future = future
        self.entries = entries
        self.answered_at = 0.0
        future.add_done_callback(self._answered)

    def _answered(self, _: Future[None]) -> None:
        self.answered_at = time.monotonic()


class LogDriver:
    """A driver that blocks the calling thread while it performs effects.

    Args:
        check: Called regularly during long waits. May raise to end the protocol.
        check_s: Seconds between two calls of ``check``.

    Attributes:
        handlers: Effect type to handler. Drivers that support more effects add handlers.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        replica: LogReplica,
        clock: Clock | None = None,
        check: Callable[[], None] | None = None,
        check_s: float = float("inf"),
    ) -> None:
        self._log = metadata
        self._replica = replica
        self._check = check or (lambda: None)
        self._look_s = check_s
        self._sent: list[_PendingAppend] = []
        clock = clock or SystemClock()
        self.handlers: Handlers = {
            Newest: lambda _: replica.state,
            Now: lambda _: time.monotonic_ns() // 1_000,
            WallClock: lambda _: clock.now_us(),
            Append: self._append,
            Barrier: self._barrier,
            CatchUp: lambda _: catch_up(replica, check=self._check),
            Until: self._until,
            Exclusive: self._run_exclusively,
            FaultPoint: lambda _: None,
        }

    def run_steps(self, steps: Steps[T]) -> T:
        """Run a protocol to its end. Raises LogError, and the protocol's own errors."""
        return run_steps(steps, self._perform)

    def _perform(self, effect: Effect[Any]) -> Any:
        return self.handlers[type(effect)](effect)

    def _append(self, effect: Append) -> None:
        self._sent.append(_PendingAppend(self._log.append_async(list(effect.records)), len(effect.records)))

    def _barrier(self, effect: Barrier) -> ClusterState:
        with self._replica.poll_policy.urgent():
            return self._replica.read_barrier(effect.timeout / 1e6)

    def _until(self, effect: Until[T]) -> T | None:
        """Wait for the effect's condition, or return None at its timeout.

        The log may show the appended records before the broker's answer arrives, so this does not wait for the answer.
        The timeout begins with the answer. Otherwise the protocol would send records again that are still in flight.
        """
        begun = time.monotonic()
        while True:
            begun = max(begun, self._last_answer_time())
            now = time.monotonic()
            # While an answer is outstanding, the full timeout is left.
            left_s = effect.timeout / 1e6 - (now - (now if self._sent else begun))
            try:
                with self._replica.poll_policy.urgent():
                    return self._replica.wait_for(effect.found, min(left_s, self._look_s), effect.what)
            except WaitTimedOut:
                if left_s <= self._look_s and not self._sent:
                    return None
            self._check()

    def _last_answer_time(self) -> float:
        """Remove answered appends from the list and return the time of the last answer.

        Raises the log's error if it rejected records definitely.
        """
        sent, self._sent = self._sent, []
        answered = [one for one in sent if self._is_answered(one)]
        self._sent = [one for one in sent if one not in answered]
        return max((one.answered_at for one in answered), default=0.0)

    def _is_answered(self, sent: _PendingAppend) -> bool:
        """Return True if the append has its answer. An unknown outcome counts as an answer.

        Raises the log's error if it rejected the records definitely.
        """
        if not sent.future.done():
            return False
        error = sent.future.exception()
        if isinstance(error, LogUnavailable):
            log.warning("append_unanswered", log=self._log.name, entries=sent.entries, error=error.message)
        elif error is not None:
            raise error
        return True

    def _run_exclusively(self, effect: Exclusive[T]) -> T:
        started = time.monotonic()
        if not self._replica.decisions.acquire(timeout=effect.timeout / 1e6):
            raise WaitTimedOut(
                "another decision of this process", time.monotonic() - started, "the request was not sent"
            )
        try:
            return self.run_steps(effect.start())
        finally:
            self._replica.decisions.release()
