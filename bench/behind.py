"""The cost of a request that arrives before its epoch: writes at ALL while the log of one replica is late.

    python bench/behind.py

Three replicas run in one process, with real gRPC and a log in memory. One of them receives each new epoch later than
the other two and the client. A replica ignores log positions in requests, so it answers when its own log has the epoch.
The table has, for each delay, the time of a write and the part that the delay does not explain, as a multiple of a
write without a delay. All figures are from one run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.node.data_world import DataWorld

from ringlog.client.data.plans import Level
from ringlog.kernel.commands.cluster.cluster import Noop

LATE_S = (0.005, 0.05, 0.15, 0.3, 0.6, 1.5)
TIMES = 8


def written(world: DataWorld, timestamp: int) -> float:
    """Seconds of one write."""
    begun = time.perf_counter()
    world.coordinator.write("ks", b"k", b"x", timestamp=timestamp, level=Level.ALL, timeout_s=20)
    return time.perf_counter() - begun


def written_ahead(world: DataWorld, timestamp: int, late_s: float) -> float:
    """Seconds of one write at an epoch that the third node receives only after ``late_s``."""
    last = world.nodes[3]
    last.is_following = False
    world.submit(Noop())

    def hear() -> None:
        last.is_following = True
        last.follow()

    timer = threading.Timer(late_s, hear)
    timer.start()
    found = written(world, timestamp)
    timer.join()
    return found


def measure(folder: Path) -> None:
    """Print the table."""
    world = DataWorld(folder, factor=3)
    try:
        for number in (1, 2, 3):
            world.join(number, -(2**62) + number * 2**61)
        in_step = statistics.median(written(world, number) for number in range(1, 50))
        print(f"in step: {1e3 * in_step:.1f} ms")
        print("| late by | a write | per lateness | beyond it, in writes |")
        print("|---|---|---|---|")
        for place, late_s in enumerate(LATE_S, start=1):
            found = statistics.median(written_ahead(world, 100 * place + n, late_s) for n in range(TIMES))
            beyond = (found - late_s) / in_step
            print(f"| {1e3 * late_s:.0f} ms | {1e3 * found:.0f} ms | {found / late_s:.2f} | {beyond:.1f} |")
    finally:
        world.close()


def main() -> None:
    """Measure in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


if __name__ == "__main__":
    main()
