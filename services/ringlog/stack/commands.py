"""Commands of a stack: up, status, logs, down, reset.

Invariants:

- Commands that change a data folder hold its command lock, so concurrent commands run one after the other.

- ``up`` is idempotent and also repairs a stack. It starts the supervisor if none is alive and asks it to start the
  missing children. It returns when a record can be produced and Redis answers.

- Data is kept. Ports are kept unless another process uses them.

- An ``up`` that fails or is interrupted stops the processes that it started, and only those.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ringlog.files import private_folder
from ringlog.stack import broker, probes, redis_server
from ringlog.stack import processes as ports
from ringlog.stack.errors import StackError
from ringlog.stack.layout import (
    CHILDREN,
    PROFILES,
    Child,
    ChildStatus,
    StackAddress,
    StackInfo,
    StackLayout,
    StackSettings,
    StackStatus,
    State,
    default_data_dir,
    read_settings,
    read_state,
    state_folder,
    write_json,
    write_settings,
)
from ringlog.stack.log_in import has_log_in, make_client_file, read_log_in
from ringlog.stack.processes import is_alive, is_locked, kill, locked, start_tick, wait_until

UP_S_MAX = 90
STARTS_MAX = 3
_STOP_S_MAX = 40.0
_KILL_S_MAX = 10.0
_TAIL_LINES = 15
STACKS = "stacks.json"
"""The file with the folders of the stacks that this user has started."""


class Stack:
    """The stack of one data folder. Instances have no state, so any number may use the same folder."""

    def __init__(self, data_dir: str | os.PathLike[str] | None = None) -> None:
        self._layout = StackLayout(Path(data_dir).absolute() if data_dir is not None else default_data_dir())

    def up(self, profile: str | None = None, *, timeout_s: float = UP_S_MAX) -> StackInfo:
        """Start the stack and wait until it accepts work. Does nothing if it already does.

        ``profile``: None keeps the folder's profile (initially: default). Raises StackError with ``unknown_profile``,
        ``start_failed`` (with the end of the log), ``start_timeout``, ``stop_failed`` and other codes. Except for
        ``stop_failed``, all processes that this call started have ended.
        """
        if profile is not None and profile not in PROFILES:
            raise StackError(
                "unknown_profile", f"Profile {profile!r} does not exist; the profiles are: {', '.join(PROFILES)}."
            )
        deadline = time.monotonic() + timeout_s
        self._prepare()
        with locked(self._layout.command_lock, wait=True):
            ran = self._children() if is_locked(self._layout.supervisor_lock) else None
            try:
                return self._start(profile, deadline, timeout_s)
            except BaseException as error:
                try:
                    self._undo_start(ran)
                except StackError as stays:
                    raise StackError(stays.code, f"{error} {stays}") from error
                raise

    def address(self) -> StackAddress | None:
        """Return the addresses of a running broker and its Redis, or None. Raises StackError ``bad_settings``."""
        settings = read_settings(self._layout)
        if settings is None or not _runs(read_state(self._layout), "broker"):
            return None
        return StackAddress(
            f"{ports.HOST}:{settings.broker_port}", redis_server.url(self._layout), self._kafka_config(settings)
        )

    @property
    def bootstrap_servers(self) -> str | None:
        """Address of the broker, also while it does not run. None for a folder without a stack.

        Raises StackError ``bad_settings``.
        """
        settings = read_settings(self._layout)
        return None if settings is None else f"{ports.HOST}:{settings.broker_port}"

    def status(self) -> StackStatus:
        """Inspect the processes and query both servers. Takes no lock and changes nothing."""
        settings, state = read_settings(self._layout), read_state(self._layout)
        supervisor = state.supervisor_pid if state is not None and is_locked(self._layout.supervisor_lock) else None
        children = {name: self._child_status(name, settings, state) for name in CHILDREN} if settings else {}
        return StackStatus(
            running=supervisor is not None and bool(children) and all(child.running for child in children.values()),
            data_dir=str(self._layout.root),
            profile=settings.profile if settings else None,
            supervisor_pid=supervisor,
            broker=children.get("broker"),
            redis=children.get("redis"),
            bytes_on_disk=_bytes_on_disk(self._layout.root),
        )

    def logs(self, name: str = "broker") -> Path:
        """Return the path of the log of ``broker``, ``redis`` or ``supervisor``. Raises StackError ``unknown_log``,
        ``no_log``.
        """
        if name not in (*CHILDREN, "supervisor"):
            raise StackError(
                "unknown_log", f"Log {name!r} does not exist; the logs are: {', '.join(CHILDREN)}, supervisor."
            )
        path = self._layout.log(name)
        if not path.is_file():
            raise StackError("no_log", f"{path} does not exist yet.", "Run: ringlog stack up")
        return path

    def down(self) -> bool:
        """Stop all processes and wait until they have ended. Return False if none ran. Data is kept."""
        if not self._layout.root.is_dir():
            return False
        with locked(self._layout.command_lock, wait=True):
            return self._down()

    def reset(self) -> bool:
        """Stop all processes and delete data and logs, but not the ports. Return False if the folder has no stack."""
        if read_settings(self._layout) is None:
            return False
        with locked(self._layout.command_lock, wait=True):
            self._down()
            for folder in (self._layout.broker, self._layout.redis, self._layout.logs):
                shutil.rmtree(folder, ignore_errors=True)
            self._layout.state.unlink(missing_ok=True)
            settings = read_settings(self._layout)
            assert settings is not None
            # A new cluster id. Otherwise clients with cached topics of the old broker would treat this one as the same.
            write_settings(self._layout, dataclasses.replace(settings, kafka_cluster_id=broker.new_cluster_id()))
        return True

    # -- up, step by step (the command lock is held) -------------------------------------------------------------------

    def _prepare(self) -> None:
        """Create the folders and restrict them to their owner, also existing ones. Raises FolderUnusable."""
        private_folder(self._layout.root, self._layout.settings.name, self._layout.own_properties.name)
        private_folder(self._layout.logs, ours=True)
        make_client_file(self._layout)

    def _start(self, profile: str | None, deadline: float, timeout_s: float) -> StackInfo:
        for _ in range(STARTS_MAX):
            settings = self._ask(profile)
            if self._wait_served(settings.request, deadline) and self._wait_ready(settings, deadline):
                return self._info()
            if time.monotonic() >= deadline:
                why = f"The stack did not answer in {timeout_s:.0f} s and was stopped. Pass --timeout to wait longer."
                raise StackError("start_timeout", why, self._hint())
        raise StackError("start_failed", f"The stack failed at each of {STARTS_MAX} starts.", self._hint())

    def _children(self) -> frozenset[Child]:
        """Return the children that run now."""
        state = read_state(self._layout)
        found = (state.child(name) for name in CHILDREN if _runs(state, name)) if state is not None else ()
        return frozenset(child for child in found if child is not None)

    def _undo_start(self, ran: frozenset[Child] | None) -> None:
        """Stop the processes of a failed start. ``ran``: children that ran before; None: no supervisor ran before."""
        if ran is None:
            self._down()
            return
        for child in self._children() - ran:
            kill(child.pid, child.started, signal.SIGTERM)
            if not _ended(child.pid, child.started, _STOP_S_MAX):
                kill(child.pid, child.started, signal.SIGKILL)
            if not _ended(child.pid, child.started):
                raise StackError("stop_failed", f"Process {child.pid} of the stack does not stop.")

    def _ask(self, profile: str | None) -> StackSettings:
        """Write the settings with a new request number and make a supervisor read them."""
        settings = read_settings(self._layout)
        supervised = is_locked(self._layout.supervisor_lock)
        if not supervised:
            self._end_leftovers()
        if settings is None:
            ours, controllers = ports.choose(2)
            settings = StackSettings(broker.new_cluster_id(), ours, controllers, profile="default", request=0)
        settings = self._with_usable_ports(settings)
        settings = dataclasses.replace(settings, profile=profile or settings.profile, request=settings.request + 1)
        write_settings(self._layout, settings)
        state = read_state(self._layout)
        if supervised and state is not None:
            os.kill(state.supervisor_pid, signal.SIGUSR1)
        elif not supervised:
            self._spawn_supervisor()
        return settings

    def _with_usable_ports(self, settings: StackSettings) -> StackSettings:
        """Keep ports that are free or used by this stack; replace those that another process uses."""
        state = read_state(self._layout)
        wanted = (settings.broker_port, settings.controller_port)
        free = [_runs(state, "broker") or ports.becomes_free(port) for port in wanted]
        spare = iter(ports.choose(free.count(False), avoid=frozenset(wanted)))
        ours, controllers = (port if is_free else next(spare) for port, is_free in zip(wanted, free, strict=True))
        return dataclasses.replace(settings, broker_port=ours, controller_port=controllers)

    def _spawn_supervisor(self) -> None:
        self._layout.state.unlink(missing_ok=True)
        sources = str(Path(__file__).parents[2])
        inherited = os.environ.get("PYTHONPATH")
        subprocess.run(
            [sys.executable, "-m", "ringlog.stack.supervisor", str(self._layout.root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": f"{sources}:{inherited}" if inherited else sources},
            start_new_session=True,
            check=True,
        )

    def _wait_served(self, request: int, deadline: float) -> bool:
        """Return True when the supervisor has served the request, False at the deadline or if the supervisor ended."""

        def served_or_gone() -> bool:
            state = read_state(self._layout)
            if state is not None and state.request >= request:
                return True
            return state is not None and not is_locked(self._layout.supervisor_lock)

        wait_until(served_or_gone, deadline - time.monotonic())
        state = read_state(self._layout)
        if state is None or state.request < request:
            return False
        if state.problem:
            raise StackError("start_failed", state.problem)
        return True

    def _wait_ready(self, settings: StackSettings, deadline: float) -> bool:
        """Return True when both children accept work, False at the deadline or if one ended."""

        def give_up() -> bool:
            state = read_state(self._layout)
            return time.monotonic() >= deadline or not all(_runs(state, name) for name in CHILDREN)

        def redis_or_not() -> bool:
            return redis_server.answers(self._layout) or give_up()

        def broker_or_not() -> bool:
            # Only the broker's own process may receive its password (see ``log_in``).
            return any(ports.listens(child.pid, settings.broker_port) for child in self._children()) or give_up()

        wait_until(redis_or_not, deadline - time.monotonic())
        wait_until(broker_or_not, deadline - time.monotonic())
        if give_up():
            return False
        log_in = read_log_in(self._layout) if has_log_in(self._layout, settings) else None
        ready = probes.takes_records(f"{ports.HOST}:{settings.broker_port}", give_up, log_in)
        return ready and redis_server.answers(self._layout) and not give_up()

    def _info(self) -> StackInfo:
        settings, state = read_settings(self._layout), read_state(self._layout)
        if settings is None or state is None or state.broker is None or state.redis is None:
            raise StackError("start_failed", f"{self._layout.root} changed while the stack started.")
        return StackInfo(
            bootstrap_servers=f"{ports.HOST}:{settings.broker_port}",
            redis_url=redis_server.url(self._layout),
            data_dir=str(self._layout.root),
            supervisor_pid=state.supervisor_pid,
            broker_pid=state.broker.pid,
            redis_pid=state.redis.pid,
            profile=settings.profile,
            session_timeout_s=PROFILES[settings.profile],
            kafka_config=self._kafka_config(settings),
        )

    def _kafka_config(self, settings: StackSettings) -> str:
        return str(self._layout.client_properties) if has_log_in(self._layout, settings) else ""

    def _hint(self) -> str:
        """Return the end of the log of a child that does not run, or of the broker."""
        state = read_state(self._layout)
        name = next((name for name in reversed(CHILDREN) if not _runs(state, name)), "broker")
        path = self._layout.log(name)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        return "\n".join([f"End of {path}:", *lines[-_TAIL_LINES:]])

    # -- down ----------------------------------------------------------------------------------------------------------

    def _down(self) -> bool:
        ran = is_locked(self._layout.supervisor_lock)
        # A new supervisor locks first and writes its state a moment later.
        if ran:
            wait_until(lambda: read_state(self._layout) is not None, _KILL_S_MAX)
        state = read_state(self._layout)
        if ran and state is not None:
            pid, started = state.supervisor_pid, start_tick(state.supervisor_pid) or 0
            kill(pid, started, signal.SIGTERM)
            if not wait_until(lambda: not is_locked(self._layout.supervisor_lock), _STOP_S_MAX):
                kill(pid, started, signal.SIGKILL)
            if not _ended(pid, started):
                raise StackError("stop_failed", f"The supervisor (process {pid}) does not stop.")
        self._end_leftovers()
        return ran

    def _end_leftovers(self) -> None:
        """Wait until the children of a dead supervisor have ended. The kernel kills them, but with a delay."""
        state = read_state(self._layout)
        for name in CHILDREN:
            child = state.child(name) if state is not None else None
            if child is None or child.exit_code is not None:
                continue
            pid, started = child.pid, child.started
            kill(pid, started, signal.SIGKILL)
            if not _ended(pid, started):
                raise StackError("stop_failed", f"The {name} (process {pid}) does not stop.")

    # -- status --------------------------------------------------------------------------------------------------------

    def _child_status(self, name: str, settings: StackSettings, state: State | None) -> ChildStatus:
        child = state.child(name) if state is not None else None
        running = _runs(state, name)
        if name == "redis":
            address, asks = str(self._layout.redis_socket), redis_server.answers(self._layout)
        else:
            address = f"{ports.HOST}:{settings.broker_port}"
            asks = probes.takes_connections(ports.HOST, settings.broker_port)
        return ChildStatus(
            name=name,
            running=running,
            answers=running and asks,
            address=address,
            pid=child.pid if child is not None and running else None,
            exit_code=child.exit_code if child is not None else None,
        )


def addresses() -> tuple[StackAddress, ...]:
    """Return the addresses of all running stacks of this user."""
    found = []
    for root in dict.fromkeys((*_recorded(), str(default_data_dir()))):
        # Skip damaged and deleted folders.
        with suppress(StackError, OSError):
            address = Stack(root).address()
            found += [] if address is None else [address]
    return tuple(found)


def kafka_config_of_stack(bootstrap: str) -> str:
    """Return the login file of this user's running stack with this broker, or an empty string."""
    return next((address.kafka_config for address in addresses() if address.bootstrap == bootstrap), "")


