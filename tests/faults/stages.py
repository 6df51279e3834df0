"""Repeat a transition of tablets or partitions until a victim was killed in each of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.system.registers_load import Load

from .cost_tables import Figures


def killed_in_each(
    figures: Figures,
    load: Load,
    way: tuple[str, str],
    stages: Sequence[str],
    hit: Callable[[list[str], int], set[str]],
    most: int,
    table: str,
) -> None:
    """Repeat a transition until its victim was killed in each stage, and record the measurements.

    Args:
        way: The name of the transition, and the role of the victim.
        hit: Runs the transition once. Its arguments are the remaining stages and the number of earlier tries; it
            returns the stages with a kill. A victim that delays a stage is back for the next stage; other victims miss
            some stages.
        most: The maximum number of tries.
        table: The table of the measurements.
    """
    begin, before = time.monotonic(), (load.total(), load.timed_out())
    left, tries = list(stages), 0
    while left:
        assert tries < most, f"{way} had no kill in {left}"
        done = hit(left, tries)
        left = [stage for stage in left if stage not in done]
        tries += 1
    counts = (load.total() - before[0], load.timed_out() - before[1])
    passed = time.monotonic() - begin
    figures.add_way(*way, stages=len(stages), tries=tries, time_s=passed, counts=counts, table=table)
