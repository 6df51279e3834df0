"""Checks, and the families of commands that bring them into the simulator.

A check belongs to one run. It keeps its own model, simple and independent of the code under test, and calls
``self.sim.broken(rule, detail)`` when the run and the model differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command
from ringlog_sim.devices.listener import RunListener
from ringlog_sim.devices.world import Chance
from ringlog_sim.simulation import Simulation

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode


class Check(RunListener):
    """``rule`` in docs and mutant tables is the class's name."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def node(self, node: str) -> SimNode:
        """The simulated node of this id."""
        found: SimNode = self.sim.shared["nodes"][node]
        return found


DrawCommand = Callable[[ClusterState, Chance], Command | None]
"""A command that an operator might ask for, seeing this state; None if there is none. Some are wrong on purpose."""


@dataclass(frozen=True, slots=True)
class Family:
    """``commands``: kind to (how often relative to others, how to draw it); those that only agents send have none."""

    name: str
    commands: Mapping[str, tuple[int, DrawCommand] | None]
    checks: tuple[type[Check], ...]
