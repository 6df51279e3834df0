"""Two writers on one log, real ones in memory: a switch, a close, a fence, and a name that comes back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.client.founding import found
from ringlog.client.results import RejectedResult
from ringlog.kernel.commands.cdc import CloseCdcGeneration
from ringlog.kernel.commands.cdc_writers import FenceCdcWriter
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema import CreateTable
from ringlog.kernel.values import CdcOptions, Column, Position, Replication
from ringlog.log.memory import MemoryLog
from ringlog.log.replica import LogReplica
from ringlog_cdc.decisions import closed_for
from ringlog_cdc.errors import WriterReplaced
from ringlog_cdc.plan_store import PlanStore
from tests.cdc.bench import BenchWriter
from tests.cdc.test_writer import LEAD_US, Bench, until
from tests.system.cdc_world import now_us

HOUR_US = 3_600_000_000


class Place:
    """One writer's own things: name, checkpoint, offsets."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.name = bench, name
        self.store = PlanStore(bench.folder / name)

    def writer(self) -> BenchWriter:
        source, submit = f"source-{self.name}", self.bench.author.submit
        return BenchWriter(self.bench.replica, submit, self.name, self.store, source, "sink")

    @property
    def low(self) -> int:
        return self.bench.replica.read_barrier().writers[self.name].low_watermark

    @property
    def horizon(self) -> int:
        return self.bench.replica.read_barrier().writers[self.name].horizon


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A cluster with one generation that has operated for an hour, and a table with a log."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        found(metadata, replica, "memory", {"cdc_horizon_lead_us": LEAD_US})
        made = Bench(metadata, replica, tmp_path)
        made.world.join("n1", (0,), now_us() - HOUR_US)
        made.world.apply(CreateKeyspace("ks", Replication("simple", 1)))
        options = CdcOptions(enabled=True)
        made.world.apply(CreateTable("ks", "t", str(uuid.uuid4()), (Column("k", "int"),), ("k",), (), options))
        yield made


def close(bench: Bench, generation: str) -> str:
    """The code of the refusal; empty if it closed."""
    answer = bench.author.submit(CloseCdcGeneration(generation))
    return answer.code if isinstance(answer, RejectedResult) else ""


def test_a_switch_and_its_close_wait_for_both_and_a_fence_ends_the_waiting(bench: Bench) -> None:
    spark, flink = Place(bench, "spark"), Place(bench, "flink")
    writers = [spark.writer(), flink.writer()]
    for writer in writers:
        writer.register()
        writer.start()
    try:
        high = min(bench.await_extension(place.name) for place in (spark, flink))
        operation = bench.world.begin_join("n2", (77,))
        bench.world.prepare_generation()
        until(lambda: max(spark.horizon, flink.horizon) < high, "both to lower their horizons")
        first = bench.replica.state.generations[0].id
        second = bench.world.commit_generation(max(spark.horizon, flink.horizon) + 1)
        bench.world.finish(operation)
        writers[0].ends.passing = True
        writers[0].need()
        until(lambda: spark.low == second.timestamp, "the claim of the one that is done")
        assert close(bench, first) == "writers_behind"
        gone = bench.replica.read_barrier().writers["flink"]
        bench.world.apply(FenceCdcWriter("flink", gone.incarnation, (Position(0, 44),), "gone"))
        assert close(bench, first) == ""
        closed = bench.replica.read_barrier().generations[0]
        assert closed.positions == (Position(0, 44), Position(1, 22))
        until(lambda: writers[1].failure, "the fenced one to stop")
        assert isinstance(writers[1].failure, WriterReplaced)
    finally:
        for writer in writers:
            writer.stop()
    again = flink.writer()
    again.register()
    assert flink.low == second.timestamp
    assert flink.horizon >= gone.horizon


def test_what_a_fenced_writer_planned_for_a_closed_generation_goes_to_the_dead_letters(bench: Bench) -> None:
    """Its plan was stored and never carried out; the generation has closed without it since."""
    bench.plan(5, done=False)
    entry = bench.store.head
    assert closed_for(entry, bench.replica.state) == ()
    operation = bench.world.begin_join("n2", (77,))
    bench.world.prepare_generation()
    bench.world.commit_generation(now_us())
    bench.world.finish(operation)
    first = bench.replica.read_barrier().generations[0].id
    bench.world.apply(CloseCdcGeneration(first, unwatched=True))
    assert closed_for(entry, bench.replica.read_barrier()) == (first,)
