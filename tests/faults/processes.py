"""Processes of the world: start, kill, stop and continue. Each process writes to its own log file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

STOP_S = 20.0


class Process:
    """One program that runs repeatedly under one name. ``starts``: number of starts; ``log``: file of its output."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.starts = 0
        self._command = [sys.executable, *arguments]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the program, which must not be running."""
        assert self._process is None or not self.runs(), f"{self.name} runs"
        self.starts += 1
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self._process is not None
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code; None while the process runs or is stopped."""
        assert self._process is not None
        return self._process.poll()

    def runs(self) -> bool:
        """True until the process ends."""
        return self.exit_code() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process ends."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def text(self) -> str:
        """Return the whole output."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self, lines: int = 12) -> str:
        """Return the last lines of the output."""
        return "\n".join([f"end of {self.name}:", *self.text().splitlines()[-lines:]])

    def end(self) -> None:
        """Terminate the process and its children, also a stopped process, and kill them after the deadline."""
        assert self._process is not None
        if self._process.poll() is not None:
            return
        for pid in (self.pid, *children(self.pid)):
            signal_to(pid, signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            left = children(self.pid)
            self.kill()
            for pid in left:
                signal_to(pid, signal.SIGKILL)


def children(pid: int) -> tuple[int, ...]:
    """Return the process ids of a process's children; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return ()
    return tuple(int(child) for child in text.split())


def last_argument(pid: int) -> str:
    """Return the last argument of a process's command line; empty if the process is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[-2].decode() if len(words) > 1 else ""


def is_alive(pid: int) -> bool:
    """Return True until the process is gone."""
    return Path(f"/proc/{pid}/stat").exists()


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
