"""The demo's processes. Each has its own log file. All are stopped when the demo ends, also after an error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_S = 20.0


class ProcessFailed(Exception):
    """A process of the demo exited with an error. The text contains the end of its log."""


@dataclass(slots=True)
class Running:
    """One process and its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise ProcessFailed if the process has exited with an error."""
        status = self.process.poll()
        if status not in (None, 0):
            raise ProcessFailed(f"{self.name} ended with status {status}; the end of {self.log}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


class Processes:
    """A group of processes that are started, watched and stopped together."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[Running] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, arguments: Sequence[str], environment: dict[str, str] | None = None) -> Running:
        """Start ``python ARGUMENTS`` with output to ``NAME.log``."""
        path = self._logs / f"{name}.log"
        with path.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        running = Running(name, process, path)
        self._running.append(running)
        return running

    def check(self) -> None:
        """Raise ProcessFailed if any process has exited with an error."""
        for running in self._running:
            running.check()

    def stop(self, *names: str) -> None:
        """Terminate the named processes, or all, newest first. Kill those that are still running after ``STOP_S``."""
        chosen = [r for r in reversed(self._running) if not names or r.name in names]
        for running in chosen:
            _signal(running.process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for running in chosen:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.1, deadline - time.monotonic()))
            if running.process.poll() is None:
                _signal(running.process, signal.SIGKILL)
                running.process.wait()
            self._running.remove(running)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


@contextlib.contextmanager
def processes(logs: Path) -> Iterator[Processes]:
    """Yield a group of processes that is stopped at the end of the block, also on Ctrl-C and SIGTERM."""
    group = Processes(logs)

    def terminate(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield group
    finally:
        signal.signal(signal.SIGTERM, before)
        group.stop()
