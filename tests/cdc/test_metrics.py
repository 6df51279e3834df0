"""Prometheus metrics of the job: the values of the progress lines, read by a scrape."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from math import isnan
from pathlib import Path
from urllib.error import HTTPError

import pytest

from ringlog.log.kafka.lag import Lag, LagView
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.trust import TRUST_VARIABLE, UnguardedAddress
from ringlog_cdc.report.metrics import Metrics
from ringlog_cdc.report.progress import BatchFigures, BatchProgress, LagReport


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    found = Metrics(0)
    yield found
    found.close()


def scraped(metrics: Metrics) -> dict[str, float]:
    """Return names with labels and their values, without Python's metrics and creation times."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("ringlog_cdc_"))
    return {name.removeprefix("ringlog_cdc_"): float(value) for name, value in pairs if "_created" not in name}


def test_batches_add_up_and_gauges_show_the_last_one(metrics: Metrics, tmp_path: Path) -> None:
    promised = {"low": 5_000_000, "horizon": 7_500_000}
    metrics.watch(lambda: promised["low"], lambda: promised["horizon"])
    with (tmp_path / "out").open("w") as output:
        progress = BatchProgress(tmp_path / "progress.jsonl", output, metrics.observe)
        progress.emit("held", seconds=2.5)
        assert scraped(metrics)["waiting_seconds"] == 2.5
        for epoch in (7, 8):
            figures = BatchFigures(epoch, rows=10, skipped=1, repeated=3, held_ms=1_500, duration_ms=2_500, epoch=epoch)
            figures.rejected, figures.generations = {"bad_key": 2}, {"1000000": 4, "2000000": 3}
            progress.finished(figures)
        progress.close()
    promised["low"] = 6_000_000
    metrics.lag(LagView(Lag(12, 4.5, 1)))
    found = scraped(metrics)
    assert found.pop("rows_per_second") == 10
    assert found == {
        "mutations_total": 14,
        'rows_total{generation="1000000"}': 8,
        'rows_total{generation="2000000"}': 6,
        'rejected_total{reason="bad_key"}': 4,
        "skipped_total": 2,
        "batches_total": 2,
        "held_seconds_total": 3,
        "behind_offsets": 12,
        "behind_seconds": 4.5,
        "behind_unknown_seconds": 0,
        "waiting_seconds": 0,
        "epoch": 8,
        "generation_seconds": 2,
        "low_watermark_seconds": 6,
        "horizon_seconds": 7.5,
    }


def test_an_unknown_lag_is_never_an_old_value(metrics: Metrics) -> None:
    since = SystemClock().now_us() - 30_000_000
    metrics.lag(LagView(Lag(0, 0.0, since), since, "no answer"))
    found = scraped(metrics)
    assert isnan(found["behind_offsets"])
    assert isnan(found["behind_seconds"])
    assert found["behind_unknown_seconds"] >= 30


def logged(path: Path) -> list[dict[str, object]]:
    """Return the lines without their times."""
    found = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name != "at"} for line in found]


def test_the_line_of_a_batch_has_the_lag_at_its_end(tmp_path: Path) -> None:
    views = iter([LagView(Lag(12, 3.5, 1)), LagView(Lag(0, 0.0, 1), 7, "no answer")])
    with (tmp_path / "out").open("w") as output:
        progress = BatchProgress(tmp_path / "progress.jsonl", output)
        progress.measure(lambda: next(views))
        for batch in (3, 4):
            progress.finished(BatchFigures(batch, rows=10))
            progress.reported({"batchId": 2, "durationMs": {}})
            progress.reported({"batchId": batch, "durationMs": {"addBatch": 7}})
        progress.close()
    known, unknown = logged(tmp_path / "progress.jsonl")
    assert (known["behind"], known["behind_seconds"], known["spark_ms"]) == (12, 3.5, {"addBatch": 7})
    assert (unknown["behind"], unknown["behind_seconds"], unknown["behind_unknown_since"]) == (None, None, 7)


def test_a_silent_broker_and_a_lag_have_lines(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as output:
        progress = BatchProgress(tmp_path / "progress.jsonl", output)
        report = LagReport(progress.emit, "broker:9092", every_s=0)
        for view in (LagView(Lag(0, 0.0, 1)), LagView(Lag(5, 2.0, 2)), *[LagView(Lag(5, 2.0, 2), 2, "no answer")] * 2):
            report.observe(view)
        report.observe(LagView(Lag(9, 8.0, 3)))
        progress.close()
    behind, away, unknown, back = logged(tmp_path / "progress.jsonl")
    assert behind == {"event": "behind", "behind": 5, "behind_seconds": 2.0}
    assert (away["event"], away["broker"], away["since"], away["why"]) == ("broker_away", "broker:9092", 2, "no answer")
    assert unknown == {"event": "behind", "behind": None, "behind_seconds": None, "behind_unknown_since": 2}
    assert (back["event"], back["since"], back["behind"]) == ("broker_answers_again", 2, 9)


def test_a_port_in_use_is_an_error(metrics: Metrics) -> None:
    with pytest.raises(OSError, match="in use"):
        Metrics(metrics.port)


def test_a_reachable_port_requires_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGLOG_METRICS_HOST", "0.0.0.0")
    with pytest.raises(UnguardedAddress):
        Metrics(0)


def test_without_a_token_metrics_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token, file = tmp_path / "token", tmp_path / "trust.properties"
    token.write_text("a-token-of-many-letters", encoding="utf-8")
    token.chmod(0o600)
    file.write_text("token.file=token", encoding="utf-8")
    monkeypatch.setenv(TRUST_VARIABLE, str(file))
    with closing(Metrics(0)) as made, pytest.raises(HTTPError, match="401"):
        scraped(made)
