"""What a family of commands brings into the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.sim.chance import Chance
from ringlog.sim.checks.base import Check

DrawCommand = Callable[[ClusterState, Chance], Command | None]
"""A command that an operator might ask for, seeing this state; None if there is none. Some are wrong on purpose."""


@dataclass(frozen=True, slots=True)
class Family:
    """``commands``: kind to (how often relative to others, how to draw it); those that only agents send have none."""

    name: str
    commands: Mapping[str, tuple[int, DrawCommand] | None]
    checks: tuple[type[Check], ...]
