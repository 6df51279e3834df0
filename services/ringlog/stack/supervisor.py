"""The detached process that owns the broker and Redis.

It holds the supervisor lock during its lifetime. It only waits for signals. They are blocked and processed one at a
time, so no signal interrupts other work:

    SIGUSR1   Read the settings, start children that do not run, record the served request.
    SIGCHLD   Record the exit of a child. It is *not* restarted: a crash must remain visible until the next ``up``.
    SIGTERM   Stop the children, then exit.

Invariant: a child dies with the supervisor, even after SIGKILL (see ``processes``). So the supervisor exits only on
SIGTERM or SIGINT. If it cannot write its state (a full disk, which also stops the broker), it retries until it can.

The process uses the standard library only and a few MB of memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from ringlog.files import private_process
from ringlog.stack import broker, redis_server
from ringlog.stack.errors import StackError
from ringlog.stack.layout import CHILDREN, Child, StackLayout, StackSettings, State, read_settings, write_state
from ringlog.stack.processes import locked, spawn_bound, start_tick

STOP_S_MAX = 15.0
AGAIN_S = 0.5
"""The pause before a failed write of the state is retried."""
FORMAT_S_MAX = 120.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)


class Supervisor:
    """The owner of the children of one data folder. Single-threaded; each method runs between two signals."""

    def __init__(self, layout: StackLayout) -> None:
        self._layout = layout
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, int] = {}
        self._request = 0
        self._problem = ""
        self._unwritten = False

    def run(self) -> None:
        """Serve the first request, then process signals until the stop signal."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # Publish the pid first, so that ``down`` can stop a supervisor that is still starting.
        self._write_state()
        self._serve()
        while True:
            number = self._next_signal()
            if number in (signal.SIGTERM, signal.SIGINT):
                break
            if number == signal.SIGUSR1:
                self._serve()
            else:
                self._write_state()
        self._stop()

    def _next_signal(self) -> int | None:
        """Return the next signal, or None if the write of the state must be retried."""
        if not self._unwritten:
            return signal.sigwait(_SIGNALS)
        found = signal.sigtimedwait(_SIGNALS, AGAIN_S)
        return None if found is None else found.si_signo

    def _serve(self) -> None:
        """Start the children that do not run. A failed start is recorded in the state; the supervisor continues."""
        settings = read_settings(self._layout)
        if settings is None:
            return
        self._problem = ""
        try:
            # Start Redis first, because it is ready while the broker still starts.
            if not self._runs("redis"):
                self._start("redis", redis_server.run_command(self._layout))
            if not self._runs("broker"):
                self._start_broker(settings)
        except (StackError, OSError) as error:
            self._problem = str(error)
            _say(traceback.format_exc())
        self._request = settings.request
        self._write_state()

    def _start_broker(self, settings: StackSettings) -> None:
        broker.write_files(self._layout, settings)
        if not broker.is_formatted(self._layout):
            tool = self._spawn("broker", broker.format_command(self._layout, settings))
            try:
                code = tool.wait(FORMAT_S_MAX)
            except subprocess.TimeoutExpired:
                tool.kill()
                code = tool.wait()
            if code != 0:
                raise StackError(
                    "format_failed",
                    f"Formatting the broker's storage failed (exit {code}).",
                    "See: ringlog stack logs broker",
                )
        self._start("broker", broker.run_command(self._layout))

    def _start(self, name: str, command: list[str]) -> None:
        process = self._spawn(name, command)
        self._processes[name] = process
        self._started[name] = start_tick(process.pid) or 0
        _say(f"{name} started as {process.pid}")

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        # The broker must not depend on Kafka or Java variables in the user's environment.
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "JAVA_TOOL_OPTIONS"))
        }
        return spawn_bound(command, folder=self._layout.root, log=self._layout.log(name), environment=environment)

    def _runs(self, name: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def _write_state(self) -> None:
        children = {name: self._child(name) for name in CHILDREN}
        state = State(
            supervisor_pid=os.getpid(),
            request=self._request,
            problem=self._problem,
            broker=children["broker"],
            redis=children["redis"],
        )
        try:
            write_state(self._layout, state)
        except OSError as error:
            if not self._unwritten:
                _say(f"writing the state failed and is retried: {error}")
            self._unwritten = True
        else:
            self._unwritten = False

    def _child(self, name: str) -> Child | None:
        process = self._processes.get(name)
        if process is None:
            return None
        return Child(pid=process.pid, started=self._started[name], exit_code=process.poll())

    def _stop(self) -> None:
        """Terminate the children, and kill them after a time-out. A broker with a clean shutdown starts faster."""
        running = [process for name, process in self._processes.items() if self._runs(name)]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._write_state()
        _say("stopped")


def _say(text: str) -> None:
    # The log may be on a full disk.
    with suppress(OSError):
        os.write(1, f"{text}\n".encode())


def main() -> None:
    """Print the pid of the detached supervisor and exit (``python -m ringlog.stack.supervisor DATA``)."""
    layout = StackLayout(Path(sys.argv[1]))
    private_process()
    detached = os.fork()
    if detached:
        print(detached, flush=True)
        os._exit(0)
    os.chdir("/")
    log = os.open(layout.log("supervisor"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    with locked(layout.supervisor_lock, wait=False) as is_locked:
        if is_locked:
            Supervisor(layout).run()


if __name__ == "__main__":
    main()
