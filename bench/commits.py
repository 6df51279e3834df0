"""What a commit costs, against one acknowledged record of the same broker in the same run.

    python bench/commits.py [--json]

Starts a broker and a validator of its own, and commits entries that change nothing: one after the other through the
validator, and directly; with 64 under way; 500 at once. Before, between and after, one record after the other is sent
to a topic of one partition by a producer with the same settings, since machines change: each figure is compared with
all of these. Commits do more than that record: a request goes to the validator, its entry to the log, both are read.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.system.agents_world import AgentsWorld

from ringlog.kernel.commands.cluster import Noop
from ringlog.log.producer import AckedProducer
from ringlog.stack import Stack

WARM, SEQUENTIAL, OUTSTANDING, MANY, ROUNDS = 300, 1_500, 64, 500, 6
PLAIN = "one record of the broker"
CLUSTER = "commits"


def times(act: Callable[[], object], count: int) -> list[float]:
    """Seconds that each of ``count`` acts took."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return found


def keeping(submit: Callable[[], Future[Any]], count: int) -> float:
    """Commits a second while ``OUTSTANDING`` are under way."""
    under_way = [submit() for _ in range(OUTSTANDING)]
    began = time.perf_counter()
    for at in range(count):
        under_way[at % OUTSTANDING].result()
        under_way[at % OUTSTANDING] = submit()
    rate = count / (time.perf_counter() - began)
    for future in under_way:
        future.result()
    return rate


def percentile(found: list[float], part: int) -> float:
    """In milliseconds."""
    return statistics.quantiles(found, n=100)[part - 1] * 1_000


def measured(folder: Path) -> dict[str, float]:
    """Milliseconds and rates by name."""
    stack = Stack(folder / "stack")
    world, plain = None, None
    try:
        info = stack.up()
        world = AgentsWorld(info, CLUSTER, folder / "agents")
        world.start("validator")
        client, producer = world.client, AckedProducer(info.bootstrap_servers)
        plain = producer
        for act in (lambda: client.submit(Noop()), lambda: client.direct.submit(Noop())):
            times(act, WARM)
        record, alone = b"x" * 200, []

        def send() -> object:
            return producer.send(f"{CLUSTER}.acks", record, key=b"k", partition=0).result(10)

        times(send, WARM)
        alone += times(send, SEQUENTIAL // 3)
        through = times(lambda: client.submit(Noop()), SEQUENTIAL)
        alone += times(send, SEQUENTIAL // 3)
        direct = times(lambda: client.direct.submit(Noop()), SEQUENTIAL)
        alone += times(send, SEQUENTIAL // 3)
        found = {f"{PLAIN} p50": percentile(alone, 50), f"{PLAIN} p99": percentile(alone, 99)}
        found |= {
            "through the validator p50": percentile(through, 50),
            "through the validator p99": percentile(through, 99),
        }
        found |= {"directly p50": percentile(direct, 50), "directly p99": percentile(direct, 99)}
        found["64 under way, a second"] = keeping(lambda: client.submit_future(Noop()), 2 * SEQUENTIAL)
        many = times(lambda: client.submit_many([Noop()] * MANY), ROUNDS)
        found["500 at once, a second"] = MANY / statistics.median(many)
        return found
    finally:
        if plain is not None:
            plain.close()
        if world is not None:
            world.close()
        stack.down()


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="ringlog-bench-") as folder:
        found = measured(Path(folder))
    for name, value in found.items():
        unit = "" if "a second" in name else " ms"
        print(f"{name:32} {value:9,.2f}{unit}")
    ratios = {name: value / found[f"{PLAIN} p50"] for name, value in found.items() if name.endswith("p50")}
    for name, ratio in ratios.items():
        print(f"{name:32} {ratio:9.2f} x one record")
    if "--json" in sys.argv:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
