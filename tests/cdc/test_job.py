"""The registration of a job, where two of them begin on empty checkpoints under one name at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog_cdc.driver.job import StopSignal, query_failed, run_jobs
from ringlog_cdc.errors import CdcError, PartitionsAdded
from ringlog_cdc.plan.store import CLAIM, claim_checkpoint, give_up_claim
from ringlog_cdc.protocol.batch import CheckCheckpoint, ClaimCheckpoint, GiveUpClaim, start
from tests.cdc.bench import SINK, SOURCE, Bench, BenchWriter
from tests.refusals import raises_code


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A cluster whose writer ``spark`` has just been registered, from a checkpoint of its own."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        yield Bench(metadata, replica, tmp_path / "first")


def started(bench: Bench, folder: Path, name: str, source: str, meanwhile: Callable[[], object] = lambda: None) -> int:
    """The epoch at which a job has registered that starts on a checkpoint; ``meanwhile``: when it has claimed it."""
    writer = other(bench, name, source)

    def claim(effect: ClaimCheckpoint) -> bool:
        is_new = claim_checkpoint(folder, "c", name, 8, effect.is_lost)
        meanwhile()
        return is_new

    writer.driver.handlers |= {
        ClaimCheckpoint: claim,
        CheckCheckpoint: lambda _: False,
        GiveUpClaim: lambda _: give_up_claim(folder),
    }
    return writer.carry_out(start(writer.promises), threading.Event())


def other(bench: Bench, name: str, source: str) -> BenchWriter:
    """A writer that is not registered yet."""
    return BenchWriter(bench.world.replica, bench.author.submit, name, bench.store, source, SINK)


def test_the_slower_of_two_empty_checkpoints_under_one_name_is_given_up(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    with raises_code(CdcError, "checkpoint_lost"):
        started(bench, folder, "new", "another", other(bench, "new", "another").register)
    assert not (folder / CLAIM).exists()


def test_a_source_taken_by_another_name_leaves_the_checkpoint_unclaimed(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    with raises_code(CdcError, "source_in_use"):
        started(bench, folder, "new", "another", other(bench, "newer", "another").register)
    assert not (folder / CLAIM).exists()
    with raises_code(CdcError, "source_in_use"):
        started(bench, folder, "new", SOURCE)


def test_a_new_name_and_a_known_checkpoint_are_registered(bench: Bench, tmp_path: Path) -> None:
    assert started(bench, tmp_path / "second", "other", "another.source") == bench.world.state.epoch
    claim_checkpoint(tmp_path / "first", "c", "spark", 8, registered=False)
    assert started(bench, tmp_path / "first", "spark", SOURCE) == bench.world.state.epoch


def test_a_batch_that_spark_gave_up_is_told_in_one_line() -> None:
    trace = "An error occurred\n: org.Some: Job aborted\n\tat a.b\nCaused by: one\n\tat c\nCaused by: two\n"
    assert query_failed(RuntimeError(trace)).message == "two"
    assert query_failed(RuntimeError("\nonly this\nand that")).message == "only this"
    assert query_failed(RuntimeError()).message == "RuntimeError"
    assert query_failed(RuntimeError()).code == "query_failed"


class ScriptedJob:
    """A job that ends as given. A real one needs Spark."""

    def __init__(self, ends: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        self.start = lambda: None
        self.wait = ends
        self.stop = self.stopping.set


def test_a_job_follows_one_whose_source_got_partitions_until_a_signal() -> None:
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
    assert len(made) == 3

    def grows_and_signals() -> None:
        signal.set()
        grows()

    signal, made = StopSignal(), []
    made.append(ScriptedJob(stopped))
    scripted: Iterator[Any] = iter([ScriptedJob(grows_and_signals), made[0]])
    run_jobs(lambda: next(scripted), signal)
    assert not made[0].stopping.is_set(), "it does not start"
