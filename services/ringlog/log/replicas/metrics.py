"""Metrics of a replica of the metadata log: position, lag, and time since the broker's last answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import ringlog
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.values import SECOND_US, Epoch, Micros, Value
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.subscribers import Halt
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.trust import current

SILENT_S = 20.0
"""Seconds without an answer about the log's end after which a broker counts as away. This allows a few failed checks.
"""


class LogView(Value):
    """The reading progress of a process.

    ``behind`` (records) and ``silent_s`` are None until the replica has started.
    """

    epoch: Epoch
    time: Micros
    behind: int | None
    silent_s: float | None
    halted: Halt | None
    counts: tuple[tuple[str, int], ...] = ()

    @property
    def outage(self) -> str:
        """A text that says that the broker is away; empty if it answers."""
        if self.silent_s is None:
            return "the broker has not returned the log yet"
        if self.silent_s < SILENT_S:
            return ""
        return f"the broker has not answered for {self.silent_s:.0f} s"

    @property
    def halt(self) -> str:
        """The code and reason of a halt; empty if the process reads the log."""
        return "" if self.halted is None else f"{self.halted.code}: {self.halted.detail}"


def log_view(replica: LogReplica) -> LogView:
    """Return the present view of a replica."""
    state, position, known = replica.state, replica.position, replica.known_end
    counts = replica.counts
    return LogView(
        state.epoch,
        state.time,
        None if known is None else max(0, known[0] - position),
        None if known is None else time.monotonic() - known[1],
        replica.halted,
        tuple((kind.value, counts[kind]) for kind in OutcomeKind),
    )


def process_samples(now: Micros) -> Iterator[Sample]:
    """Yield the metrics that every process has.

    ``now`` is the time of its clock. The expiry of its certificate is included if it has one.
    """
    yield Sample("ringlog_release_info", 1, (ringlog.__version__,))
    yield Sample("ringlog_clock_seconds", now / SECOND_US)
    if expires := current().expires:
        yield Sample("ringlog_certificate_expires_seconds", expires)


def log_samples(view: LogView) -> Iterator[Sample]:
    """Yield the metrics of a process that reads the log."""
    yield Sample("ringlog_epoch", view.epoch)
    yield Sample("ringlog_log_halted", view.halted is not None)
    yield Sample("ringlog_log_time_seconds", view.time / SECOND_US)
    if view.behind is not None and view.silent_s is not None:
        yield Sample("ringlog_log_behind_records", view.behind)
        yield Sample("ringlog_log_silent_seconds", view.silent_s)
    yield from (Sample("ringlog_log_records", count, (outcome,)) for outcome, count in view.counts)
