"""Performs the effects of protocols on a metadata log and its replica, by blocking the thread that asks.

Errors of the log end the protocol that met them; only an append without an answer does not, since the log itself tells
what became of it.
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
    Exclusive,
    FaultPoint,
    Newest,
    Now,
    Steps,
    Until,
    WallClock,
    carry_out,
)
from ringlog.runtime.clock import Clock, SystemClock
from ringlog.runtime.logs import get_logger

T = TypeVar("T")
Handlers = dict[type, Callable[[Any], Any]]

log = get_logger(__name__)


def micros(seconds: float) -> Micros:
    """A duration as protocols count it."""
    return round(seconds * 1_000_000)


class _Sent:
    """Records that were handed to the log together; ``answered_at``: when their answer came, if it is there."""

    def __init__(self, future: Future[None], entries: int) -> None:
        self.future = future
        self.entries = entries
        self.answered_at = 0.0
        future.add_done_callback(self._answered)

    def _answered(self, _: Future[None]) -> None:
        self.answered_at = time.monotonic()


class LogDriver:
    """``look`` is called now and then during long waits, every ``look_s``; it may raise.

    ``handlers``: how each effect is performed; who knows more effects adds to them.
    """

    def __init__(
        self,
        metadata: MetadataLog,
        replica: LogReplica,
        clock: Clock | None = None,
        look: Callable[[], None] | None = None,
        look_s: float = float("inf"),
    ) -> None:
        self._log = metadata
        self._replica = replica
        self._look = look or (lambda: None)
        self._look_s = look_s
        self._sent: list[_Sent] = []
        clock = clock or SystemClock()
        self.handlers: Handlers = {
            Newest: lambda _: replica.state,
            Now: lambda _: time.monotonic_ns() // 1_000,
            WallClock: lambda _: clock.now_us(),
            Append: self._append,
            Barrier: self._barrier,
            CatchUp: lambda _: catch_up(replica, look=self._look),
            Until: self._until,
            Exclusive: self._alone,
            FaultPoint: lambda _: None,
        }

    def carry_out(self, steps: Steps[T]) -> T:
        """Perform a protocol to its end. Raises LogError, and what the protocol raises."""
        return carry_out(steps, self._perform)

    def _perform(self, effect: Any) -> Any:
        return self.handlers[type(effect)](effect)

    def _append(self, effect: Append) -> None:
        self._sent.append(_Sent(self._log.hand_over(list(effect.records)), len(effect.records)))

    def _barrier(self, effect: Barrier) -> ClusterState:
        with self._replica.pace.hurry():
            return self._replica.read_barrier(effect.timeout / 1e6)

    def _until(self, effect: Until) -> Any:
        """The log itself may show what was appended before the broker's answer is here: nobody waits for that.

        But patience begins with the answer, so that nothing is sent again while it is still under way.
        """
        begun = time.monotonic()
        while True:
            begun = max(begun, self._answered_until())
            now = time.monotonic()
            left_s = effect.timeout / 1e6 - (now - (now if self._sent else begun))
            try:
                with self._replica.pace.hurry():
                    return self._replica.wait_for(effect.found, min(left_s, self._look_s), effect.what)
            except WaitTimedOut:
                if left_s <= self._look_s and not self._sent:
                    return None
            self._look()

    def _answered_until(self) -> float:
        """Forget what has its answer; when the last of those came. Raises what the log has definitely refused."""
        sent, self._sent = self._sent, []
        answered = [one for one in sent if self._is_answered(one)]
        self._sent = [one for one in sent if one not in answered]
        return max((one.answered_at for one in answered), default=0.0)

    def _is_answered(self, sent: _Sent) -> bool:
        """Raises what the log has definitely refused."""
        if not sent.future.done():
            return False
        error = sent.future.exception()
        if isinstance(error, LogUnavailable):
            log.warning("append_unanswered", log=self._log.name, entries=sent.entries, error=error.message)
        elif error is not None:
            raise error
        return True

    def _alone(self, effect: Exclusive) -> Any:
        started = time.monotonic()
        if not self._replica.decisions.acquire(timeout=effect.timeout / 1e6):
            raise WaitTimedOut("another decision of this process", time.monotonic() - started, "nothing was sent")
        try:
            return self.carry_out(effect.steps)
        finally:
            self._replica.decisions.release()
