"""Stop all threads of a process with SIGSTOP.

The signal returns immediately, but one thread has to run before it stops the others. On a busy machine they continue
for a while, and a broker answers requests from after the signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.faults.waiting import until


def stop(pid: int) -> None:
    """Send SIGSTOP and wait until all threads are stopped. Raises ProcessLookupError if the process is gone."""
    os.kill(pid, signal.SIGSTOP)
    until("the test", f"{pid} to be stopped", lambda: is_stopped(pid))


def is_stopped(pid: int) -> bool:
    """Return True while SIGSTOP holds all threads of the process; a process that is gone is not stopped."""
    states = list(_states(pid))
    return bool(states) and all(state in "Tt" for state in states)


def _states(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            text = thread.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        yield text[text.rindex(")") + 2]
