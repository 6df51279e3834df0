"""A batch runner on a log in memory, without Spark: planned parts and reasons to stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringlog.client.creation.creation import found
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog_cdc.bulk.image_work import ImageFolder
from ringlog_cdc.driver import batch as batches
from ringlog_cdc.driver.recovery import Index
from ringlog_cdc.driver.writer import Submit, Writer
from ringlog_cdc.images.files import ImageFiles
from ringlog_cdc.plan.plan import OffsetRange, PartitionFacts, PlanEntry, route_entry
from ringlog_cdc.plan.store import PlanStore
from ringlog_cdc.protocol.batch import AppendedSince, FactsOf
from ringlog_cdc.report.progress import BatchFigures
from ringlog_cdc.settings import JobSettings
from tests.system.cdc_world import World, now_us

HOUR_US = 3_600_000_000
LEAD_US = 10_000_000
SOURCE, SINK = "memory.mutations", "memory.cdc"


class TopicEnds:
    """Offsets as a broker reports them. With ``passing``, all source records were appended after any limit."""

    def __init__(self) -> None:
        self.passing = False

    def ends(self, topic: str) -> dict[int, int]:
        return {0: 11, 1: 22}

    def later(self, topic: str, limit: int) -> dict[int, int | None]:
        return dict.fromkeys((0, 1), 0 if self.passing else None)


class BenchWriter(Writer):
    """A writer on a plan chain, with separate steps."""

    def __init__(
        self, replica: LogReplica, submit: Submit, name: str, store: PlanStore, source: str, sink: str
    ) -> None:
        self.ends = TopicEnds()
        ends: Any = self.ends
        super().__init__(replica, submit, name, ends, source, sink)
        self.use(store)

    def register(self, stopping: threading.Event | None = None) -> int:
        """Register the writer and return the epoch of its registration."""
        return self.run_steps(self.promises.register(), stopping or threading.Event())

    def step(self) -> None:
        """Process the current needs once."""
        self.driver.run_steps(self.promises.step())

    def advance(self, horizon: int, low_watermark: int) -> None:
        """Extend the write lease."""
        self.driver.run_steps(self.promises.advance(horizon, low_watermark, ()))

    def need(self) -> None:
        """Report that rows wait."""
        self.driver.run_steps(self.promises.need(held=True))


class Silent:
    """A progress reporter without output."""

    def emit(self, event: str, **fields: Any) -> None:
        """Ignore the line."""

    def finished(self, figures: BatchFigures) -> None:
        """Ignore the metrics."""


class Bench:
    """A cluster with one generation that is active for an hour, a registered writer and its batch runner."""

    def __init__(self, metadata: MemoryLog, replica: LogReplica, folder: Path) -> None:
        found(metadata, replica, "memory", {"cdc_horizon_lead_us": LEAD_US})
        self.author = DirectAuthor(metadata, replica, "test")
        self.world = World("", "memory", replica, self.author)
        self.world.join("n1", (0,), now_us() - HOUR_US)
        self.folder = folder
        self.store = PlanStore(folder)
        self.writer = BenchWriter(replica, self.author.submit, "spark", self.store, SOURCE, SINK)
        ends: Any = self.writer.ends
        self.writer.register()
        quiet, no_session = Silent(), None
        settings = JobSettings("", "memory", folder)
        runner: Any = batches.BatchRunner
        images, known = ImageFolder(ImageFiles(folder / "images"), 1), Index(folder)
        runner_parts = (self.writer, self.store, ends, quiet, 8, {0: 0}, images, known)
        self.runner = runner(no_session, settings, replica, *runner_parts)

    def settle(self) -> None:
        """Set a first validation watermark; the runner routes no rows before it."""
        self.author.submit(SettleVerdicts(1))

    def raise_horizon(self) -> int:
        """Raise the write lease to the lead beyond the clock and return it."""
        horizon = now_us() + LEAD_US
        self.writer.advance(horizon, self.world.state.writers["spark"].low_watermark)
        return horizon

    def plan(self, look: Callable[[], int], end: int = 5) -> PlanEntry:
        """Return the planned part of batch 0; ``look`` returns the highest timestamps that its rows use."""
        self.runner.driver.handlers |= {
            AppendedSince: lambda _: {0: 0},
            FactsOf: lambda _: [PartitionFacts(0, None, look())],
        }
        entry: PlanEntry = self.runner.driver.run_steps(self.runner.batches.plan(0, 0, {0: end}))
        return entry

    def stored(self, batch: int, start: int, end: int, *, used: int = 1, done: bool = True) -> PlanEntry:
        """Return a stored part of partition 0 that covers its whole batch."""
        entry = route_entry(
            self.store.head,
            batch=batch,
            part=0,
            last=True,
            ranges=[OffsetRange(0, start, end)],
            epoch=1,
            context="c",
            horizon=used + 1,
            used=used,
            incarnation="i",
        )
        self.store.append(entry)
        if done:
            self.store.mark_done(entry)
        return entry

    def spark_says(self, batch: int, end: int) -> None:
        """Write a batch with this end to Spark's offset log."""
        folder = self.folder / "spark" / "offsets"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(batch)).write_text("v1\n{}\n" + json.dumps({SOURCE: {"0": end}}) + "\n")
