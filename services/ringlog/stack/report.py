"""What the stack says about itself: values for programs, and for the command's JSON."""

from __future__ import annotations

from dataclasses import dataclass

PROFILES: dict[str, float] = {"default": 10.0, "quick": 2.0}
"""Profile name -> session time-out in seconds for consumer groups: how long a killed worker's share stays with it.

The broker allows both; a profile is advice that every worker started on the stack takes. ``quick`` is for tests."""


@dataclass(frozen=True, slots=True)
class StackInfo:
    """A stack that takes work now."""

    bootstrap_servers: str
    redis_url: str
    data_dir: str
    supervisor_pid: int
    broker_pid: int
    redis_pid: int
    profile: str
    session_timeout_s: float


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
