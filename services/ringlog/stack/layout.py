"""The data folder of a stack: what lies where, and the two small files that processes tell each other things by.

``settings.json`` is written by whoever asks (ports, profile, and a request number); ``state.json`` only by the
supervisor (what it did about which request, and how its children are). Both are replaced atomically, so a reader sees
one or the other, never half. ``supervisor.lock`` is held by a living supervisor and by nothing else: the lock, not a
process id that may have been given to somebody else, says whether one lives.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ringlog.stack.errors import StackError

CHILDREN = ("broker", "redis")


def default_data_dir() -> Path:
    """``RINGLOG_STACK_DATA``, else the XDG state folder."""
    chosen = os.environ.get("RINGLOG_STACK_DATA")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "ringlog" / "stack"


@dataclass(frozen=True, slots=True)
class Layout:
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
    def own_properties(self) -> Path:
        return self.root / "broker.properties"

    @property
    def redis(self) -> Path:
        return self.root / "redis"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a stack shall be. Ports are kept over restarts; ``request`` rises each time somebody asks for a start."""

    kafka_cluster_id: str
    broker_port: int
    controller_port: int
    redis_port: int
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


def write_json(path: Path, value: object) -> None:
    """Replaces a small file in one step, durable enough to outlive the process that wrote it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_settings(layout: Layout, settings: Settings) -> None:
    """Writes down what the stack shall be."""
    write_json(layout.settings, dataclasses.asdict(settings))


def read_settings(layout: Layout) -> Settings | None:
    """The settings, None for a folder that never held a stack; raises StackError ``bad_settings`` for anything else."""
    try:
        return Settings(**json.loads(layout.settings.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise StackError(
            "bad_settings", f"{layout.settings} is not a stack's settings: {error}.", "Mend or remove it."
        ) from error


def write_state(layout: Layout, state: State) -> None:
    """The supervisor's word on how things are."""
    write_json(layout.state, dataclasses.asdict(state))


def read_state(layout: Layout) -> State | None:
    """The supervisor's last word, None when there is none or it cannot be understood (then nothing is known to run)."""
    try:
        fields = json.loads(layout.state.read_text(encoding="utf-8"))
        for name in CHILDREN:
            fields[name] = None if fields[name] is None else Child(**fields[name])
        return State(**fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
