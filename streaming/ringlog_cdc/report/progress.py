"""Progress of the job: one JSON line per event, to standard output and to ``<checkpoint>/progress.jsonl``.

Every line has ``event`` and ``at`` (microseconds). A ``batch`` line combines the job's own counts with Spark's report
on the same batch. A ``held`` line says why a batch waits, since when, and how the wait ends.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

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
        path: File to append to.
        output: Further output. None: standard output.
        observe: Called with each line.
    """

    def __init__(
        self,
        path: Path,
        output: TextIO | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._observe = observe if observe is not None else unobserved
        self._output = output if output is not None else sys.stdout
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._waiting: dict[int, BatchFigures] = {}

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line."""
        self._observe(event, fields)
        line = json.dumps({"event": event, "at": time.time_ns() // 1000, **fields}, default=str)
        with self._lock:
            for target in (self._file, self._output):
                print(line, file=target, flush=True)

    def finished(self, figures: BatchFigures) -> None:
        """Hold the line of a finished batch until Spark's report arrives."""
        with self._lock:
            self._waiting[figures.batch] = figures

    def close(self) -> None:
        """Write the held lines without Spark's report, and close the file."""
        for batch in sorted(self._waiting):
            self.emit("batch", **self._waiting.pop(batch).line())
        self._file.close()

    def reported(self, progress: Mapping[str, Any]) -> None:
        """Combine Spark's report (JSON of a query's progress) with the batch's counts, and write the line."""
        with self._lock:
            figures = self._waiting.pop(progress["batchId"], None)
        if figures is None:
            return
        metrics = [source.get("metrics") or {} for source in progress["sources"]]
        behind = [int(found["maxOffsetsBehindLatest"]) for found in metrics if "maxOffsetsBehindLatest" in found]
        self.emit(
            "batch",
            **figures.line(),
            behind=max(behind, default=None),
            spark_ms=dict(progress["durationMs"]),
        )


class Listener:
    """Listener of one streaming query's progress, directly in the JVM's interface.

    PySpark's own listener fetches every number of an event from the JVM one by one, which takes as long as ten thousand
    rows. This one fetches the event's JSON at once.
    """

    def __init__(self, session: SparkSession, query: str, reported: Callable[[Mapping[str, Any]], None]) -> None:
        """Register the listener.

        Args:
            session: Spark session. It may run several queries.
            query: Name of the query.
            reported: Called with the progress of each batch.
        """
        jvm: Any = session.sparkContext._jvm
        ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
        self._query = query
        self._reported = reported
        self._listeners: Any = session._jsparkSession.streams()
        self._listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._listeners.addListener(self._listener)

    def close(self) -> None:
        """Remove the listener."""
        self._listeners.removeListener(self._listener)

    def onQueryProgress(self, event: Any) -> None:
        """Process the progress of a batch."""
        progress = json.loads(event.progress().json())
        if progress["name"] == self._query:
            self._reported(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Ignore: the job reports its start."""

    def onQueryIdle(self, event: Any) -> None:
        """Ignore: an idle job reports nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Ignore: the job reports its end."""

    class Java:
        """Py4J's declaration of the implemented interface."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
