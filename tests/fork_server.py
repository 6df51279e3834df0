"""A fork server for Ringlog's programs: a process that has imported them, and forks for each start of one.

A command uses a twelfth of the processor time of ``python -m``, which imports every module again. Each process has its
own arguments, environment, folder, streams and exit status. Three things differ from ``python -m``: the start of the
interpreter, the command line that ``ps`` prints, and the hash seed, which the processes of a server share. Programs
come in turn from ``SERVERS`` servers, so agents and nodes of a cluster have different seeds. Tests of these three start
Python.

Source: ``multiprocessing`` has a fork server, but its children share streams, environment and folder with the server.
"""

from __future__ import annotations

import atexit
import itertools
import os
import select
import signal
import socket
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # The program of a shell starts within 20 ms, because it imports only what it needs.
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FORWARDED = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
SERVERS = 2
_turns = itertools.cycle(range(SERVERS))
ENDED_S = 20.0
"""Time for the end of a program after SIGTERM, when the process that started it has ended. Then it is killed."""
NUMBER = 8
"""Bytes of a number in the protocol: the length of a request, then a process id, then an exit status."""


class ForkedProcess:
    """A process of the fork server, with the methods of ``subprocess.Popen``. Create it with ``start``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = _receive_number(connection)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._result(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status. Raise TimeoutExpired after ``timeout`` seconds."""
        import subprocess

        status = self._result(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _result(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = _receive_number(self._connection)
            self._connection.close()
        return self.returncode


def start(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | str = ".",
    *,
    log: int | None = None,
    network: str = "",
) -> ForkedProcess:
    """Start a program without input.

    Args:
        words: ``-m MODULE``, ``-c CODE`` or a file, and arguments, like those of ``python``.
        log: Descriptor of its output and errors. None: those of this process.
        network: File of its network namespace. Empty: that of this process.
    """
    with open(os.devnull, "rb") as nothing:
        streams = nothing.fileno(), *((1, 2) if log is None else (log, log))
        return _start(next_path(), words, environment, folder, streams, network)


def run(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | str = ".",
    *,
    text: str = "",
    network: str = "",
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its output. ``text``: its input. Raise TimeoutExpired after ``timeout``
    seconds.
    """
    import subprocess
    from contextlib import ExitStack

    with ExitStack() as open_:
        given, out, err = (open_.enter_context(os.fdopen(os.memfd_create(name), "w+b")) for name in _STREAMS)
        given.write(text.encode())
        given.seek(0)
        streams = given.fileno(), out.fileno(), err.fileno()
        process = _start(next_path(), words, environment, folder, streams, network)
        try:
            status = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        printed = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess(list(words), status, *printed)


_STREAMS = "stdin", "stdout", "stderr"


def shell_program(*words: str) -> str:
    """Return a shell script that runs a program and forwards the signals that it gets."""
    import shlex

    command = sys.executable, "-I", "-S", __file__, next_path(), *words
    return f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'


def next_path() -> str:
    """Return the socket path of the next server in turn."""
    return _server_path(next(_turns))


@cache
def _server_path(_: int) -> str:
    """Start a server of this test process; return the path of its socket. It ends with this process."""
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="fork-server-")
    path = os.path.join(folder, "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        # NumPy's library would start threads, and only a process without threads may fork.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(listener.fileno())],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )

    def end() -> None:
        server.communicate()
        shutil.rmtree(folder)

    atexit.register(end)
    return path


def _start(
    path: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path | str,
    streams: Sequence[int],
    network: str = "",
) -> ForkedProcess:
    import json

    request = json.dumps([list(words), dict(environment), os.path.abspath(folder), _umask(), network]).encode()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        socket.send_fds(connection, [len(request).to_bytes(NUMBER, "big")], streams)
        connection.sendall(request)
        return ForkedProcess(connection)
    except BaseException:
        connection.close()
        raise


def _umask() -> int:
    """Return the mask without a change that other threads would see."""
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def _receive(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise EOFError("the fork server closed the connection")
    return data


def _receive_number(connection: socket.socket) -> int:
    return int.from_bytes(_receive(connection, NUMBER), "big", signed=True)


def _follow(path: str, words: Sequence[str]) -> int:
    """Run a program with the streams, environment and folder of this process; return its exit status."""
    process = _start(path, words, os.environ, os.getcwd(), (0, 1, 2))
    for number in FORWARDED:
        signal.signal(number, lambda given, _frame: process.send_signal(given))
    status = process.wait()
    if status < 0:  # the shell shall see the same end
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _serve(listener: socket.socket) -> None:
    """Import the programs, then fork for each connection until the standard input ends."""
    import gc
    from importlib import import_module

    from ringlog.cli.main import COMMANDS

    for module in {subcommand.module for subcommand in COMMANDS.values()} | set(_LATER):
        import_module(module)
    # Modules of the command line look at environment and streams when they are imported: each process imports its own.
    for module in [name for name in sys.modules if "cli" in name.split(".") or name.startswith("ringlog_demo")]:
        del sys.modules[module]
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "only a process without threads may fork"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: set[int] = set()
    while 0 not in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        pid = os.fork()
        if pid == 0:
            listener.close()
            _attend(connection)
        connection.close()
        running.add(pid)
        running -= {one for one in running if os.waitpid(one, os.WNOHANG)[0]}


_LATER = (
    "confluent_kafka.admin",
    "httpx",
    "redis",
    "rich._emoji_codes",
    "ringlog.agents.worker",
    "structlog",
    "typer._adapters",
)
"""Modules that programs import when they need them."""


def _attend(connection: socket.socket) -> None:
    """Start the process of a request and report its id and its status. End it if the connection ends."""
    import json

    head, streams, _, _ = socket.recv_fds(connection, NUMBER, 3)
    request = json.loads(_receive(connection, int.from_bytes(head, "big")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(*request, streams)
    for descriptor in streams:
        os.close(descriptor)
    try:
        connection.sendall(pid.to_bytes(NUMBER, "big"))
        if connection in select.select([connection, os.pidfd_open(pid)], [], [])[0]:
            os.kill(pid, signal.SIGTERM)  # whoever started it has ended
            if not select.select([os.pidfd_open(pid)], [], [], ENDED_S)[0]:
                os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(status.to_bytes(NUMBER, "big", signed=True))
    finally:
        os._exit(0)


def _become(
    words: list[str], environment: dict[str, str], folder: str, umask: int, network: str, streams: Sequence[int]
) -> None:
    """Run the program in this process, and end it as the interpreter does."""
    import runpy
    import threading

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if network:
        import ctypes

        with open(network, "rb") as there:
            assert ctypes.CDLL(None).setns(there.fileno(), 0) == 0, network
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.stdin = _stream(0, "r")
    sys.stdout = _stream(1, "w")
    sys.stderr = _stream(2, "w", errors="backslashreplace", buffering=1)
    status: Any = 0
    try:
        how, *rest = words
        sys.argv = words
        if how == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            sys.argv = [how, *rest[1:]]
            exec(rest[0], {"__name__": "__main__"})
        else:
            sys.path.insert(0, os.path.dirname(how))
            runpy.run_path(how, run_name="__main__")
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status or 0)


def _stream(descriptor: int, mode: str, **options: Any) -> Any:
    """Open a standard stream again, because its descriptor is another file now."""
    return open(descriptor, mode, encoding="utf-8", closefd=False, **options)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        sys.exit(_follow(sys.argv[1], sys.argv[2:]))
