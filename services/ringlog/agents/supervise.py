"""The supervisor: all agents of a cluster on one machine, one process per role.

A process that crashed or was superseded is restarted after a pause. The pause doubles up to ``PAUSE_MAX_S``, and is
short again after a process has run for ``STEADY_S``. A process that halted stays down, because a restart does not help
and an operator must act. SIGTERM and SIGINT stop all processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from ringlog.agents.exits import CRASHED, HALTED, STOPPED, SUPERSEDED
from ringlog.agents.worker import PARENT_VARIABLE
from ringlog.protocol.roles import ROLES
from ringlog.runtime.process import stop_on_signals
from ringlog.runtime.settings import ProcessSettings

PAUSE_MIN_S = 0.5
PAUSE_MAX_S = 10.0
STEADY_S = 30.0
"""A process that ran for this long starts again after the shortest pause."""
LOOK_S = 0.1
STOP_S = 15.0
"""How long the processes together may take to stop before they are killed."""

_NAMES = {STOPPED: "stopped", CRASHED: "crashed", SUPERSEDED: "was superseded", HALTED: "halted"}


@dataclass(slots=True)
class _Child:
    """A role's process, or the time of its next start (seconds, monotonic). ``halted``: it is not started again."""

    role: str
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    start_at: float = 0.0
    pause_s: float = PAUSE_MIN_S
    halted: bool = False


def supervise(settings: ProcessSettings, roles: tuple[str, ...] = tuple(ROLES)) -> int:
    """Run the roles until SIGTERM or SIGINT. Return 0, or 4 if one of them had halted."""
    stopping = threading.Event()
    stop_on_signals(stopping)
    children = [_Child(role) for role in roles]
    try:
        while not stopping.wait(LOOK_S) and not all(child.halted for child in children):
            for child in children:
                _look(child, settings)
    finally:
        _stop(children)
    return HALTED if any(child.halted for child in children) else STOPPED


def _look(child: _Child, settings: ProcessSettings) -> None:
    """Start the role's process if it is time, or handle its end."""
    now = time.monotonic()
    if child.process is None:
        if not child.halted and now >= child.start_at:
            child.process = _started([sys.executable, "-m", "ringlog.agents", child.role], _env(settings, child.role))
            child.started = now
            _say(f"{child.role} started, process {child.process.pid}")
        return
    code = child.process.poll()
    if code is None:
        return
    child.process = None
    what = _NAMES.get(code, f"was killed by signal {-code}" if code < 0 else f"ended with status {code}")
    if code == HALTED:
        child.halted = True
        _say(f"{child.role} {what} and is not restarted; see the last line of its log")
        return
    child.pause_s = PAUSE_MIN_S if now - child.started >= STEADY_S else min(child.pause_s * 2, PAUSE_MAX_S)
    child.start_at = now + child.pause_s
    _say(f"{child.role} {what}; restart in {child.pause_s:.1f} s")


def _started(words: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with SIGINT blocked.

    Ctrl-C reaches the whole process group of the terminal, and the supervisor stops its children itself. A child that
    receives SIGINT while it imports its modules would end with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(words, env=env)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(children: list[_Child]) -> None:
    """Stop all processes, by force after ``STOP_S``."""
    running = [child.process for child in children if child.process is not None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _say("all stopped")


def _env(settings: ProcessSettings, role: str) -> dict[str, str]:
    """Return the environment of a role's process: the settings, with a separate metrics port for each role."""
    given = {name: value for name, value in settings.model_dump().items() if value is not None}
    if settings.metrics_port is not None:
        given["metrics_port"] = settings.metrics_port + list(ROLES).index(role)
    values = {f"RINGLOG_{name.upper()}": str(value) for name, value in given.items()}
    return os.environ | values | {PARENT_VARIABLE: str(os.getpid())}


def _say(text: str) -> None:
    # One write per line, because the agents write to the same file.
    print(f"agents: {text}\n", end="", flush=True)
