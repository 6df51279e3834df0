"""The registration of a job, where two of them begin on empty checkpoints under one name at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlog.log.memory import MemoryLog
from ringlog.log.replica import Replica
from ringlog_cdc.errors import CdcError
from ringlog_cdc.job import CdcJob, query_failed
from ringlog_cdc.plan_store import claim_checkpoint
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.writer import Writer
from tests.cdc.bench import SINK, SOURCE, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A cluster whose writer ``spark`` has just been registered, from a checkpoint of its own."""
    metadata = MemoryLog()
    with Replica(metadata) as replica:
        yield Bench(metadata, replica, tmp_path / "first")


def job(bench: Bench, folder: Path, name: str, source: str = SOURCE) -> tuple[CdcJob, Any]:
    """A job that comes to its registration, and its client."""
    nothing: Any = None
    made = CdcJob(JobSettings("", "memory", folder, writer=name), nothing)
    made.writer = Writer(bench.world.replica, bench.author.submit, name, bench.store, bench.offsets, source, SINK)
    return made, SimpleNamespace(replica=bench.world.replica)


def test_the_slower_of_two_empty_checkpoints_under_one_name_is_given_up(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    claim_checkpoint(folder, "c", "spark", 8, registered=False)
    late, client = job(bench, folder, "spark")
    with pytest.raises(CdcError) as caught:
        late._register(client, is_new=True)
    assert caught.value.code == "checkpoint_lost"
    with pytest.raises(CdcError, match="checkpoint_lost"):
        claim_checkpoint(folder, "c", "spark", 8, registered=True)


def test_a_new_name_and_a_known_checkpoint_are_registered(bench: Bench, tmp_path: Path) -> None:
    first, client = job(bench, tmp_path / "second", "other", "another.source")
    first.writer.register()
    first.writer.promises.incarnation = "0" * 32
    assert first._register(client, is_new=True) == bench.world.state.epoch
    again, client = job(bench, tmp_path / "first", "spark")
    assert again._register(client, is_new=False) == bench.world.state.epoch


def test_a_batch_that_spark_gave_up_is_told_in_one_line() -> None:
    trace = "An error occurred\n: org.Some: Job aborted\n\tat a.b\nCaused by: one\n\tat c\nCaused by: two\n"
    assert query_failed(RuntimeError(trace)).message == "two"
    assert query_failed(RuntimeError("\nonly this\nand that")).message == "only this"
    assert query_failed(RuntimeError()).message == "RuntimeError"
    assert query_failed(RuntimeError()).code == "query_failed"
