"""A hot partition key: its backlog is its own. The others are up to date after as many batches as they need alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.ending import stopping
from tests.system.cdc_world import PARTITIONS, Found, World, until, write
from tests.system.test_cdc_job import start

from ringlog.kernel.ring.murmur3 import compose
from ringlog.wire.records import mutation_key, mutation_partition
from ringlog_cdc.plan.plan import PlanEntry, decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

HOT, OTHERS = 3_600, 400
SHARE = 60


def partition_of(key: str) -> int:
    """The source partition of a customer."""
    return mutation_partition(mutation_key("shop", "orders", compose([key.encode()])), PARTITIONS)


def plans(checkpoint: Path) -> list[PlanEntry]:
    """The chain so far."""
    return [decode(path.read_bytes()) for path in sorted((checkpoint / "plans").glob("[0-9]*.json"))]


def ends_of(found: list[Found]) -> dict[int, int]:
    """Source partition to its end."""
    return dict(Counter(item.partition for item in found))


def test_a_hot_key_delays_no_others(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    hot = partition_of("hot")
    cold = [key for key in (f"customer-{number}" for number in range(200)) if partition_of(key) != hot]
    shop.send(write(cold[number % len(cold)], number) for number in range(OTHERS))
    shop.send(write("hot", number) for number in range(HOT))
    waiting = ends_of(shop.read("mutations"))
    needed = -(-max(count for partition, count in waiting.items() if partition != hot) // SHARE)

    with stopping(start(shop, tmp_path, spark, max_offsets_per_trigger=SHARE * PARTITIONS)) as job:
        until(lambda: job.runner.last_batch >= needed - 1, "the batches that the others need", job.writer.check)
        check_others_are_through(tmp_path, needed - 1, waiting, hot)
        # And while the backlog goes on: what comes for the others is in one of the next two batches.
        shop.send(write(key, 10_000) for key in cold[:SHARE])
        last = job.runner.last_batch
        now = ends_of(shop.read("mutations"))
        until(lambda: job.runner.last_batch >= last + 2, "two batches more", job.writer.check)
        check_others_are_through(tmp_path, last + 2, now, hot)
    check_rows(shop)


def check_others_are_through(checkpoint: Path, batch: int, ends: dict[int, int], hot: int) -> None:
    """After this batch all other partitions were planned to these ends, and the hot one was not."""
    positions = dict([entry for entry in plans(checkpoint) if entry.batch == batch][-1].positions)
    assert {partition: offset for partition, offset in positions.items() if partition != hot} == {
        partition: end for partition, end in ends.items() if partition != hot
    }
    assert positions[hot] < ends[hot]


def check_rows(world: World) -> None:
    """What went out is each source partition's beginning, once."""
    offsets: dict[int, list[int]] = {}
    for row in world.rows():
        offsets.setdefault(row.source_partition, []).append(row.source_offset)
    assert all(sorted(found) == list(range(len(found))) for found in offsets.values())
