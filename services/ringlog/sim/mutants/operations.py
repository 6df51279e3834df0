"""Bugs in range movements and in nodes."""

from __future__ import annotations

from ringlog.sim.mutants.plant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
