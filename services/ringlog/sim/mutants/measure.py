"""Within how many seeds each planted bug is found."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringlog.sim.mutants.plant import Mutant, planted
from ringlog.sim.run import RunReport
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
    """Run seeds until one fails by something else than too little happening, and does not fail without the bug."""
    seeds = iter(range(FIRST_SEED, FIRST_SEED + mutant.seeds))
    while (report := _first_failure(mutant, seeds)) is not None:
        if not run_seed(report.seed, mutant.profile).rule:
            return MutantMeasure(mutant, report.seed - FIRST_SEED + 1, report.seed, report.rule, report.detail)
    return MutantMeasure(mutant, None, 0, "", "")


def _first_failure(mutant: Mutant, seeds: Iterator[int]) -> RunReport | None:
    with planted(mutant):
        reports = (run_seed(seed, mutant.profile) for seed in seeds)
        return next((report for report in reports if report.rule not in ("", "too_little")), None)


def measure_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[MutantMeasure]:
    """All of them, as they are found."""
    if jobs == 1:
        yield from map(measure, mutants)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, prepare_worker, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(measure, mutants)
