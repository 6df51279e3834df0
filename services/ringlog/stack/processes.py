"""Processes by name that cannot lie: a pid together with the tick at which the kernel started it.

A child started here dies with its parent: the kernel sends it SIGKILL when the thread that started it ends, for
whatever reason (PR_SET_PDEATHSIG), and a parent that was already gone is noticed before the program starts.

Free ports of 127.0.0.1 that stay the same from one start to the next.

They are drawn from below the range that the kernel gives to outgoing connections: a port from inside that range would
now and then be somebody's connection when the stack comes back for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ringlog.stack.errors import StackError

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


HOST = "127.0.0.1"
FIRST, LAST = 20_000, 32_000
_DRAWS_MAX = 200
_TIMEOUT_S = 1.0


def is_free(port: int) -> bool:
    """Could a server listen here now? (A port of closed connections is free, as it is for the servers themselves.)"""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def listens(pid: int, port: int) -> bool:
    """Return whether this process listens at the port. While it does, no other process can.

    A connection to the port does not show this, because any user's process may listen there.
    """
    try:
        tables = Path(f"/proc/{pid}/net").glob("tcp*")
        rows = [line.split() for path in tables for line in path.read_text(encoding="ascii").splitlines()]
        sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
        return any(os.readlink(path) in sockets for path in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it ended, or closed a file meanwhile: the caller looks again
        return False


def becomes_free(port: int) -> bool:
    """The same, with a moment's patience for a server that is just ending."""
    return wait_until(lambda: is_free(port), _TIMEOUT_S)


def choose(count: int, *, avoid: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """``count`` different free ports; raises StackError ``no_free_port``."""
    chosen: list[int] = []
    for _ in range(_DRAWS_MAX):
        if len(chosen) == count:
            break
        port = random.randint(FIRST, LAST)
        if port not in avoid and port not in chosen and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise StackError("no_free_port", f"No free port of {HOST} between {FIRST} and {LAST}.")
    return tuple(chosen)
