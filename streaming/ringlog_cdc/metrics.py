"""The job's figures for Prometheus: the lines of ``progress`` as counters and gauges at ``/metrics``.

Whatever a line says is all that is known here, so the numbers agree with ``progress.jsonl``. Counters begin at zero
with each start of the job, as Prometheus expects it. What is measured per generation or reason has that as its label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

PREFIX = "ringlog_cdc_"
US = 1_000_000


class Metrics:
    """One endpoint. ``port`` 0 takes a free one; ``port`` of the object is the one in use. Raises OSError."""

    def __init__(self, port: int, address: str = "0.0.0.0") -> None:
        self._registry = CollectorRegistry()
        self._mutations = self._counter("mutations", "Mutations that were carried out.")
        self._rows = self._counter("rows", "Rows that were written, by the generation they lie in.", "generation")
        self._rejected = self._counter("rejected", "Mutations that went to the dead letters, by reason.", "reason")
        self._skipped = self._counter("skipped", "Mutations that have no row and need none.")
        self._batches = self._counter("batches", "Batches that were finished.")
        self._held = self._counter("held_seconds", "Seconds for which batches waited for a horizon.")
        self._rate = self._gauge("rows_per_second", "Mutations a second in the last batch, without the time it waited.")
        self._behind = self._gauge("behind", "Offsets of one source partition that lie behind the last batch, at most.")
        self._waiting = self._gauge("waiting_seconds", "For how long the batch in hand has waited for a horizon.")
        self._epoch = self._gauge("epoch", "Epoch of the metadata that the last batch was decided with.")
        self._generation = self._gauge("generation_seconds", "Start of the newest generation in use, seconds.")
        self._server, self._thread = start_http_server(port, address, self._registry)
        self.port: int = self._server.server_port
        self._start = 0

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(PREFIX + name, meaning, registry=self._registry)

    def watch(self, low_watermark: Callable[[], int], horizon: Callable[[], int]) -> None:
        """Show the writer's promises; both in microseconds, asked for at each scrape."""
        for name, meaning, found in (
            ("low_watermark_seconds", "Everything below is durable in the log of changes, seconds.", low_watermark),
            ("horizon_seconds", "The writer routes only what lies below, seconds.", horizon),
        ):
            self._gauge(name, meaning).set_function(lambda found=found: found() / US)  # type: ignore[misc]

    def observe(self, event: str, fields: Mapping[str, Any]) -> None:
        """Take in one line of the progress."""
        if event == "held":
            self._waiting.set(fields["seconds"])
        if event != "batch":
            return
        self._batches.inc()
        self._mutations.inc(fields["rows"] - fields["repeated"])
        self._skipped.inc(fields["skipped"])
        self._held.inc(fields["held_ms"] / 1_000)
        for generation, count in fields["generations"].items():
            self._rows.labels(generation).inc(count)
            self._start = max(self._start, int(generation))
        for reason, count in fields["rejected"].items():
            self._rejected.labels(reason).inc(count)
        self._rate.set(fields["rows_per_second"])
        self._epoch.set(fields["epoch"])
        self._waiting.set(0)
        self._generation.set(self._start / US)
        if fields.get("behind") is not None:
            self._behind.set(fields["behind"])

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
