"""The data folder of a stack: its paths, and the two files through which its processes communicate.

Commands write ``settings.json`` (ports, profile, request number). Only the supervisor writes ``state.json`` (the last
served request, the state of its children). Both are replaced atomically, so a reader never sees a partial file.

Invariant: a live supervisor, and only that, holds ``supervisor.lock``. The lock shows whether a supervisor is alive; a
pid could have been reused.

This module also contains the values that describe a stack to programs and in the JSON of commands.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from ringlog.files import write_private
from ringlog.stack.errors import StackError

CHILDREN = ("broker", "redis")


SOCKET_BYTES_MAX = 100
"""The system limit for the path of a socket is about 108 bytes."""


def state_folder() -> Path:
    """Return Ringlog's folder below the XDG state folder."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "ringlog"


def default_data_dir() -> Path:
    """Return ``RINGLOG_STACK_DATA``, or the default below the XDG state folder."""
    chosen = os.environ.get("RINGLOG_STACK_DATA")
    return Path(chosen).absolute() if chosen else state_folder() / "stack"


@dataclass(frozen=True, slots=True)
class StackLayout:
    """Paths in one data folder."""

    root: Path

    @property
    def settings(self) -> Path:
        return self.root / "settings.json"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def command_lock(self) -> Path:
        return self.root / "command.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.root / "supervisor.lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def server_properties(self) -> Path:
        """The settings of the broker's last start."""
        return self.broker / "server.properties"

    @property
    def own_properties(self) -> Path:
        return self.root / "broker.properties"

    @property
    def client_properties(self) -> Path:
        """The login file of clients."""
        return self.root / "client.properties"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def redis_socket(self) -> Path:
        """The socket in the data folder, or in a separate folder below ``/tmp`` if the path would be too long."""
        inside = self.redis / "redis.sock"
        if len(os.fsencode(inside)) <= SOCKET_BYTES_MAX:
            return inside
        which = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path("/tmp") / f"ringlog-{os.geteuid()}-{which}" / "redis.sock"


@dataclass(frozen=True, slots=True)
class StackSettings:
    """The requested configuration of a stack. Ports are kept over restarts. Each start increments ``request``."""

    kafka_cluster_id: str
    broker_port: int
    controller_port: int
    profile: str
    request: int


@dataclass(frozen=True, slots=True)
class Child:
    """A child as the supervisor last saw it. ``started``: the kernel's start tick; pid and tick identify a process."""

    pid: int
    started: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class State:
    """The state that the supervisor reports: the last served request, and its children by name."""

    supervisor_pid: int
    request: int
    problem: str
    broker: Child | None
    redis: Child | None

    def child(self, name: str) -> Child | None:
        return self.broker if name == "broker" else self.redis


PROFILES: dict[str, float] = {"default": 10.0, "quick": 2.0}
"""Profile to session time-out of consumer groups in seconds: how long a killed worker keeps its share.

The broker allows both. Workers that are started on the stack use the profile's value. ``quick`` is for tests.
"""


@dataclass(frozen=True, slots=True)
class StackAddress:
    """Addresses of a running stack. ``kafka_config``: path of the login file, or empty."""

    bootstrap: str
    redis: str
    kafka_config: str


@dataclass(frozen=True, slots=True)
class StackInfo:
    """A stack that accepts work. ``kafka_config``: as in ``StackAddress``."""

    bootstrap_servers: str
    redis_url: str
    data_dir: str
    supervisor_pid: int
    broker_pid: int
    redis_pid: int
    profile: str
    session_timeout_s: float
    kafka_config: str = ""


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """The status of a child.

    ``answers``: it just accepted a connection (broker) or a PING (redis). ``exit_code``: -9 after SIGKILL.
    """

    name: str
    running: bool
    answers: bool
    address: str
    pid: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class StackStatus:
    """The status of a stack. ``running``: whether the supervisor and both children run."""

    running: bool
    data_dir: str
    profile: str | None
    supervisor_pid: int | None
    broker: ChildStatus | None
    redis: ChildStatus | None
    bytes_on_disk: int


def write_json(path: Path, value: object) -> None:
    """Replace a small file atomically. The content survives the end of this process."""
    write_private(path, json.dumps(value, indent=2) + "\n")


def write_settings(layout: StackLayout, settings: StackSettings) -> None:
    """Store the requested configuration. The caller holds the command lock."""
    write_json(layout.settings, dataclasses.asdict(settings))


def read_settings(layout: StackLayout) -> StackSettings | None:
    """Return the settings, or None for a folder without a stack. Raises StackError ``bad_settings`` if they are
    invalid.
    """
    try:
        fields = json.loads(layout.settings.read_text(encoding="utf-8"))
        return StackSettings(**fields)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StackError(
            "bad_settings", f"{layout.settings} does not contain settings of a stack: {error}.", "Correct or delete it."
        ) from error


def write_state(layout: StackLayout, state: State) -> None:
    """Store the state. Only the supervisor calls this."""
    write_json(layout.state, dataclasses.asdict(state))


def read_state(layout: StackLayout) -> State | None:
    """Return the supervisor's last state, or None if it is missing or invalid (no process is then known to run)."""
    try:
        fields = json.loads(layout.state.read_text(encoding="utf-8"))
        for name in CHILDREN:
            fields[name] = None if fields[name] is None else Child(**fields[name])
        return State(**fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
