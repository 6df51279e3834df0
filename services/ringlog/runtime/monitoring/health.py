"""The readiness of a process and its reason, as shown by ``/health``.

A process is ready if it does its work, or would do it at once if it were the active instance. So a standby agent is
ready and reports that it stands by. An agent that takes over, has halted or waits for the broker is not ready. ``why``
describes every problem, ready or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Protocol

from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.runtime.monitoring.metrics import Sample

WHY_CHARS_MAX = 1_000
"""A reason may quote an error of any length, so it is cut."""


class Health(Value):
    """The state of a process in one word, its readiness, and its progress.

    ``epoch`` and ``behind`` (records) are None if the process has not read the log.
    """

    state: str
    is_ready: bool
    why: str = ""
    epoch: Epoch | None = None
    behind: int | None = None


class WatchedProcess(Protocol):
    """A process that reports its health and metrics, from any thread. No method waits for a broker."""

    labels: Mapping[str, str]
    """Labels of every metric of the process."""

    def health(self) -> tuple[Health, Micros]:
        """Return the health, and since when this state was observed, in microseconds since 1970 UTC."""
        ...

    def samples(self) -> Iterator[Sample]:
        """Return the metrics."""
        ...


class StateSince:
    """The time since which a process has been in its observed state. The first state counts from the start."""

    def __init__(self, now: Callable[[], Micros]) -> None:
        self._now = now
        self._seen: tuple[str | None, Micros] = None, now()

    def of(self, state: str) -> Micros:
        """Record the present state and return the time of its first observation."""
        previous, at = self._seen
        if previous is not None and state != previous:
            at = self._now()
        self._seen = state, at
        return at


def short_body(health: Health) -> bytes:
    """Return the response body for clients without a token."""
    return (json.dumps({"state": health.state, "ready": health.is_ready}) + "\n").encode()


def as_json(health: Health, since: Micros) -> bytes:
    """Return the complete response body."""
    at = datetime.fromtimestamp(since / 1e6, UTC).isoformat(timespec="milliseconds")
    found = {
        "state": health.state,
        "ready": health.is_ready,
        "since": at.replace("+00:00", "Z"),
        "why": health.why[:WHY_CHARS_MAX],
        "epoch": health.epoch,
        "behind_records": health.behind,
    }
    return (json.dumps(found) + "\n").encode()
