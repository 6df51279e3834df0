"""Plans of batches against a log in memory: whose knowledge they hold, and checkpoints that have lost a part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.model.state import Generation
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.plan.store import PlanStore
from ringlog_cdc.protocol.batch import WriteRows
from tests.cdc.bench import HOUR_US, Bench
from tests.system.cdc_world import now_us


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A runner of batches on a checkpoint of its own."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        yield Bench(metadata, replica, tmp_path)


def test_a_generation_committed_while_the_rows_are_looked_at_is_in_the_plan(bench: Bench) -> None:
    """The horizon was lowered, the generation committed below the rows, and the horizon raised above them again."""
    bench.raise_horizon()
    late = now_us() + 5_000_000
    committed: list[Generation] = []

    def look() -> int:
        if not committed:
            bench.world.begin_join("n2", (1000,))
            bench.world.prepare_generation()
            bench.writer.step()
            lowered = bench.world.state.writers["spark"].horizon
            assert lowered < late
            committed.append(bench.world.commit_generation(max(now_us() + 2_000_000, lowered + 1)))
            bench.settle()
            bench.writer.need()
            bench.writer.step()
        return late

    entry = bench.plan(look)
    assert entry.used == late >= committed[0].timestamp
    known = [name for name, _ in bench.store.context(entry.context)["generations"]]
    assert committed[0].id in known


def test_a_table_made_while_the_rows_are_looked_at_is_in_the_plan(bench: Bench) -> None:
    bench.raise_horizon()
    bench.settle()
    looks: list[None] = []

    def look() -> int:
        looks.append(None)
        if len(looks) == 1:
            bench.world.schema()
        return now_us() - 1_000_000

    entry = bench.plan(look)
    assert len(looks) == 2
    assert set(bench.store.context(entry.context)["tables"]) == {"shop.orders", "shop.quiet"}
    assert entry.epoch == bench.world.state.epoch


def test_a_generation_that_the_log_has_closed_takes_no_rows_whatever_the_own_chain_says(bench: Bench) -> None:
    second = bench.world.join("n2", (1000,), now_us() - HOUR_US // 2)
    first = bench.world.state.generations[0].id
    bench.writer.advance(bench.raise_horizon(), second.timestamp)
    bench.world.apply(CloseCdcGeneration(first))
    assert bench.store.head.closed == ()
    bench.settle()
    entry = bench.plan(lambda: now_us() - HOUR_US)
    assert entry.closed == (first,)


def run(bench: Bench, batch: int) -> None:
    """Run a batch of which no row is written."""
    bench.runner.driver.handlers[WriteRows] = lambda _: ()
    nothing: Any = None
    bench.runner(nothing, batch)


def test_batches_follow_each_other_and_a_replayed_one_its_plans(bench: Bench) -> None:
    bench.raise_horizon()
    for batch, end in ((0, 10), (1, 25), (1, 25), (2, 26)):
        bench.spark_says(batch, end)
        run(bench, batch)
    assert dict(bench.store.head.positions) == {0: 26}
    assert bench.store.head.sequence == 2


def test_a_lost_folder_of_spark_is_noticed_by_a_batch_that_ends_elsewhere(bench: Bench) -> None:
    bench.stored(0, 0, 1_000)
    bench.spark_says(0, 10_000)
    with pytest.raises(ChainBroken, match="do not belong together"):
        run(bench, 0)


def test_a_lost_folder_of_spark_is_noticed_when_the_plans_of_its_batch_were_pruned(bench: Bench) -> None:
    bench.stored(7, 0, 1_000)
    bench.spark_says(0, 10_000)
    with pytest.raises(ChainBroken, match="the beginning"):
        run(bench, 0)


def test_lost_plans_are_not_made_a_second_time(bench: Bench) -> None:
    bench.raise_horizon()
    bench.spark_says(6, 6_000)
    bench.spark_says(7, 7_000)
    with pytest.raises(ChainBroken, match="do not belong together"):
        run(bench, 7)
    bench.stored(5, 0, 5_000)
    with pytest.raises(ChainBroken, match="do not belong together"):
        run(bench, 7)


def test_a_lost_plan_that_was_carried_out_is_noticed(bench: Bench) -> None:
    bench.stored(0, 0, 10)
    (bench.folder / "plans" / "000000000000.json").unlink()
    with pytest.raises(ChainBroken, match="carried out"):
        PlanStore(bench.folder)
