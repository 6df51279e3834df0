"""A driver with a lake is killed repeatedly at any moment and loses its checkpoint in between."""

from __future__ import annotations

import json
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.operator.fencing import fence
from ringlog.runtime.context import ClusterContext
from tests.ending import taking_down
from tests.plain_stack import plain_stack
from tests.system.cdc_world import World, founded_shop, until
from tests.system.test_cdc_kill import alive, driver
from tests.system.test_cdc_lake import rows_in, rows_of_topic, some

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = 6
LOST_IN = (1, 3)
WRITES = 1_000
LONGEST_S = 12.0
BEGUN = ("filling", "started", "started", "batch", "batch")
"""The progress lines after which a driver is killed."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[World]:
    own = plain_stack(tmp_path / "stack")
    with taking_down(own), founded_shop(own.up("quick").bootstrap_servers, "lake") as world:
        world.table("carts")
        yield world


def events(checkpoint: Path) -> Counter[str]:
    """Return the progress lines by kind."""
    path = checkpoint / "progress.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(json.loads(line)["event"] for line in lines if line.endswith("}"))


def kill(shop: World, checkpoint: Path, lake: Path, begun: str, pause_s: float) -> None:
    """Start a driver and kill it a given time after its line ``begun``."""
    seen = events(checkpoint)[begun]
    with driver(shop, checkpoint, "--lake", str(lake)) as process:
        until(lambda: events(checkpoint)[begun] > seen, begun, lambda: alive(process, checkpoint))
        # The kill is timed by the clock on purpose: it hits any moment of the first batches.
        threading.Event().wait(pause_s)
        alive(process, checkpoint)
        process.send_signal(signal.SIGKILL)


def test_kills_and_lost_checkpoints_leave_each_row_once(shop: World, spark: object, tmp_path: Path) -> None:
    draw = random.Random(20_261_121)
    lake, context = tmp_path / "lake", ClusterContext(shop.bootstrap, shop.cluster, "")
    checkpoint = tmp_path / "checkpoint-0"
    for number in range(ROUNDS):
        shop.send(some(number * WRITES, (number + 1) * WRITES))
        begun = draw.choice(BEGUN[1:] if (checkpoint / "lake.filled").exists() else BEGUN)
        kill(shop, checkpoint, lake, begun, draw.uniform(0.0, LONGEST_S))
        writer = shop.state.writers.get("spark")
        if number in LOST_IN and writer is not None:
            shutil.rmtree(checkpoint)
            checkpoint = tmp_path / f"checkpoint-{number}"
            if writer.fenced is None:
                shop.apply(fence(context, writer, "lost", None, "", "the test has killed it"))
    with driver(shop, checkpoint, "--lake", str(lake), "--stop-when-idle") as process:
        assert process.wait(300) == 0, (checkpoint / "output").read_text()[-3000:]
    rows = rows_of_topic(shop)
    assert {row[:2] for row in rows} == {(item.partition, item.offset) for item in shop.read("mutations")}
    assert len(rows) == ROUNDS * WRITES
    assert rows_in(spark, lake, "orders", "carts") == Counter(rows.keys())  # type: ignore[arg-type]
