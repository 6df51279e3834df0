"""Is a process ready, and if not, why: what ``/health`` answers.

Ready means: it does what it is there for, or would at once if it were its turn. So an agent that stands by is ready and
says so, and one that takes over, has halted or waits for the broker is not. ``why`` is there whenever something is not
as it should be, ready or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from ringlog.kernel.values import Epoch, Micros
from ringlog.runtime.monitoring.metrics import Sample

WHY_CHARS_MAX = 1_000
"""A reason may quote an error of any length."""


@dataclass(frozen=True, slots=True)
class Health:
    """``state``: in a word; ``epoch``, ``behind``: as far as the process knows, None where it has not read the log."""

    state: str
    is_ready: bool
    why: str = ""
    epoch: Epoch | None = None
    behind: int | None = None


class WatchedProcess(Protocol):
    """A process that can be looked at, from any thread and at little cost; nothing here waits for a broker."""

    labels: Mapping[str, str]
    """Of every figure of the process."""

    def health(self) -> tuple[Health, Micros]:
        """How it is, and since when it was seen to be in that state, microseconds since 1970 UTC."""
        ...

    def samples(self) -> Iterator[Sample]:
        """Its figures."""
        ...


class Since:
    """Since when a process has been in its state, as far as somebody looked; its first state is that of its start."""

    def __init__(self, now: Callable[[], Micros]) -> None:
        self._now = now
        self._seen: tuple[str | None, Micros] = None, now()

    def of(self, state: str) -> Micros:
        """Take note of the present state; when it was first seen."""
        previous, at = self._seen
        if previous is not None and state != previous:
            at = self._now()
        self._seen = state, at
        return at


def short_body(health: Health) -> bytes:
    """The answer's body for who may not know more."""
    return (json.dumps({"state": health.state, "ready": health.is_ready}) + "\n").encode()


def as_json(health: Health, since: Micros) -> bytes:
    """The answer's body."""
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
