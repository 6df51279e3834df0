"""Metrics of the job for Prometheus: the progress lines as counters and gauges at ``/metrics``.

Invariant: the metrics contain nothing but the progress lines and the lag, so they agree with ``progress.jsonl``.
Counters start at zero with each start of the job, as Prometheus expects. ``ringlog.runtime.monitoring.metrics`` has
names and meanings.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from ringlog.kernel.values import SECOND_US
from ringlog.log.kafka.lag import LagView
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.monitoring.metrics import ALL_METRICS
from ringlog.runtime.monitoring.scrape import JSON, METRICS, NO_TOKEN, TEXT, HttpAnswer
from ringlog.runtime.monitoring.server import POLL_S, MetricsServer
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import check_listen_address, current

PREFIX = "ringlog_cdc_"
"""Prefix of all names."""


class Metrics:
    """One endpoint.

    Args:
        port: Port. 0: a free one, which the attribute ``port`` then shows.

    Raises:
        OSError: The port is in use.
        BadTrustConfig: Other machines could read the metrics without permission (``ringlog.runtime.trust``).
    """

    def __init__(self, port: int) -> None:
        settings = ProcessSettings()
        check_listen_address(settings.metrics_host, current(), insecure=settings.insecure)
        self._registry = CollectorRegistry()
        self._mutations = self._counter("mutations")
        self._rows = self._counter("rows")
        self._rejected = self._counter("rejected")
        self._skipped = self._counter("skipped")
        self._one_by_one = self._counter("one_by_one")
        self._batches = self._counter("batches")
        self._held = self._counter("held_seconds")
        self._rate = self._gauge("rows_per_second")
        self._behind = self._gauge("behind_offsets")
        self._behind_seconds = self._gauge("behind_seconds")
        self._behind_unknown = self._gauge("behind_unknown_seconds")
        self.lag(LagView())
        self._waiting = self._gauge("waiting_seconds")
        self._epoch = self._gauge("epoch")
        self._generation = self._gauge("generation_seconds")
        self._start = 0
        self._server = MetricsServer(settings.metrics_host, port, self._answer)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="figures", daemon=True)
        self._thread.start()

    def _answer(self, path: str, *, is_admitted: bool) -> HttpAnswer:
        if not is_admitted:
            return HttpAnswer(401, JSON, NO_TOKEN)
        if path != METRICS:
            return HttpAnswer(404, JSON, b'{"detail": "there is /metrics"}\n')
        return HttpAnswer(200, TEXT, generate_latest(self._registry))

    def _counter(self, name: str) -> Counter:
        figure = ALL_METRICS[PREFIX + name]
        return Counter(figure.name, figure.meaning, figure.labels, registry=self._registry)

    def _gauge(self, name: str) -> Gauge:
        figure = ALL_METRICS[PREFIX + name]
        return Gauge(figure.name, figure.meaning, figure.labels, registry=self._registry)

    def watch(self, low_watermark: Callable[[], int], horizon: Callable[[], int]) -> None:
        """Add the writer's promises, both in microseconds. The functions are called at each scrape."""
        self._gauge("low_watermark_seconds").set_function(lambda: low_watermark() / SECOND_US)
        self._gauge("horizon_seconds").set_function(lambda: horizon() / SECOND_US)

    def observe(self, event: str, fields: Mapping[str, Any]) -> None:
        """Process one progress line."""
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
        for reason, count in fields["one_by_one"].items():
            self._one_by_one.labels(reason).inc(count)
        self._rate.set(fields["rows_per_second"])
        self._epoch.set(fields["epoch"])
        self._waiting.set(0)
        self._generation.set(self._start / SECOND_US)

    def lag(self, view: LagView) -> None:
        """Process one measurement of the lag. An unknown value is not a number: NaN."""
        lag = view.known
        self._behind.set(math.nan if lag is None else lag.records)
        self._behind_seconds.set(math.nan if lag is None or lag.seconds is None else lag.seconds)
        since = view.away_since
        self._behind_unknown.set(0 if since is None else (SystemClock().now_us() - since) / SECOND_US)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
