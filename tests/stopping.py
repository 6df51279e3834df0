"""Processes that SIGSTOP holds, every thread of them.

The signal returns at once, and one thread has to run before it stops the others: on a machine with much to do they go
on meanwhile, and a broker answers what it was sent after the signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.faults.waiting import until


def stop(pid: int) -> None:
    """SIGSTOP, until no thread of the process runs any more. Raises ProcessLookupError: it is gone."""
    os.kill(pid, signal.SIGSTOP)
    until("the test", f"{pid} to be stopped", lambda: is_stopped(pid))


def is_stopped(pid: int) -> bool:
    """True while SIGSTOP holds every thread of the process; one that is gone is not stopped."""
    states = list(_states(pid))
    return bool(states) and all(state in "Tt" for state in states)


def _states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            text = thread.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        yield text[text.rindex(")") + 2]
