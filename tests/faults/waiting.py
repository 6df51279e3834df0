"""Wait for conditions with a deadline; a failure names the waiting part and its condition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.05
DEADLINE_S = 120.0


class WaitedInVain(AssertionError):
    """A condition did not hold in time."""


def until(
    who: str,
    what: str,
    condition: Callable[[], T | None],
    deadline_s: float = DEADLINE_S,
    why_not: Callable[[], object] = lambda: "",
    left: Callable[[], object] = lambda: None,
) -> T:
    """Return the first true value of ``condition``; an empty value is false.

    Args:
        why_not: Called at the deadline; its text is part of the failure.
        left: The remaining work. If it has changed since the deadline started, the deadline starts again.
    """
    began, before = time.monotonic(), left()
    tick = threading.Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() - began >= deadline_s:
            if (now := left()) == before:
                raise WaitedInVain(f"{who} waited {deadline_s:.0f} s for {what}: {why_not()}")
            began, before = time.monotonic(), now
        tick.wait(LOOK_S)
