"""What can be done with a stack: up, status, logs, down, reset.

Commands on one data folder exclude each other by a file lock, so two at once do one after the other what one would do.
``up`` is also the repair: it starts the supervisor if none lives, asks it to start whatever does not run, and comes
back when a record can be produced and Redis answers. Data stay; ports stay unless somebody else took them. An ``up``
that fails, or is interrupted, ends what it has started; what ran before it runs on.
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
"""Folders of the stacks that this user has started."""


class Stack:
    """The stack of one data folder. Holds nothing itself: any number of these may look at the same folder."""

    def __init__(self, data_dir: str | os.PathLike[str] | None = None) -> None:
        self._layout = StackLayout(Path(data_dir).absolute() if data_dir is not None else default_data_dir())

    def up(self, profile: str | None = None, *, timeout_s: float = UP_S_MAX) -> StackInfo:
        """Makes the stack run and waits until it takes work; harmless when it does already.

        ``profile`` None keeps the folder's (at first: default). Raises StackError: ``unknown_profile``,
        ``start_failed`` (with the end of the log), ``start_timeout``, ``stop_failed``, …; what was started has ended
        then, but for the last one.
        """
        if profile is not None and profile not in PROFILES:
            raise StackError("unknown_profile", f"No profile {profile!r}; there are: {', '.join(PROFILES)}.")
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
        """Return where it is while the broker runs. Raises StackError ``bad_settings``."""
        settings = read_settings(self._layout)
        if settings is None or not _runs(read_state(self._layout), "broker"):
            return None
        return StackAddress(
            f"{ports.HOST}:{settings.broker_port}", redis_server.url(self._layout), self._kafka_config(settings)
        )

    @property
    def bootstrap_servers(self) -> str | None:
        """Where its broker is when it runs; None for a folder without a stack. Raises StackError ``bad_settings``."""
        settings = read_settings(self._layout)
        return None if settings is None else f"{ports.HOST}:{settings.broker_port}"

    def status(self) -> StackStatus:
        """What runs now, by looking at the processes and asking each; takes no lock and changes nothing."""
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
        """Path of the log of ``broker``, ``redis`` or ``supervisor``; raises StackError ``unknown_log``, ``no_log``."""
        if name not in (*CHILDREN, "supervisor"):
            raise StackError("unknown_log", f"No log {name!r}; there are: {', '.join(CHILDREN)}, supervisor.")
        path = self._layout.log(name)
        if not path.is_file():
            raise StackError("no_log", f"{path} does not exist yet.", "Run: ringlog stack up")
        return path

    def down(self) -> bool:
        """Stops everything and waits until no process is left; False when nothing ran. Data stay."""
        if not self._layout.root.is_dir():
            return False
        with locked(self._layout.command_lock, wait=True):
            return self._down()

    def reset(self) -> bool:
        """Stops everything and deletes the stack's data and logs, not its ports; False when there was nothing."""
        if read_settings(self._layout) is None:
            return False
        with locked(self._layout.command_lock, wait=True):
            self._down()
            for folder in (self._layout.broker, self._layout.redis, self._layout.logs):
                shutil.rmtree(folder, ignore_errors=True)
            self._layout.state.unlink(missing_ok=True)
            settings = read_settings(self._layout)
            assert settings is not None
            # Another cluster id: a client that remembers the old broker's topics must not take this one for it.
            write_settings(self._layout, dataclasses.replace(settings, kafka_cluster_id=broker.new_cluster_id()))
        return True

    # -- up, step by step (the command lock is held) -------------------------------------------------------------------

    def _prepare(self) -> None:
        """The folders, closed to others, also those that were open until now. Raises FolderUnusable."""
        private_folder(self._layout.root, self._layout.settings.name, self._layout.own_properties.name)
        private_folder(self._layout.logs, ours=True)
        make_client_file(self._layout)

    def _start(self, profile: str | None, deadline: float, timeout_s: float) -> StackInfo:
        for _ in range(STARTS_MAX):
            settings = self._ask(profile)
            if self._wait_served(settings.request, deadline) and self._wait_ready(settings, deadline):
                return self._info()
            if time.monotonic() >= deadline:
                why = f"The stack did not take work within {timeout_s:.0f} s, and was ended; --timeout gives it longer."
                raise StackError("start_timeout", why, self._hint())
        raise StackError("start_failed", f"A part of the stack ended at each of {STARTS_MAX} starts.", self._hint())

    def _children(self) -> frozenset[Child]:
        """The children that run now."""
        state = read_state(self._layout)
        found = (state.child(name) for name in CHILDREN if _runs(state, name)) if state is not None else ()
        return frozenset(child for child in found if child is not None)

    def _undo_start(self, ran: frozenset[Child] | None) -> None:
        """End what a start has begun. ``ran``: the children that a supervisor had before; None: there was none."""
        if ran is None:
            self._down()
            return
        for child in self._children() - ran:
            kill(child.pid, child.started, signal.SIGTERM)
            if not _ended(child.pid, child.started, _STOP_S_MAX):
                kill(child.pid, child.started, signal.SIGKILL)
            if not _ended(child.pid, child.started):
                raise StackError("stop_failed", f"Process {child.pid} of the stack does not end.")

    def _ask(self, profile: str | None) -> StackSettings:
        """Writes down what is wanted and makes a supervisor look at it."""
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
        """Keeps the ports of what runs and the free ones; draws new ones for those that somebody else has taken."""
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
        """True once the supervisor has served our request; False when time is up or it ended before."""

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
        """True once both take work; False when one of them ended or time is up."""

        def give_up() -> bool:
            state = read_state(self._layout)
            return time.monotonic() >= deadline or not all(_runs(state, name) for name in CHILDREN)

        def redis_or_not() -> bool:
            return redis_server.answers(self._layout) or give_up()

        def broker_or_not() -> bool:
            # No other process that listens at the port may get the broker's password.
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
            raise StackError("start_failed", f"{self._layout.root} was changed while the stack started.")
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
        """The end of the log of a process that does not run, else of the broker's."""
        state = read_state(self._layout)
        name = next((name for name in reversed(CHILDREN) if not _runs(state, name)), "broker")
        path = self._layout.log(name)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        return "\n".join([f"End of {path}:", *lines[-_TAIL_LINES:]])

    # -- down ----------------------------------------------------------------------------------------------------------

    def _down(self) -> bool:
        ran = is_locked(self._layout.supervisor_lock)
        if ran:  # its first word comes a moment after it has the lock
            wait_until(lambda: read_state(self._layout) is not None, _KILL_S_MAX)
        state = read_state(self._layout)
        if ran and state is not None:
            pid, started = state.supervisor_pid, start_tick(state.supervisor_pid) or 0
            kill(pid, started, signal.SIGTERM)
            if not wait_until(lambda: not is_locked(self._layout.supervisor_lock), _STOP_S_MAX):
                kill(pid, started, signal.SIGKILL)
            if not _ended(pid, started):
                raise StackError("stop_failed", f"The supervisor (process {pid}) does not end.")
        self._end_leftovers()
        return ran

    def _end_leftovers(self) -> None:
        """Waits until the children of a dead supervisor are gone: the kernel kills them, but not at once."""
        state = read_state(self._layout)
        for name in CHILDREN:
            child = state.child(name) if state is not None else None
            if child is None or child.exit_code is not None:
                continue
            pid, started = child.pid, child.started
            kill(pid, started, signal.SIGKILL)
            if not _ended(pid, started):
                raise StackError("stop_failed", f"The {name} (process {pid}) does not end.")

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
    """Return where every stack of this user is that runs now."""
    found = []
    for root in dict.fromkeys((*_recorded(), str(default_data_dir()))):
        with suppress(StackError, OSError):  # a folder that is broken, or gone, has no address
            address = Stack(root).address()
            found += [] if address is None else [address]
    return tuple(found)


def kafka_config_of_stack(bootstrap: str) -> str:
    """Return the log-in of the running stack of this user that has this broker; empty: none is needed or known."""
    return next((address.kafka_config for address in addresses() if address.bootstrap == bootstrap), "")


def record(root: Path) -> None:
    """Know the folder of a stack, so that its Redis is found for its broker. Raises OSError."""
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
    """True once a process that was asked to end is gone; False if that takes too long."""
    return wait_until(lambda: not is_alive(pid, started), wait_s)


def _runs(state: State | None, name: str) -> bool:
    child = state.child(name) if state is not None else None
    return child is not None and child.exit_code is None and is_alive(child.pid, child.started)


def _bytes_on_disk(root: Path) -> int:
    """Bytes of blocks in use below a folder (Kafka's index files are mostly holes). Files may vanish while we look."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