def record(root: Path) -> None:
    """Add a stack's folder to the user's list, so that clients of its broker can find its Redis. Raises OSError."""
    if str(root) not in _recorded():
        private_folder(state_folder(), "stack")
        with locked(state_folder() / "stacks.lock", wait=True):
            whole = [other for other in _recorded() if StackLayout(Path(other)).settings.is_file()]
            write_json(state_folder() / STACKS, [*whole, str(root)])


def _recorded() -> tuple[str, ...]:
    try:
        found = json.loads((state_folder() / STACKS).read_text(encoding="utf-8"))
        return tuple(str(root) for root in found)
    except (OSError, ValueError, TypeError, RecursionError):
        return ()


def _ended(pid: int, started: int, wait_s: float = _KILL_S_MAX) -> bool:
    """Wait until a process has ended. Return False on time-out."""
    return wait_until(lambda: not is_alive(pid, started), wait_s)


def _runs(state: State | None, name: str) -> bool:
    child = state.child(name) if state is not None else None
    return child is not None and child.exit_code is None and is_alive(child.pid, child.started)


def _bytes_on_disk(root: Path) -> int:
    """Return the bytes of used blocks below a folder: Kafka's index files are sparse. Files may disappear meanwhile."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                # On Linux, ``st_blocks`` counts units of 512 bytes.
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
