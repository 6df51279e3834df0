"""Within how many seeds each planted bug is found."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringlog.sim.mutants.plant import Mutant, planted
from ringlog.sim.search import prepare_worker, run_seed

FIRST_SEED = 1


@dataclass(frozen=True, slots=True)
class MutantMeasure:
    """``found``: after how many seeds, None if not within the mutant's bound; ``rule``: what was broken."""

    mutant: Mutant
    found: int | None
    seed: int
    rule: str
    detail: str


def measure(mutant: Mutant) -> MutantMeasure:
    """Run seeds until one fails by something else than too little happening."""
    with planted(mutant):
        for number, seed in enumerate(range(FIRST_SEED, FIRST_SEED + mutant.seeds), start=1):
            report = run_seed(seed, mutant.profile)
            if report.rule and report.rule != "too_little":
                return MutantMeasure(mutant, number, seed, report.rule, report.detail)
    return MutantMeasure(mutant, None, 0, "", "")


def measure_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[MutantMeasure]:
    """All of them, as they are found."""
    if jobs == 1:
        yield from map(measure, mutants)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, prepare_worker, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(measure, mutants)
