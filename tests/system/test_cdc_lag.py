"""The lag that the CDC job, its readers and the log report, against an independent count of what is durable."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.ending import stopping
from tests.system.cdc_world import PARTITIONS, World, founded_shop, until, write
from tests.system.test_cdc_job import lines, start

from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.lag import LagReader
from ringlog.stack import StackInfo
from ringlog_cdc.protocol.batch import WriteRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringlog_cdc.driver.job import CdcJob

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def shop(stack: StackInfo, cluster_name: str) -> Iterator[World]:
    with founded_shop(stack.bootstrap_servers, cluster_name) as made:
        yield made


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


def served(job: CdcJob) -> dict[str, float]:
    """Return the metrics of a job."""
    with urllib.request.urlopen(f"http://127.0.0.1:{job.metrics_port}/metrics", timeout=60) as answer:
        pairs = (line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith("ringlog_cdc_"))
        return {name.removeprefix("ringlog_cdc_"): float(value) for name, value in pairs}


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
        until(lambda: sum(line["rows"] for line in lines(tmp_path, "batch")) == 80, "the lines", job.writer.check)
        last = lines(tmp_path, "batch")[-1]
        assert (last["behind"], last["behind_seconds"]) == (0, 0)
        until(lambda: served(job)["behind_offsets"] == 0, "the metric to fall", job.writer.check)
    assert [line["reason"] for line in lines(tmp_path, "stopping")] == ["the job was asked to stop"]
    assert len(lines(tmp_path, "stopped")) == 1
