"""Planted bugs: proof that the simulator finds what it is there to find."""

from __future__ import annotations

from ringlog.sim.mutants import cdc, log, operations, registers
from ringlog.sim.mutants.plant import Mutant

MUTANTS: tuple[Mutant, ...] = (*log.MUTANTS, *operations.MUTANTS, *cdc.MUTANTS, *registers.MUTANTS)
"""All of them, by part of the system; names are unique."""
