"""Observation of commands that read a topic for long: metrics at a port, the lag, and a broker that does not answer.

All of it goes to standard error or to the port. Standard output has the results of the command only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer

from ringlog.cli.shared.connection import errors, fail
from ringlog.client.cdc.reader import CdcReader
from ringlog.kernel.values import SECOND_US, Micros
from ringlog.log.kafka.lag import LagView, LagWatch
from ringlog.operator.views.words import span, when
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.monitoring.health import Health, StateSince
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.monitoring.server import WatchServer
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import BadTrustConfig, check_listen_address, current

REPORT_S: Final = 10.0
"""Interval of lines about the progress of a command without other output."""

MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65_000, help="Port of the metrics for Prometheus. Default: no metrics."),
]


class Watched:
    """The metrics and health of a command. ``samples_of``: returns its counters. ``view_of``: returns its lag."""

    labels: Mapping[str, str] = {}

    def __init__(self, samples_of: Callable[[], Iterator[Sample]], view_of: Callable[[], LagView] = LagView) -> None:
        self._samples_of = samples_of
        self._view_of = view_of
        self._since = StateSince(SystemClock().now_us)

    def health(self) -> tuple[Health, Micros]:
        """See ``WatchedProcess``."""
        view = self._view_of()
        is_away = view.away_since is not None
        state = "broker_away" if is_away else "active"
        return Health(state, not is_away, view.why), self._since.of(state)

    def samples(self) -> Iterator[Sample]:
        """See ``WatchedProcess``."""
        yield from self._samples_of()


@contextmanager
def served(port: int | None, watched: Watched) -> Iterator[None]:
    """Serve metrics and health at the port, if there is one."""
    if port is None:
        yield
        return
    settings = ProcessSettings()
    try:
        check_listen_address(settings.metrics_host, current(), insecure=settings.insecure)
    except BadTrustConfig as error:
        fail(error.code, str(error))
    server = WatchServer(watched, settings.metrics_host, port)
    server.start()
    try:
        yield
    finally:
        server.stop()


class ReaderReport:
    """Lines on standard error about a silent broker and, if it ``tells``, about the progress now and then."""

    def __init__(
        self, bootstrap: str, changes: Callable[[], int], *, as_json: bool, tells: bool, every_s: float = REPORT_S
    ) -> None:
        self.view = LagView()
        self._bootstrap = bootstrap
        self._changes = changes
        self._as_json = as_json
        self._tells = tells
        self._every_s = every_s
        self._said = time.monotonic()

    def observe(self, view: LagView) -> None:
        """Process one measurement of the lag, or a failure."""
        before, self.view = self.view, view
        broker, is_due = self._bootstrap, time.monotonic() - self._said >= self._every_s
        if view.away_since is not None and before.away_since is None:
            text = f"the broker {broker} has not answered since {when(view.away_since)}: {view.why}"
            self._tell("broker_away", text, broker=broker, since=view.away_since, why=view.why)
        elif view.away_since is None and before.away_since is not None:
            text = f"the broker {broker} answers again"
            self._tell("broker_answers_again", text, broker=broker, since=before.away_since)
        elif self._tells and is_due and (lag := view.known) is not None and lag.records:
            count, seconds = self._changes(), lag.seconds
            age = "" if seconds is None else f", the oldest {span(int(seconds * SECOND_US))} old"
            text = f"{count:,} changes, {lag.records:,} rows behind{age}"
            self._tell("behind", text, changes=count, behind=lag.records, behind_seconds=seconds)

    def _tell(self, event: str, text: str, **fields: Any) -> None:
        self._said = time.monotonic()
        if self._as_json:
            typer.echo(json.dumps({"event": event, **fields}), err=True)
        else:
            errors.print(f"{event}: {text}" if event != "behind" else text, markup=False)


@contextmanager
def watched_reader(
    context: ClusterContext,
    reader: CdcReader,
    port: int | None,
    changes: Callable[[], int],
    *,
    as_json: bool,
    tells: bool,
) -> Iterator[None]:
    """Watch a reader until the block ends.

    ``changes``: the number of changes so far. ``tells``: report the progress now and then.
    """
    report = ReaderReport(context.bootstrap, changes, as_json=as_json, tells=tells)
    watched = Watched(lambda: _reader_samples(report.view, changes()), lambda: report.view)
    watch = LagWatch(reader.lag_reader, lambda: reader.unread, report.observe, is_whole=False)
    with served(port, watched):
        watch.start()
        try:
            yield
        finally:
            watch.stop()


def _reader_samples(view: LagView, changes: int) -> Iterator[Sample]:
    lag, since = view.known, view.away_since
    yield Sample("ringlog_cdc_reader_changes", changes)
    yield Sample("ringlog_cdc_reader_behind_offsets", math.nan if lag is None else lag.records)
    yield Sample("ringlog_cdc_reader_behind_seconds", math.nan if lag is None or lag.seconds is None else lag.seconds)
    silent = 0.0 if since is None else (SystemClock().now_us() - since) / SECOND_US
    yield Sample("ringlog_cdc_reader_behind_unknown_seconds", silent)
