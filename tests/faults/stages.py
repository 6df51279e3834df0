"""Repeat a way of tablets or partitions until a victim was killed in each stage of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.system.registers_load import Load

from .figures import Figures


def killed_in_each(
    figures: Figures,
    load: Load,
    way: tuple[str, str],
    stages: Sequence[str],
    hit: Callable[[list[str], int], set[str]],
    most: int,
    table: str,
) -> None:
    """Repeat a way until its victim was killed in each stage, and keep the figures of that.

    ``way``: its name, and the role of the victim. ``hit`` goes the way once. Its arguments are the stages that are left
    and the number of tries before; it returns the stages in which the victim was killed. A victim that delays a stage
    is back for the next one; another victim misses some stages. ``most``: tries; ``table``: of the figures.
    """
    begin, before = time.monotonic(), (load.total(), load.timed_out())
    left, tries = list(stages), 0
    while left:
        assert tries < most, f"{way} was not hit in {left}"
        done = hit(left, tries)
        left = [stage for stage in left if stage not in done]
        tries += 1
    counts = (load.total() - before[0], load.timed_out() - before[1])
    passed = time.monotonic() - begin
    figures.add_way(*way, stages=len(stages), tries=tries, time_s=passed, counts=counts, table=table)
