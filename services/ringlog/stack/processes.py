"""Processes by name that cannot lie: a pid together with the tick at which the kernel started it.

A child started here dies with its parent: the kernel sends it SIGKILL when the thread that started it ends, for
whatever reason (PR_SET_PDEATHSIG), and a parent that was already gone is noticed before the program starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

POLL_S = 0.02
"""How often a wait looks again: no process tells a stranger that it ended."""


def start_tick(pid: int) -> int | None:
    """Kernel start tick of a living process; None when it is gone or only waits to be reaped.

    A killed program of many threads shows as a zombie while its last threads still hold its ports: that is not gone.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    state, threads, tick = fields[0], int(fields[17]), int(fields[19])
    return None if state in "ZX" and threads <= 1 else tick


def is_alive(pid: int, started: int) -> bool:
    """Is it still that same process?"""
    return start_tick(pid) == started


def kill(pid: int, started: int, number: signal.Signals) -> None:
    """Sends a signal to that same process, or does nothing when it is gone."""
    if is_alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Looks again and again until the condition holds; False when it did not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def spawn_bound(
    arguments: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a child that dies with this process, its output appended to ``log``.

    Call it from the main thread of a single-threaded process only: the death signal is tied to the calling thread.
    """
    parent = os.getpid()

    def bind() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            list(arguments),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            preexec_fn=bind,
        )


def is_locked(path: Path) -> bool:
    """Does a living process hold the lock of this file?"""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Holds a file's lock; yields False when another has it and ``wait`` is false. The kernel frees it at death."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
