"""What a check is.

A check belongs to one run. It keeps a model of its own, simple and independent of the code that it checks, and calls
``self.sim.broken(rule, detail)`` when what it hears and the model differ.
"""

from __future__ import annotations

from ringlog.sim.hearer import Hearer
from ringlog.sim.simulation import Simulation


class Check(Hearer):
    """``rule`` in docs and mutant tables is the class's name."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
