"""Plans of batches and registrations of jobs on a log in memory: lost parts, and two jobs under one name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.model.state import Generation
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog_cdc.driver.job import SIGNALLED, query_failed
from ringlog_cdc.driver.program import StopSignal, run_jobs
from ringlog_cdc.errors import CdcError, ChainBroken, PartitionsAdded
from ringlog_cdc.plan.store import CLAIM, PlanStore, claim_checkpoint, give_up_claim
from ringlog_cdc.protocol.batch import CheckCheckpoint, ClaimCheckpoint, GiveUpClaim, WriteRows, start
from tests.cdc.bench import HOUR_US, SINK, SOURCE, Bench, BenchWriter
from tests.refusals import raises_code
from tests.system.cdc_world import now_us


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a batch runner on a separate checkpoint."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        yield Bench(metadata, replica, tmp_path)


def test_a_generation_committed_during_the_scan_is_in_the_plan(bench: Bench) -> None:
    """The lease is lowered, the generation committed below the rows, and the lease raised above the rows again."""
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


def test_a_table_created_during_the_scan_is_in_the_plan(bench: Bench) -> None:
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


def test_a_sealed_generation_gets_no_rows_from_a_stale_chain(bench: Bench) -> None:
    second = bench.world.join("n2", (1000,), now_us() - HOUR_US // 2)
    first = bench.world.state.generations[0].id
    bench.writer.advance(bench.raise_horizon(), second.timestamp)
    bench.world.apply(CloseCdcGeneration(first))
    assert bench.store.head.closed == ()
    bench.settle()
    entry = bench.plan(lambda: now_us() - HOUR_US)
    assert entry.closed == (first,)


def run(bench: Bench, batch: int) -> None:
    """Run a batch without rows."""
    bench.runner.driver.handlers[WriteRows] = lambda _: ()
    nothing: Any = None
    bench.runner(nothing, batch)


def test_a_replayed_batch_follows_its_plans(bench: Bench) -> None:
    bench.raise_horizon()
    for batch, end in ((0, 10), (1, 25), (1, 25), (2, 26)):
        bench.spark_says(batch, end)
        run(bench, batch)
    assert dict(bench.store.head.positions) == {0: 26}
    assert bench.store.head.sequence == 2


def test_a_lost_spark_folder_is_detected_by_another_batch_end(bench: Bench) -> None:
    bench.stored(0, 0, 1_000)
    bench.spark_says(0, 10_000)
    with pytest.raises(ChainBroken, match="do not belong together"):
        run(bench, 0)


def test_a_lost_spark_folder_is_detected_after_pruning(bench: Bench) -> None:
    bench.stored(7, 0, 1_000)
    bench.spark_says(0, 10_000)
    with pytest.raises(ChainBroken, match="the beginning"):
        run(bench, 0)


def test_lost_plans_are_not_repeated(bench: Bench) -> None:
    bench.raise_horizon()
    bench.spark_says(6, 6_000)
    bench.spark_says(7, 7_000)
    with pytest.raises(ChainBroken, match="do not belong together"):
        run(bench, 7)
    bench.stored(5, 0, 5_000)
    with pytest.raises(ChainBroken, match="do not belong together"):
        run(bench, 7)


def test_a_lost_executed_plan_is_detected(bench: Bench) -> None:
    bench.stored(0, 0, 10)
    (bench.folder / "plans" / "000000000000.json").unlink()
    with pytest.raises(ChainBroken, match="was completed"):
        PlanStore(bench.folder)


@pytest.fixture
def job_bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a cluster whose writer ``spark`` is registered from another checkpoint."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        yield Bench(metadata, replica, tmp_path / "first")


def started(
    job_bench: Bench, folder: Path, name: str, source: str, meanwhile: Callable[[], object] = lambda: None
) -> int:
    """Return the registration epoch of a job on a checkpoint; ``meanwhile`` runs when it has claimed the
    checkpoint.
    """
    writer = other(job_bench, name, source)

    def claim(effect: ClaimCheckpoint) -> bool:
        is_new = claim_checkpoint(folder, "c", name, 8, effect.is_lost)
        meanwhile()
        return is_new

    writer.driver.handlers |= {
        ClaimCheckpoint: claim,
        CheckCheckpoint: lambda _: False,
        GiveUpClaim: lambda _: give_up_claim(folder),
    }
    return writer.run_steps(start(writer.promises), threading.Event())


def other(job_bench: Bench, name: str, source: str) -> BenchWriter:
    """Return a writer that is not registered yet."""
    return BenchWriter(job_bench.world.replica, job_bench.author.submit, name, job_bench.store, source, SINK)


def test_the_slower_of_two_empty_checkpoints_is_refused(job_bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    with raises_code(CdcError, "checkpoint_lost"):
        started(job_bench, folder, "new", "another", other(job_bench, "new", "another").register)
    assert not (folder / CLAIM).exists()


def test_a_source_taken_by_another_name_leaves_the_checkpoint_unclaimed(job_bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    with raises_code(CdcError, "source_in_use"):
        started(job_bench, folder, "new", "another", other(job_bench, "newer", "another").register)
    assert not (folder / CLAIM).exists()
    with raises_code(CdcError, "source_in_use"):
        started(job_bench, folder, "new", SOURCE)


def test_a_new_name_and_a_known_checkpoint_are_registered(job_bench: Bench, tmp_path: Path) -> None:
    assert started(job_bench, tmp_path / "second", "other", "another.source") == job_bench.world.state.epoch
    claim_checkpoint(tmp_path / "first", "c", "spark", 8, registered=False)
    assert started(job_bench, tmp_path / "first", "spark", SOURCE) == job_bench.world.state.epoch


def test_a_failed_batch_is_reported_in_one_line() -> None:
    trace = "An error occurred\n: org.Some: Job aborted\n\tat a.b\nCaused by: one\n\tat c\nCaused by: two\n"
    assert query_failed(RuntimeError(trace)).message == "two"
    assert query_failed(RuntimeError("\nonly this\nand that")).message == "only this"
    assert query_failed(RuntimeError()).message == "RuntimeError"
    assert query_failed(RuntimeError()).code == "query_failed"


class ScriptedJob:
    """A job with scripted ends; a real job needs Spark."""

    def __init__(self, ends: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        self.reasons: list[str] = []
        self.report_stopping = self.reasons.append
        self.start = lambda: None
        self.wait = ends
        self.stop = self.stopping.set


def test_added_source_partitions_restart_the_job_until_a_signal() -> None:
    signal, made = StopSignal(), list[ScriptedJob]()

    def grows() -> None:
        raise PartitionsAdded("shop.mutations", 9)

    def stopped() -> None:
        signal.set()
        assert made[-1].stopping.is_set()

    def make() -> Any:
        made.append(ScriptedJob(grows if len(made) < 2 else stopped))
        return made[-1]

    run_jobs(make, signal)
    assert [reason.partition(":")[0] for job in made for reason in job.reasons] == [
        "partitions_added",
        "partitions_added",
        SIGNALLED,
    ]

    def grows_and_signals() -> None:
        signal.set()
        grows()

    signal, made = StopSignal(), []
    made.append(ScriptedJob(stopped))
    scripted: Iterator[Any] = iter([ScriptedJob(grows_and_signals), made[0]])
    run_jobs(lambda: next(scripted), signal)
    assert not made[0].stopping.is_set(), "it does not start"
