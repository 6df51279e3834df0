"""What a request costs that comes before its epoch: writes at ALL while one replica's log is late by so much.

    python bench/behind.py

Three replicas in one process, over real gRPC, on a log in memory; one of them hears of each new epoch so much later
than the others and the client. It believes no sender, so it answers when its own log has brought it there: the table
has the time of a write, the same per lateness, and what of it the lateness does not explain, in times of a write
without any, all measured in one run.
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
    """Seconds of one write at an epoch that the third node hears of only after ``late_s``."""
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
