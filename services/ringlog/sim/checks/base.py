"""What a check is.

A check belongs to one run. It keeps a model of its own, simple and independent of the code that it checks, and calls
``self.sim.broken(rule, detail)`` when what it hears and the model differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.sim.hearer import Hearer
from ringlog.sim.simulation import Simulation

if TYPE_CHECKING:
    from ringlog.sim.actors.node import SimNode


class Check(Hearer):
    """``rule`` in docs and mutant tables is the class's name."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def node(self, node: str) -> SimNode:
        """The simulated node of this id."""
        found: SimNode = self.sim.shared["nodes"][node]
        return found
