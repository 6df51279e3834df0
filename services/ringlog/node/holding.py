"""Requests that threads hold: ``ringlog.node.protocol.requests`` under a lock, which waits let go of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ringlog.node.protocol.requests import Hold
from ringlog.protocol.effects import Steps, carry_out

T = TypeVar("T")
LOOK_S = 0.2


def hold(changed: threading.Condition, steps: Steps[T], check: Callable[[], object] = lambda: None) -> T:
    """Perform steps in the thread that asks. ``changed`` is notified when a wait may be over; ``check`` is called now
    and then during one, and may raise.
    """

    def wait(effect: Hold) -> None:
        until = time.monotonic() + effect.patience / 1e6
        while not changed.wait_for(effect.over, min(max(until - time.monotonic(), 0), LOOK_S)):
            check()
            if time.monotonic() >= until:
                return

    with changed:
        return carry_out(steps, wait)
