"""Thousands of random runs of operations against the model.

``RINGLOG_MOVEMENTS`` increases the number of runs. ``RINGLOG_MOVEMENTS_SEED`` selects the first seed. A failure names
the seed of its run.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.kernel.movements.run import Run

RUNS = int(os.environ.get("RINGLOG_MOVEMENTS", "600"))
FIRST = int(os.environ.get("RINGLOG_MOVEMENTS_SEED", "0"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_random_movements_agree_with_the_model(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST + part, FIRST + RUNS, PARTS):
        run = Run(seed)
        try:
            run.go(steps=12)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        counts.update(run.counts)
    print(sorted(counts.items()))
    assert all(
        counts[kind]
        for kind in ("join", "leave", "move", "replace", "remove", "rebuild", "alter", "cancelled", "tried again")
    )
