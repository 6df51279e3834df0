"""Wait until a condition holds, or until the awaited process must hang.

Only a hang may end a wait, so the deadline counts polls instead of the clock. A poll costs its pause and the processor
time that it used, in its thread and in its child processes. No time passes while the machine stops or does not schedule
the test. On an idle machine the count is close to the clock, also if a poll runs a command. Processes of the fork
server are short, and no child processes.
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
"""The limit covers a poll that reaps a child process and is charged with the child's whole processor time."""


def until(condition: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S, look_s: float = LOOK_S) -> T:
    """Return the first true value of ``condition``; an empty value is false. Poll again after ``look_s``."""
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
    """Call ``work`` with all values concurrently, one thread for each; return the results. Raises the first error."""
    values = list(given)
    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(work, values))


def _used_s() -> float:
    """Return the processor seconds of this thread, and of all reaped children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime
