"""The reported lag of the CDC job, its readers and the log, against an independent count of durable rows."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.ending import stopping
from tests.system.cdc_log import CdcLog, Story
from tests.system.cdc_world import PARTITIONS, World, until, write
from tests.system.test_cdc_job import lines, run_to_idle, start
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.client.cdc.reader import CdcReader
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.lag import LagReader
from ringlog.stack.processes import choose
from ringlog_cdc.protocol.batch import WriteRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringlog_cdc.driver.job import CdcJob

IDLE_S = 6.0

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


def topic_ends(bootstrap: str, cluster: str | None = None) -> dict[str, int]:
    """Return topic to its records so far; of all topics of a cluster."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {
        name: found for name, found in admin.list_topics(timeout=30).topics.items() if name.startswith(f"{cluster}.")
    }
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(name, number): latest for name, found in topics.items() for number in found.partitions}
    ends: dict[str, int] = {}
    for place, found in admin.list_offsets(wanted).items():
        ends[place.topic] = ends.get(place.topic, 0) + found.result().offset
    return ends


def figures(port: int | None, prefix: str) -> dict[str, float]:
    """Return the metrics at a port, without the prefix of their names."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        pairs = (line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith(prefix))
        return {name.removeprefix(prefix): float(value) for name, value in pairs}


def served(job: CdcJob) -> dict[str, float]:
    """Return the metrics of a job."""
    return figures(job.metrics_port, "ringlog_cdc_")


def mutations(line: dict[str, object]) -> int:
    """Return the mutations of a batch's line."""
    return int(str(line["rows"]))


def test_a_reader_of_lags_counts_and_dates_what_waits(shop: World) -> None:
    topic = f"{shop.cluster}.mutations"
    shop.send(write(f"k{number}", number) for number in range(40))
    sent = shop.read("mutations")
    reader = LagReader(shop.bootstrap, topic)
    ends = {number: sum(item.partition == number for item in sent) for number in range(PARTITIONS)}
    for position in range(max(ends.values()) + 1):
        positions = {number: min(position, end) for number, end in ends.items()}
        waiting = [item for item in sent if item.offset >= positions[item.partition]]
        lag = reader.measure(positions)
        assert lag.records == len(waiting)
        assert lag.seconds is not None
        if waiting:
            oldest = min(item.appended for item in waiting)
            newest = max(item.appended for item in waiting)
            assert lag.seconds * 1e6 == pytest.approx(max(lag.at - oldest, newest - oldest, 0), abs=2e6)
            assert lag.seconds * 1e6 >= newest - oldest - 1_000
        else:
            assert lag.seconds == 0
    assert reader.measure({}).records == 40, "without a position, a partition counts from its first record"
    assert reader.measure({1: 0}, is_whole=False).records == ends[1]
    reader.close()


def test_records_of_aborted_transactions_have_no_age(shop: World) -> None:
    producer = Producer({"bootstrap.servers": shop.bootstrap, "transactional.id": shop.cluster})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{shop.cluster}.mutations", b"never", partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    reader = LagReader(shop.bootstrap, f"{shop.cluster}.mutations")
    lag = until(lambda: found if (found := reader.measure({})).records else None, "the end of the transaction")
    assert (lag.records, lag.seconds) == (2, 0), "the record and the mark of its transaction"
    reader.close()
    missing = LagReader(shop.bootstrap, f"{shop.cluster}.no-such-topic")
    with pytest.raises(TopicMissing):
        missing.measure({})
    missing.close()


def test_the_lag_is_true_while_a_batch_runs(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    held, perform = threading.Event(), None

    def waits(effect: WriteRows) -> object:
        held.wait(120)
        assert perform is not None
        return perform(effect)

    with stopping(start(shop, tmp_path, spark, metrics_port=0)) as job:
        perform = job.runner.driver.handlers[WriteRows]
        job.runner.driver.handlers[WriteRows] = waits
        shop.send(write(f"k{number}", number) for number in range(30))
        until(lambda: not job.runner.idle.is_set(), "a batch", job.writer.check)
        shop.send(write(f"k{number}", number) for number in range(50))
        until(lambda: served(job)["behind_offsets"] == 80, "the metric of the lag", job.writer.check)
        assert served(job)["behind_seconds"] > 0
        until(lambda: lines(tmp_path, "behind"), "a line about the lag", job.writer.check)
        held.set()
        until(job.is_idle, "all to be durable", job.writer.check)
        until(
            lambda: sum(int(str(line["rows"])) for line in lines(tmp_path, "batch")) == 80,
            "the lines",
            job.writer.check,
        )
        last = lines(tmp_path, "batch")[-1]
        assert (last["behind"], last["behind_seconds"]) == (0, 0)
        until(lambda: served(job)["behind_offsets"] == 0, "the metric to fall", job.writer.check)
    assert [line["reason"] for line in lines(tmp_path, "stopping")] == ["the job was asked to stop"]
    assert len(lines(tmp_path, "stopped")) == 1


def status(shop: World) -> dict[str, Any]:
    """Return the line of the writer in ``ringlog cdc status``, as text and JSON."""
    where = ["--bootstrap", shop.bootstrap, "--cluster", shop.cluster]
    (row,) = json.loads(CliRunner().invoke(app, ["cdc", "status", *where, "--json"]).output)["writers"]
    assert isinstance(row, dict)
    return row | {"text": CliRunner().invoke(app, ["cdc", "status", *where]).output}


def test_the_log_knows_the_lag_of_a_job_that_does_not_run(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    shop.send(write(f"k{number}", number) for number in range(20))
    run_to_idle(shop, tmp_path, spark)
    assert lines(tmp_path, "stopping")[0]["reason"] == "all mutations are durable"
    found = status(shop)
    assert (found["behind"], found["behind_seconds"], found["behind_unknown"]) == (0, 0, None)
    assert "nothing" in found["text"]

    shop.send(write(f"k{number}", number) for number in range(7))
    found = status(shop)
    assert (found["behind"], found["behind_unknown"]) == (7, None)
    assert found["behind_seconds"] >= 0
    assert "at most 7 mutations" in found["text"]

    run_to_idle(shop, tmp_path, spark)
    assert status(shop)["behind"] == 0


def test_an_idle_job_writes_less_than_a_record_each_second(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    """A job that always extended its lease would write two each second with this lead."""
    shop.apply(ChangeSettings((("cdc_horizon_lead_us", 1_000_000),)))
    with stopping(start(shop, tmp_path, spark)) as job:
        shop.send([write("k", 1)])
        until(job.is_idle, "all to be durable", job.writer.check)
        before, began = topic_ends(shop.bootstrap, shop.cluster), time.monotonic()
        until(lambda: time.monotonic() >= began + IDLE_S, "a while", job.writer.check)
        after, seconds = topic_ends(shop.bootstrap, shop.cluster), time.monotonic() - began
        grown = {name: end - before[name] for name, end in after.items() if end != before[name]}
        assert sum(grown.values()) <= seconds, grown


def test_a_reader_reports_what_it_has_not_delivered(log: CdcLog) -> None:
    story = Story(log)
    story.join(0)
    story.write(story.rows(0, 30))
    log.publish()
    with CdcReader(log.world.bootstrap, log.world.cluster, until_end=True) as reader:
        before = reader.lag()
        assert before.records == 30
        assert before.seconds is not None
        changes = iter(reader)
        for _ in range(10):
            next(changes)
        assert reader.lag().records == 20
        assert len(list(changes)) == 20
        assert (reader.lag().records, reader.lag().seconds) == (0, 0)


def test_apply_serves_its_lag(log: CdcLog, tmp_path: Path) -> None:
    story = Story(log)
    story.join(0)
    story.write(story.rows(0, 30))
    log.publish()
    (port,) = choose(1)
    where = ["--bootstrap", log.world.bootstrap, "--cluster", log.world.cluster, "--metrics-port", str(port)]
    command = [sys.executable, "-m", "ringlog.cli", "cdc", "apply", "--to", str(tmp_path / "copy.sqlite"), *where]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        found = until(lambda: found if (found := scraped(port)).get("changes_total") == 30 else None, "all changes")
        until(lambda: scraped(port).get("behind_offsets") == 0, "the lag")
        assert found["behind_unknown_seconds"] == 0
    finally:
        process.terminate()
        process.wait(60)


def scraped(port: int) -> dict[str, float]:
    """Return the metrics of a reader; none while it starts."""
    try:
        return figures(port, "ringlog_cdc_reader_")
    except OSError:
        return {}
