"""The data folder of a stack: what lies where, and the two small files that processes tell each other things by.

``settings.json`` is written by the one who asks (ports, profile, and a request number); ``state.json`` only by the
supervisor (what it did about which request, and how its children are). Both are replaced atomically, so a reader sees
one or the other, never half. ``supervisor.lock`` is held by a living supervisor and by nothing else: the lock, not a
process id that may have been given to somebody else, says whether one lives. The values that describe a stack to
programs, and in the command's JSON, are here, too.
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
"""The system takes some 108 bytes for the path of a socket."""


def state_folder() -> Path:
    """Ringlog's folder below the XDG state folder."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "ringlog"


def default_data_dir() -> Path:
    """``RINGLOG_STACK_DATA``, else the XDG state folder."""
    chosen = os.environ.get("RINGLOG_STACK_DATA")
    return Path(chosen).absolute() if chosen else state_folder() / "stack"


@dataclass(frozen=True, slots=True)
class StackLayout:
    """Paths inside one data folder."""

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
        """The settings that the broker was last started with."""
        return self.broker / "server.properties"

    @property
    def own_properties(self) -> Path:
        return self.root / "broker.properties"

    @property
    def client_properties(self) -> Path:
        """How a client logs in at the broker."""
        return self.root / "client.properties"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def redis_socket(self) -> Path:
        """In the data folder; where that path is too long for a socket, in a folder of its own below ``/tmp``."""
        inside = self.redis / "redis.sock"
        if len(os.fsencode(inside)) <= SOCKET_BYTES_MAX:
            return inside
        which = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path("/tmp") / f"ringlog-{os.geteuid()}-{which}" / "redis.sock"


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What a stack shall be. Ports are kept over restarts; ``request`` rises each time somebody asks for a start."""

    kafka_cluster_id: str
    broker_port: int
    controller_port: int
    profile: str
    request: int


@dataclass(frozen=True, slots=True)
class Child:
    """A child as the supervisor last saw it. ``started`` is the kernel's start tick: pid and tick name a process."""

    pid: int
    started: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class State:
    """What the supervisor did: the last request it served, and its children by name."""

    supervisor_pid: int
    request: int
    problem: str
    broker: Child | None
    redis: Child | None

    def child(self, name: str) -> Child | None:
        return self.broker if name == "broker" else self.redis


PROFILES: dict[str, float] = {"default": 10.0, "quick": 2.0}
"""Profile name -> session time-out in seconds for consumer groups: how long a killed worker's share stays with it.

The broker allows both; a profile is advice that every worker started on the stack takes. ``quick`` is for tests."""


@dataclass(frozen=True, slots=True)
class StackAddress:
    """Addresses of a running stack. ``kafka_config``: path of the log-in at its broker, or empty."""

    bootstrap: str
    redis: str
    kafka_config: str


@dataclass(frozen=True, slots=True)
class StackInfo:
    """A stack that takes work now. ``kafka_config``: as in ``StackAddress``."""

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
    """One child. ``answers``: it took a connection (broker) or a PING (redis) just now. ``exit_code`` -9: SIGKILL."""

    name: str
    running: bool
    answers: bool
    address: str
    pid: int | None
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class StackStatus:
    """The whole stack. ``running`` is true only when the supervisor and both children run."""

    running: bool
    data_dir: str
    profile: str | None
    supervisor_pid: int | None
    broker: ChildStatus | None
    redis: ChildStatus | None
    bytes_on_disk: int


def write_json(path: Path, value: object) -> None:
    """Replaces a small file in one step, durable enough to outlive the process that wrote it."""
    write_private(path, json.dumps(value, indent=2) + "\n")


def write_settings(layout: StackLayout, settings: StackSettings) -> None:
    """Writes down what the stack shall be."""
    write_json(layout.settings, dataclasses.asdict(settings))


def read_settings(layout: StackLayout) -> StackSettings | None:
    """The settings, None for a folder that never held a stack; raises StackError ``bad_settings`` for anything else."""
    try:
        fields = json.loads(layout.settings.read_text(encoding="utf-8"))
        return StackSettings(**fields)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StackError(
            "bad_settings", f"{layout.settings} is not a stack's settings: {error}.", "Mend or remove it."
        ) from error


def write_state(layout: StackLayout, state: State) -> None:
    """The supervisor's word on how things are."""
    write_json(layout.state, dataclasses.asdict(state))


def read_state(layout: StackLayout) -> State | None:
    """The supervisor's last word, None when there is none or it cannot be understood (then nothing is known to run)."""
    try:
        fields = json.loads(layout.state.read_text(encoding="utf-8"))
        for name in CHILDREN:
            fields[name] = None if fields[name] is None else Child(**fields[name])
        return State(**fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
