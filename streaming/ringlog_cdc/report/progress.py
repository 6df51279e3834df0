"""What the job reports: one JSON line for everything that happens, to standard output and to
``<checkpoint>/progress.jsonl``.

Every line has ``event`` and ``at`` (microseconds). A ``batch`` line has the counts that the job itself observed,
joined with what Spark's query listener says of the same batch; ``held`` says for what a batch waits, since when and
how it ends.
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
"""Gets the event of a line and its fields."""


def unobserved(_event: str, _fields: Mapping[str, Any]) -> None:
    """An observer that wants nothing."""


@dataclass(slots=True)
class BatchFigures:
    """Counts of one batch (CDC rows by generation timestamp, dead letters by reason) and its times.

    ``repeated`` rows had been written before a restart and were not written again.
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
        """The fields of its line; ``seconds`` is the time it worked, without that in which it was held."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["seconds"] = max(self.duration_ms - self.held_ms, 1) / 1000
        fields["rows_per_second"] = round(self.rows / fields["seconds"])
        return fields


class BatchProgress:
    """Writes the lines. Thread-safe; lines of one batch are written once. ``observe`` gets each line, too."""

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
        """Write one line now."""
        self._observe(event, fields)
        line = json.dumps({"event": event, "at": time.time_ns() // 1000, **fields}, default=str)
        with self._lock:
            for target in (self._file, self._output):
                print(line, file=target, flush=True)

    def finished(self, figures: BatchFigures) -> None:
        """A batch is done; its line waits for Spark's own figures."""
        with self._lock:
            self._waiting[figures.batch] = figures

    def close(self) -> None:
        """Write what still waits, without Spark's figures, and close the file."""
        for batch in sorted(self._waiting):
            self.emit("batch", **self._waiting.pop(batch).line())
        self._file.close()

    def reported(self, progress: Mapping[str, Any]) -> None:
        """Join Spark's figures (its JSON of a query's progress) to those of the batch and write its line."""
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
    """Spark's listener of streaming queries, as the JVM knows it; hands the progress of one query on, as it is.

    PySpark's own asks the JVM for every single figure of an event, which takes as long as ten thousand rows.
    """

    def __init__(self, session: SparkSession, query: str, reported: Callable[[Mapping[str, Any]], None]) -> None:
        """``query``: the name of the query; a session may have several."""
        jvm: Any = session.sparkContext._jvm
        ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
        self._query = query
        self._reported = reported
        self._listeners: Any = session._jsparkSession.streams()
        self._listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(self)
        self._listeners.addListener(self._listener)

    def close(self) -> None:
        """Listen no longer."""
        self._listeners.removeListener(self._listener)

    def onQueryProgress(self, event: Any) -> None:
        """A batch is through."""
        progress = json.loads(event.progress().json())
        if progress["name"] == self._query:
            self._reported(progress)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing: the job announces itself."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing: an idle job is silent."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing: the job announces its end."""

    class Java:
        """The interface for the JVM."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
