"""Waiting until a condition holds, or what is awaited must hang.

Only what hangs is to end a wait, so time is counted in looks. A look counts as its pause and as the processor's seconds
that it took, its thread's and those of the commands that it ran. While the machine stands still, or has no time for the
test, none goes by. On an idle machine the count is close to the clock, whether a look reads a variable or runs a
command.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Given = TypeVar("Given")
DEADLINE_S = 120.0
LOOK_S = 0.05
LOOK_COSTS_S_MAX = 1.0
"""A look can be the one that collects a process at its end, with all that this has ever used."""


def until(condition: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S, look_s: float = LOOK_S) -> T:
    """The first true value of ``condition``: an empty answer is none. Looks again after ``look_s``."""
    tick = threading.Event()
    waited_s, looks = 0.0, 0
    while waited_s < deadline_s:
        began_s = _used_s()
        found = condition()
        if found:
            return found
        looks += 1
        waited_s += look_s + min(_used_s() - began_s, LOOK_COSTS_S_MAX)
        tick.wait(look_s)
    raise AssertionError(f"waited {deadline_s:.0f} s for {what}: {looks} looks")


def at_once(work: Callable[[Given], T], given: Iterable[Given]) -> list[T]:
    """Call ``work`` with all values at once, one thread for each; return the results. Raises the first error."""
    values = list(given)
    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(work, values))


def _used_s() -> float:
    """The processor's seconds of this thread, and of all children that were waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime
