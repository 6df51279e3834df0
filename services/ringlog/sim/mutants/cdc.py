"""Bugs in CDC generations and their writers."""

from __future__ import annotations

from ringlog.sim.mutants.plant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
