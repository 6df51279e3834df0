"""Processes and ports of a stack.

A process is identified by its pid and the kernel tick of its start, because pids are reused.

A child process dies with its parent: the kernel sends SIGKILL when the thread that started the child ends
(PR_SET_PDEATHSIG). The child exits before the program starts if the parent has already ended.

Ports that a process keeps are drawn below the kernel's range for outgoing connections. A port inside that range could
be in use by an outgoing connection at the next start.
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
"""The polling interval of a wait. A process that is not a child does not notify when it ends."""


def start_tick(pid: int) -> int | None:
    """Return the kernel start tick of a live process, or None if it ended or is only waiting to be reaped.

    A killed multi-threaded program is a zombie while its last threads still hold its ports. It counts as alive.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name, in parentheses, may contain spaces and parentheses. The fields after it have fixed positions.
    fields = text[text.rindex(")") + 2 :].split()
    state, threads, tick = fields[0], int(fields[17]), int(fields[19])
    return None if state in "ZX" and threads <= 1 else tick


def is_alive(pid: int, started: int) -> bool:
    """Return whether this process is still alive."""
    return start_tick(pid) == started


def kill(pid: int, started: int, number: signal.Signals) -> None:
    """Send a signal to this process, unless it has ended."""
    if is_alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds. Return False on time-out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def spawn_bound(
    arguments: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a child that dies with this process; append its output to ``log``.

    Call it only from the main thread of a single-threaded process, because the death signal is bound to the calling
    thread.
    """
    parent = os.getpid()

    def bind() -> None:
        # The supervisor blocks signals, and a child inherits the mask.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have ended before ``prctl``, in which case no signal would be sent.
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
    """Return whether a live process holds the lock of this file."""
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
    """Hold the lock of a file. Yields False if another process holds it and ``wait`` is false.

    The kernel releases the lock when the process ends.
    """
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
    """Return whether a server can listen at this port now. Like for servers, closed connections do not block it."""
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

    A successful connection would not show this, because a process of any user may listen there.
    """
    try:
        tables = Path(f"/proc/{pid}/net").glob("tcp*")
        rows = [line.split() for path in tables for line in path.read_text(encoding="ascii").splitlines()]
        # Columns: 1 is the local address, 3 the state (0A: listening), 9 the inode of the socket.
        sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
        return any(_target(path) in sockets for path in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # The process has ended.
        return False


def _target(path: Path) -> str:
    """Return the target of a descriptor; empty if the process has closed it meanwhile."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def becomes_free(port: int) -> bool:
    """Return whether the port is free, after a short wait for a server that is shutting down."""
    return wait_until(lambda: is_free(port), _TIMEOUT_S)


def draw() -> int:
    """Return a random port below the range for outgoing connections. It may be in use."""
    return random.randint(FIRST, LAST)


def choose(count: int, *, avoid: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Return ``count`` different free ports. Raises StackError ``no_free_port``."""
    chosen: list[int] = []
    for _ in range(_DRAWS_MAX):
        if len(chosen) == count:
            break
        port = draw()
        if port not in avoid and port not in chosen and is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise StackError("no_free_port", f"{HOST} has no free port between {FIRST} and {LAST}.")
    return tuple(chosen)
