"""The registered writer on a log in memory: its leases, and the reasons to stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ringlog.client.creation.creation import found
from ringlog.client.direct import DirectAuthor
from ringlog.client.errors import SubmissionTimedOut
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter
from ringlog.kernel.commands.control.principals import CreatePrincipal, RevokePrincipal
from ringlog.kernel.model.state import CdcWriter
from ringlog.kernel.values import Command
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import RejectedResult, Submitted
from ringlog_cdc.errors import StopRequested, WriterNotAuthorized, WriterReplaced
from ringlog_cdc.plan.plan import OffsetRange, close_entry, route_entry
from ringlog_cdc.plan.store import PlanStore
from tests import waiting
from tests.cdc.bench import BenchWriter
from tests.ending import stopping
from tests.system.cdc_world import World, now_us

LEAD_US = 10_000_000
until = partial(waiting.until, deadline_s=60, look_s=0.01)


class Bench:
    """A cluster in memory and its writers."""

    def __init__(self, metadata: MemoryLog, replica: LogReplica, folder: Path) -> None:
        self.author = DirectAuthor(metadata, replica, "test")
        self.replica = replica
        self.folder = folder
        self.store = PlanStore(folder)
        self.world = World("", "memory", replica, self.author)
        self.begun = now_us()

    def writer(self, submit: Callable[..., Submitted] | None = None) -> BenchWriter:
        """Return an unregistered writer named ``spark``."""
        return BenchWriter(self.replica, submit or self.author.submit, "spark", self.store, "source", "sink")

    @contextmanager
    def running(self, submit: Callable[..., Submitted] | None = None) -> Iterator[BenchWriter]:
        """Return a registered, running writer."""
        with stopping(self.writer(submit)) as writer:
            writer.register()
            writer.start()
            yield writer

    @property
    def known(self) -> CdcWriter:
        """Return the writer's record in the log."""
        return self.replica.read_barrier().writers["spark"]

    def await_extension(self, writer: str = "spark") -> int:
        """Return the lease after its first extension; then it stays while the clock advances."""

        def raised() -> int:
            found = self.replica.read_barrier().writers[writer].horizon
            return found if found > self.begun else 0

        return until(raised, "the first extension")

    def plan(self, used: int, done: bool = True) -> None:
        """Store a plan that used times up to ``used``."""
        self.store.append(
            route_entry(
                self.store.head,
                batch=0,
                part=0,
                last=True,
                ranges=[OffsetRange(0, 0, 1)],
                epoch=1,
                context="c",
                horizon=used + 1,
                used=used,
                incarnation="i",
            )
        )
        if done:
            self.store.mark_done(self.store.head)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a cluster with one generation that is active for an hour."""
    metadata = MemoryLog()
    with LogReplica(metadata) as replica:
        found(metadata, replica, "memory", {"cdc_horizon_lead_us": LEAD_US})
        made = Bench(metadata, replica, tmp_path)
        made.world.join("n1", (0,), now_us() - 3_600_000_000)
        yield made


def test_a_new_writer_starts_at_the_oldest_open_generation(bench: Bench) -> None:
    writer = bench.writer()
    epoch = writer.register()
    start = bench.replica.state.generations[0].timestamp
    assert bench.replica.state.epoch >= epoch
    assert (bench.known.horizon, bench.known.floor, bench.known.low_watermark) == (start, start, start)


def test_an_idle_writer_extends_its_lease_only_at_the_start(bench: Bench) -> None:
    with bench.running() as writer:
        bench.await_extension()
        assert writer.failure is None


def test_a_preparation_lowers_the_lease_to_just_above_used_times(bench: Bench) -> None:
    with bench.running() as writer:
        high = bench.await_extension()
        used = high - 8_000_000
        with writer.lock:
            bench.plan(used)
        bench.world.begin_join("n2", (77,))
        bench.world.prepare_generation()
        until(lambda: bench.known.horizon == used + 1, "the lowering")
        bench.world.commit_generation(used + 2)
        writer.need()
        until(lambda: bench.known.horizon > used + 2, "the extension past the new generation")


def test_a_lowered_lease_applies_from_its_submission(bench: Bench) -> None:
    """The outcome is unknown: no time above the lowered lease may be routed, although the folded lease is higher."""
    asked: list[AdvanceCdcWriter] = []
    answer = threading.Event()

    def slow(command: Command, **options: Any) -> Submitted:
        if isinstance(command, AdvanceCdcWriter) and bench.replica.state.prepared is not None:
            asked.append(command)
            if not answer.wait(0.05):
                raise SubmissionTimedOut(options["request_id"], options["since_epoch"], 0.05, "an answer")
        return bench.author.submit(command, **options)

    bench.author.submit(SettleVerdicts(now_us()))
    with bench.running(slow) as writer, ExitStack() as stack:
        stack.callback(answer.set)
        high = bench.await_extension()
        used = high - 8_000_000
        with writer.lock:
            bench.plan(used)
        bench.world.begin_join("n2", (77,))
        bench.world.prepare_generation()
        until(lambda: len(asked) > 2, "a submission without an answer, repeated")
        assert {command.horizon for command in asked} == {used + 1}
        assert bench.known.horizon == high
        assert writer.promises.horizon(bench.replica.state) == used + 1
        answer.set()
        until(lambda: bench.known.horizon == used + 1, "the lowering")


def test_no_row_is_routed_before_the_first_watermark(bench: Bench) -> None:
    with bench.running() as writer:
        high = bench.await_extension()
        assert bench.replica.state.settled.until == 0, "an idle job requests no lease"
        assert writer.promises.horizon(bench.replica.state) == 0
        writer.need()
        until(lambda: writer.promises.horizon(bench.replica.state) >= high, "a settled time above the horizon")


def test_a_newer_incarnation_stops_the_old_one(bench: Bench) -> None:
    with bench.running() as writer:
        bench.await_extension()
        newer = bench.writer()
        newer.register()
        until(lambda: writer.failure, "the old one to stop")
        with pytest.raises(WriterReplaced):
            writer.check()
        with pytest.raises(WriterReplaced):
            writer.promises.horizon(bench.replica.state)
        assert bench.known.incarnation == newer.promises.incarnation


def test_a_writer_with_a_revoked_principal_stops(bench: Bench) -> None:
    bench.world.apply(CreatePrincipal("root", "admin"))
    bench.world.apply(CreatePrincipal("spark", "node"))
    with bench.running() as writer:
        bench.await_extension()
        bench.world.apply(RevokePrincipal("spark"))
        until(lambda: writer.failure, "the writer to stop, although no batch needs it")
        epoch = bench.replica.state.principals["spark"].revoked
        with pytest.raises(WriterNotAuthorized, match=f"'spark': its principal was revoked with epoch {epoch}"):
            writer.check()
        with pytest.raises(WriterNotAuthorized):
            writer.promises.horizon(bench.replica.state)


@pytest.mark.parametrize(("code", "stops"), [("not_authorized", True), ("not_authenticated", False)])
def test_a_writer_without_its_role_stops_and_one_with_an_old_key_asks_again(
    bench: Bench, code: str, stops: bool
) -> None:
    refused: list[Command] = []

    def submit(command: Command, **given: Any) -> Submitted:
        if isinstance(command, AdvanceCdcWriter) and len(refused) < 2:
            refused.append(command)
            return RejectedResult("id", code, "spark needs the role node", 0)
        return bench.author.submit(command, **given)

    with bench.running(submit) as writer:
        if stops:
            until(lambda: writer.failure, "the writer to stop")
            with pytest.raises(WriterNotAuthorized, match="spark needs the role node"):
                writer.check()
        else:
            bench.await_extension()
            assert (len(refused), writer.failure) == (2, None)


def test_an_ended_generation_is_closed_in_the_chain_before_the_low_watermark_is_claimed(bench: Bench) -> None:
    with bench.running() as writer:
        bench.await_extension()
        operation = bench.world.begin_join("n2", (77,))
        bench.world.prepare_generation()
        second = bench.world.commit_generation(bench.known.horizon + 1)
        bench.world.finish(operation)
        writer.need()
        until(lambda: bench.known.horizon > second.timestamp, "the extension past the new generation")
        assert bench.store.head.low_watermark == 0
        writer.ends.passing = True
        until(lambda: bench.known.low_watermark == second.timestamp, "the claim")
        assert bench.store.head.kind == "close"
        assert bench.store.head.closed == (bench.replica.state.generations[0].id,)
        assert [(place.partition, place.offset) for place in bench.known.positions] == [(0, 11), (1, 22)]


def test_an_unclaimed_close_is_claimed_after_a_restart(bench: Bench) -> None:
    writer = bench.writer()
    writer.register()
    operation = bench.world.begin_join("n2", (77,))
    bench.world.prepare_generation()
    second = bench.world.commit_generation(bench.known.horizon + 1)
    bench.world.finish(operation)
    first = bench.replica.state.generations[0].id
    bench.store.append(
        close_entry(
            bench.store.head, generations=[first], low_watermark=second.timestamp, epoch=1, incarnation="before"
        )
    )
    with bench.running():
        until(lambda: bench.known.low_watermark == second.timestamp, "the claim")


def test_a_low_watermark_waits_for_the_rows_of_all_plans_before_the_closing(bench: Bench) -> None:
    """The allowed lateness of these plans may be wider than the current one; then they still write into sealed
    generations.
    """
    writer = bench.writer()
    writer.register()
    first = bench.replica.state.generations[0].timestamp
    second = bench.world.join("n2", (77,), bench.known.horizon + 1)
    writer.advance(now_us() + LEAD_US, first)
    bench.plan(second.timestamp, done=False)
    writer.ends.passing = True
    writer.step()
    assert bench.store.head.kind == "close"
    assert bench.known.low_watermark == first
    again = PlanStore(bench.folder)
    assert again.head.kind == "close"
    assert not again.is_closing_durable()
    bench.store.mark_done(bench.store.parts(0)[0])
    writer.promises._close_at = 0
    writer.step()
    assert bench.known.low_watermark == second.timestamp


def test_a_stopping_job_does_not_register(bench: Bench) -> None:
    calls, stopping = threading.Event(), threading.Event()

    def never(command: Command, **options: Any) -> Submitted:
        calls.set()
        raise SubmissionTimedOut(options["request_id"], options["since_epoch"], 0.0, "an answer")

    writer = bench.writer(never)
    with ThreadPoolExecutor(1) as pool:
        registering = pool.submit(writer.register, stopping)
        assert calls.wait(60)
        stopping.set()
        with pytest.raises(StopRequested):
            registering.result(60)


def test_an_unanswered_registration_is_repeated_with_the_same_request(bench: Bench) -> None:
    seen: list[tuple[str, int]] = []

    def lossy(command: Command, **options: Any) -> Submitted:
        seen.append((options["request_id"], options["since_epoch"]))
        found = bench.author.submit(command, **options)
        if len(seen) < 3:
            raise SubmissionTimedOut(options["request_id"], options["since_epoch"], 0.0, "an answer")
        return found

    writer = bench.writer(lossy)
    writer.register()
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert bench.known.incarnation == writer.promises.incarnation


def test_a_stopped_writer_does_not_wait_for_an_answer(bench: Bench) -> None:
    calls = threading.Event()

    def never(command: Command, **options: Any) -> Submitted:
        calls.set()
        raise SubmissionTimedOut(options["request_id"], options["since_epoch"], 0.0, "an answer")

    writer = bench.writer(never)
    ended: list[BaseException] = []

    def register() -> None:
        try:
            writer.register()
        except StopRequested as error:
            ended.append(error)

    thread = threading.Thread(target=register)
    thread.start()
    assert calls.wait(60)
    writer.stop()
    thread.join(60)
    assert len(ended) == 1
