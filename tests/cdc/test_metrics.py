"""Prometheus metrics of the job: the values of the progress lines, read by a scrape."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import pytest

from ringlog.runtime.trust import TRUST_VARIABLE, UnguardedAddress
from ringlog_cdc.report.metrics import Metrics
from ringlog_cdc.report.progress import BatchFigures, BatchProgress


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
        "behind": 0,
        "waiting_seconds": 0,
        "epoch": 8,
        "generation_seconds": 2,
        "low_watermark_seconds": 6,
        "horizon_seconds": 7.5,
    }


def test_a_line_has_spark_metrics_of_all_sources(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as output:
        progress = BatchProgress(tmp_path / "progress.jsonl", output)
        progress.finished(BatchFigures(3, rows=10))
        sources = [{"metrics": {"maxOffsetsBehindLatest": "0"}}, {"metrics": {"maxOffsetsBehindLatest": "12"}}, {}]
        progress.reported({"batchId": 2, "sources": sources, "durationMs": {}})
        progress.reported({"batchId": 3, "sources": sources, "durationMs": {"addBatch": 7}})
        progress.close()
    (line,) = map(json.loads, (tmp_path / "progress.jsonl").read_text().splitlines())
    assert (line["batch"], line["behind"], line["spark_ms"]) == (3, 12, {"addBatch": 7})


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
