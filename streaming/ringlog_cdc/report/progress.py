"""Progress of the job: one JSON line per event, to standard output and to ``<checkpoint>/progress.jsonl``.

Every line has ``event`` and ``at`` (microseconds). A ``batch`` line combines the job's own counts with Spark's report
on the same batch, and with the lag at its end. A ``held`` line says why a batch waits, since when, and how the wait
ends. A ``behind`` line has the lag while a batch runs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ringlog.kernel.values import SECOND_US
from ringlog.log.kafka.lag import LagView

LAG_REPORT_S = 10.0
"""Interval of lines about a lag or a broker that does not answer, seconds."""
Observer = Callable[[str, Mapping[str, Any]], None]
"""Callback for a line: its event and fields."""


def unobserved(_event: str, _fields: Mapping[str, Any]) -> None:
    """Ignore a line."""


@dataclass(slots=True)
class BatchFigures:
    """Counts and times of one batch.

    Attributes:
        rows: Mutations of the batch.
        written: CDC rows written.
        skipped: Mutations of tables without a CDC log.
        repeated: Mutations processed before a restart, and not written again.
        parts: Plan parts.
        held_ms: Time spent waiting for a horizon.
        epoch: Metadata epoch of the last part.
        rejected: Reason to number of dead letters.
        one_by_one: Reason to number of mutations that were not processed in bulk (``ringlog_cdc.bulk.choice``).
        generations: Start of a generation to number of CDC rows.
    """

    batch: int
    rows: int = 0
    written: int = 0
    skipped: int = 0
    repeated: int = 0
    parts: int = 0
    held_ms: int = 0
    duration_ms: int = 0
    epoch: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    one_by_one: dict[str, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """Return the fields of the progress line. ``seconds`` excludes the time spent waiting for a horizon."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["seconds"] = max(self.duration_ms - self.held_ms, 1) / 1000
        fields["rows_per_second"] = round(self.rows / fields["seconds"])
        return fields


class BatchProgress:
    """Writer of the lines. Thread-safe. A batch has one line.

    Args:
        path: File to append to. None: ``record`` sets it.
        output: Further output. None: standard output.
        observe: Called with each line.
    """

    def __init__(
        self,
        path: Path | None = None,
        output: TextIO | None = None,
        observe: Observer = unobserved,
    ) -> None:
        self._observe = observe
        self._output = output if output is not None else sys.stdout
        self._file = path.open("a", encoding="utf-8") if path is not None else None
        self._lock = threading.Lock()
        self._waiting: dict[int, BatchFigures] = {}
        self._measured: Callable[[], LagView] = LagView

    def record(self, path: Path, observe: Observer) -> None:
        """Also append the lines to a file from now on, and call ``observe`` with them."""
        self._file, self._observe = path.open("a", encoding="utf-8"), observe

    def measure(self, measured: Callable[[], LagView]) -> None:
        """Report the lag of this function in the lines of batches."""
        self._measured = measured

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line."""
        self._observe(event, fields)
        line = json.dumps({"event": event, "at": time.time_ns() // 1000, **fields}, default=str)
        with self._lock:
            for target in (self._file, self._output):
                if target is not None:
                    print(line, file=target, flush=True)

    def finished(self, figures: BatchFigures) -> None:
        """Hold the line of a finished batch until Spark's report arrives."""
        with self._lock:
            self._waiting[figures.batch] = figures

    def close(self) -> None:
        """Write the held lines without Spark's report, and close the file."""
        for batch in sorted(self._waiting):
            self.emit("batch", **self._waiting.pop(batch).line(), **lag_fields(self._measured()))
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def reported(self, progress: Mapping[str, Any]) -> None:
        """Combine Spark's report (JSON of a query's progress) with the batch's counts, and write the line."""
        with self._lock:
            figures = self._waiting.pop(progress["batchId"], None)
        if figures is not None:
            spark_ms = dict(progress["durationMs"])
            self.emit("batch", **figures.line(), **lag_fields(self._measured()), spark_ms=spark_ms)


def lag_fields(view: LagView) -> dict[str, Any]:
    """Return the fields of a line about the lag.

    ``behind``: mutations that are not durable as rows or dead letters. ``behind_seconds``: the age of the oldest one.
    If the broker does not answer, both are null, and ``behind_unknown_since`` is the time of its last answer.
    """
    if (lag := view.known) is not None:
        return {"behind": lag.records, "behind_seconds": lag.seconds}
    return {"behind": None, "behind_seconds": None, "behind_unknown_since": view.away_since}


class LagReport:
    """Reports of a watch as lines: a lag between two batches, and a broker that does not answer."""

    def __init__(self, emit: Callable[..., None], bootstrap_servers: str, every_s: float = LAG_REPORT_S) -> None:
        self._emit = emit
        self._broker = bootstrap_servers
        self._every_s = every_s
        self._away_since: int | None = None
        self._said = time.monotonic()

    def observe(self, view: LagView) -> None:
        """Process one measurement or failure."""
        now = time.monotonic()
        since, self._away_since = self._away_since, view.away_since
        if view.away_since is not None and since is None:
            ends = "when the broker answers; the job then continues"
            self._emit("broker_away", broker=self._broker, since=view.away_since, why=view.why, ends=ends)
        elif view.away_since is None and since is not None:
            seconds = round((time.time_ns() // 1000 - since) / SECOND_US, 1)
            self._emit("broker_answers_again", broker=self._broker, since=since, seconds=seconds, **lag_fields(view))
        elif now - self._said >= self._every_s and (view.known is None or view.known.records):
            self._emit("behind", **lag_fields(view))
        else:
            return
        self._said = now
