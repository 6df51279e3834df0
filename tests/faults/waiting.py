"""Waiting for conditions: with a deadline, and with a word on who waits for what when it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.05
DEADLINE_S = 120.0


class WaitedInVain(AssertionError):
    """A condition did not come to hold in time."""


def until(
    who: str,
    what: str,
    condition: Callable[[], T | None],
    deadline_s: float = DEADLINE_S,
    why_not: Callable[[], object] = lambda: "",
    left: Callable[[], object] = lambda: None,
) -> T:
    """The first true value of ``condition``: an empty answer is none.

    At the deadline ``why_not`` is asked how things stand: its answer is part of the failure. ``left``: what is still to
    come; where that has changed since the deadline began, it begins anew.
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
