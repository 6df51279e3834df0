"""Searches over many seeds: the runs are spread over processes, and reports come in any order."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ringlog.kernel.values import Micros, replace
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import ALL, PROFILES, draw_script, profile_of

CHUNK = 8


def run_seed(seed: int, profile: str = "small", tracing: bool = False, histories: Path | None = None) -> RunReport:
    """Run a seed. ``profile``: may be ``ALL``, then the seed's own.

    ``histories``: a folder for its history, as ``<profile>-<seed>.jsonl``. Raises OSError.
    """
    profile = profile_of(seed) if profile == ALL else profile
    report = run_script(draw_script(seed, PROFILES[profile]), tracing, recording=histories is not None)
    if not gc.isenabled():
        _collect(report.events)
    if histories is not None:
        (histories / f"{profile}-{seed}.jsonl").write_text("".join(f"{line}\n" for line in report.history))
        report = replace(report, history=())
    return report


@dataclass(slots=True)
class SearchResult:
    """The results of a search so far. ``cpu_s``: processor seconds of all runs."""

    runs: int = 0
    events: int = 0
    entries: int = 0
    virtual: Micros = 0
    cpu_s: float = 0.0
    did: Counter[tuple[str, ...]] = field(default_factory=Counter)
    failures: list[RunReport] = field(default_factory=list)

    def add(self, report: RunReport) -> None:
        """Add one run."""
        self.runs += 1
        self.events += report.events
        self.entries += report.entries
        self.virtual += report.virtual
        self.cpu_s += report.seconds
        self.did.update(report.did)
        if report.rule:
            self.failures.append(report)


Chunk = tuple[tuple[int, ...], str, Path | None]


COLLECTED_EVERY = 1_200_000
"""Number of events between two garbage collections."""
_uncollected = 0


def _collect(events: int) -> None:
    global _uncollected
    _uncollected += events
    if _uncollected >= COLLECTED_EVERY:
        _uncollected = 0
        gc.collect()


def prepare() -> None:
    """Prepare a process that only does runs: collect garbage only between runs, which saves a sixth of the time."""
    gc.freeze()
    gc.disable()


def prepare_worker() -> None:
    """Prepare a process of a pool. It ignores interrupts, because its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()


def _chunk(work: Chunk) -> list[RunReport]:
    seeds, profile, histories = work
    return [run_seed(seed, profile, histories=histories) for seed in seeds]


def reports(seeds: Iterable[int], profile: str, jobs: int, histories: Path | None = None) -> Iterator[RunReport]:
    """Yield the runs of all seeds, in any order if there are several jobs. The caller may stop early."""
    if jobs == 1:
        collected = gc.isenabled()
        prepare()
        try:
            for seed in seeds:
                yield run_seed(seed, profile, histories=histories)
        finally:
            # The process belongs to the caller, who may have other work.
            gc.unfreeze()
            if collected:
                gc.enable()
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, prepare_worker) as pool:
        for chunk in pool.imap_unordered(_chunk, _chunks(seeds, profile, histories)):
            yield from chunk


def _chunks(seeds: Iterable[int], profile: str, histories: Path | None) -> Iterator[Chunk]:
    remaining = iter(seeds)
    while chunk := tuple(islice(remaining, CHUNK)):
        yield chunk, profile, histories
