"""The number of simulated clusters per second on one core, and the speed of the core in other work.

    python bench/simulator.py [RUNS]

Prints, for each profile, runs and events per second of processor time. It also prints the cost of a run as a multiple
of two other costs: folding a prepared log of 37 entries, and a plain loop of a million additions. Both are measured
before and after in the same process. The multiples compare machines and releases; the seconds depend on the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog_sim.prefix import prefix_of
from ringlog_sim.runner.search import prepare, run_seed
from ringlog_sim.shape import ClusterShape

RUNS = {"small": 200, "medium": 20, "large": 3}
SHAPE = ClusterShape(3, 0, 2, 2, 10_000, old=False)


def main() -> None:
    """Measure and print."""
    prepare()
    share = int(sys.argv[1]) / RUNS["small"] if len(sys.argv) > 1 else 1.0
    items = prefix_of(SHAPE).items

    def folding() -> None:
        state = EMPTY_STATE
        for item in items:
            state = fold(state, item).state

    print(f"{'profile':8} {'runs':>5} {'runs/s':>8} {'events/s':>10} {'x folding':>10} {'x loop':>8}")
    for profile, runs in RUNS.items():
        runs = max(round(runs * share), 1)
        run_seed(1, profile)
        fold_s, loop_s = _cost(folding, 20), _cost(_loop, 1)
        began = time.process_time()
        events = sum(run_seed(seed, profile).events for seed in range(1, runs + 1))
        run_s = (time.process_time() - began) / runs
        fold_s, loop_s = (fold_s + _cost(folding, 20)) / 2, (loop_s + _cost(_loop, 1)) / 2
        per_s = events / runs / run_s
        print(f"{profile:8} {runs:5} {1 / run_s:8.1f} {per_s:10,.0f} {run_s / fold_s:10.1f} {run_s / loop_s:8.2f}")


def _loop() -> None:
    total = 0
    for number in range(1_000_000):
        total += number & 7


def _cost(work: Callable[[], None], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


if __name__ == "__main__":
    main()
