"""Checks, and the families of commands that add them to the simulator.

A check belongs to one run. It keeps its own model, simple and independent of the code under test, and calls
``self.sim.broken(rule, detail)`` when the run and the model differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Value
from ringlog_sim.devices.listener import RunListener
from ringlog_sim.devices.world import Chance
from ringlog_sim.simulation import Simulation

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode


class Check(RunListener):
    """A check of one run. ``rule`` in docs and mutant tables is the class's name."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def node(self, node: str) -> SimNode:
        """Return the simulated node with this id."""
        found: SimNode = self.sim.shared["nodes"][node]
        return found


DrawCommand = Callable[[ClusterState, Chance], Command | None]
"""A command that an operator might request in this state, or None. Some are wrong on purpose."""


class Family(Value):
    """``commands``: kind to (relative weight, function that draws it), None for kinds that only agents send."""

    name: str
    commands: Mapping[str, tuple[int, DrawCommand] | None]
    checks: tuple[type[Check], ...]
