"""A wait, without a deadline, until a replica has folded all present records of its log.

A replay of a log of several months takes minutes, and no fixed deadline fits. The wait continues while the replica
makes progress. It ends with LogUnavailable if no record arrives for some time. The replica keeps its state for the next
attempt. Progress and the remaining time at the present rate are reported regularly (``ProgressCallback``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.reading import SILENCE_S
from ringlog.log.replicas.replica import LogReplica
from ringlog.runtime.logs import get_logger

LOOK_S = 0.2
FIRST_S = 2.0
"""Seconds before the first progress report. Shorter replays are not reported."""
AGAIN_S = 5.0
"""Seconds between two progress reports."""
WHOLE = "from its beginning"

log = get_logger(__name__)


class Replay(Value):
    """The progress of a replay: at ``epoch``, before record ``position`` of ``end``.

    ``took_s`` counts from the start of the wait, ``left_s`` is the estimated remaining time. ``what`` completes the
    phrase "reading the log".
    """

    log: str
    epoch: Epoch
    position: int
    end: int
    took_s: float
    left_s: float
    what: str = WHOLE

    @property
    def is_over(self) -> bool:
        """True in the last report."""
        return self.position >= self.end

    def __str__(self) -> str:
        """Return one line for people."""
        if self.is_over:
            return f"{self.log} read {self.what}: epoch {self.epoch}, {self.end} records in {self.took_s:.0f} s"
        where = f"epoch {self.epoch}, record {self.position} of {self.end}"
        return f"reading {self.log} {self.what}: {where}, about {self.left_s:.0f} s more"


ProgressCallback = Callable[[Replay], None]
"""A receiver of progress reports."""


def log_progress(replay: Replay) -> None:
    """Write a progress report to the process's log."""
    log.info(
        "replayed" if replay.is_over else "replays",
        log=replay.log,
        epoch=replay.epoch,
        record=replay.position,
        of=replay.end,
        took_s=round(replay.took_s),
        left_s=round(replay.left_s),
    )


class ProgressReporter:
    """Progress reports of a replay from record ``first`` to ``end``.

    A short replay is not reported. A longer one is reported after ``FIRST_S``, then every ``AGAIN_S``, and at its end.
    """

    def __init__(
        self,
        log_name: str,
        first: int,
        end: int,
        on_progress: ProgressCallback,
        clock: Callable[[], float],
        what: str = WHOLE,
    ) -> None:
        self._log, self._first, self._end, self._what = log_name, first, end, what
        self._on_progress, self._clock = on_progress, clock
        self._started = clock()
        self._tell_at = self._started + FIRST_S
        self._has_told = False

    def at(self, epoch: Epoch, position: int) -> None:
        """Report, if it is time for that, that all records before ``position`` are read."""
        now = self._clock()
        if self._has_told if position >= self._end else now >= self._tell_at:
            took = now - self._started
            rate = (position - self._first) / took if took > 0 else 0.0
            left = (self._end - position) / rate if rate > 0 else SILENCE_S
            self._on_progress(Replay(self._log, epoch, position, self._end, took, left, self._what))
            self._tell_at, self._has_told = now + AGAIN_S, True


def catch_up(
    replica: LogReplica,
    *,
    silence_s: float = SILENCE_S,
    check: Callable[[], None] = lambda: None,
    on_progress: ProgressCallback = log_progress,
    clock: Callable[[], float] = time.monotonic,
) -> ClusterState:
    """Wait for a state that contains every entry of the log at the time of the call: a read barrier without a deadline.

    Args:
        check: Called before each short wait. May raise.

    Raises:
        LogUnavailable: No record arrived for ``silence_s``.
        TopicMissing, ReplicaHalted, ReplicaStopped: See ``LogReplica.read_barrier``.
    """
    end = replica.end_offset(silence_s)
    moved = clock()
    position = replica.position
    telling = ProgressReporter(replica.log.name, position, end, on_progress, clock)
    while position < end:
        check()
        _await(replica, end)
        now = clock()
        if replica.position > position:
            position, moved = replica.position, now
        elif now - moved >= silence_s:
            what = f"no record arrived for {silence_s:.0f} s at record {position} of {end}"
            raise LogUnavailable(f"{replica.log.name}: {what}", "check that the broker is up")
        telling.at(replica.state.epoch, position)
    return replica.state


def _await(replica: LogReplica, end: int) -> None:
    with suppress(WaitTimedOut), replica.poll_policy.urgent():
        replica.wait_for(lambda _: replica.position >= end, LOOK_S, f"offset {end}")
