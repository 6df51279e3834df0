"""Two writers on one log in memory: a switch, a close, a fence, and a reused name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringlog.client.creation.creation import found
from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.commands.cdc.writers import FenceCdcWriter
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.values import CdcOptions, Column, Position, Replication, replace
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import RejectedResult
from ringlog_cdc.errors import WriterReplaced
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.decisions import closed_for
from ringlog_cdc.plan.plan import GENESIS, OffsetRange, PlanEntry, route_entry
from ringlog_cdc.plan.recovered_rows import LETTERS, LeftToWrite, is_cut_off, known_of
from ringlog_cdc.plan.store import PlanStore
from tests.cdc.bench import BenchWriter
from tests.cdc.test_writer import LEAD_US, Bench, until
from tests.system.cdc_world import now_us

HOUR_US = 3_600_000_000


class Place:
    """The resources of one writer: name, checkpoint and offsets."""

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
    """Return a cluster with one generation that is active for an hour, and a table with a log."""
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
    """Return the error code of the close; empty if it is accepted."""
    answer = bench.author.submit(CloseCdcGeneration(generation))
    return answer.code if isinstance(answer, RejectedResult) else ""


def test_a_switch_and_its_close_wait_for_both_writers_until_a_fence(bench: Bench) -> None:
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


def test_planned_rows_of_a_fenced_writer_become_dead_letters(bench: Bench) -> None:
    """The plan was stored and never executed, and the generation was sealed without it."""
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


# Effects of a fence on a checkpoint: which parts may be half written.


def part(before: PlanEntry, start: int, closed: list[str]) -> PlanEntry:
    ranges = [OffsetRange(0, start, start + 5)]
    return route_entry(
        before,
        batch=start,
        part=0,
        last=True,
        ranges=ranges,
        epoch=3,
        context="c",
        horizon=9,
        used=8,
        incarnation="i",
        closed=closed,
    )


@pytest.mark.parametrize(
    ("done", "closed", "found"),
    [((0, 1), "ab", False), ((0,), "a", False), ((0,), "ab", True), ((), "a", True), ((), "", False)],
)
def test_an_open_part_is_cut_off_if_a_generation_closed(done: tuple[int, ...], closed: str, found: bool) -> None:
    first = part(GENESIS, 0, [])
    second = part(first, 5, ["a"])
    chain = PlanChain({0: first, 1: second}, done)
    generations = [SimpleNamespace(id=name, closed=1 if name in closed else None) for name in "abc"]
    state: Any = SimpleNamespace(generations=generations)
    assert [entry.sequence for entry in chain.undone()] == [number for number in (0, 1) if number not in done]
    assert is_cut_off(chain.undone(), state) is found


def test_a_refused_write_gets_one_letter_unless_it_is_complete() -> None:
    """The generation may be sealed after its rows were planned, so a later letter does not affect the write."""
    rows = [(0, 1, 10, 0, 2, True, False), (0, 2, 10, 0, 2, False, False)]
    letters = [(0, 5, 0, 0, 0, False, True)]
    known = replace(known_of([*rows, *letters]), settled={0: 1}, lasts={(0, 3): 2, (0, LETTERS): 5})
    left = LeftToWrite(known)
    has = [offset for offset in range(7) if left.has_letter((0, offset))]
    assert has == [0, 1, 5], "decided, complete, present; no half-written write, and no write between letters"
