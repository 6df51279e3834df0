"""A broker is down: offset requests wait for it, and the job continues; after the deadline they fail."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.ending import stopping, taking_down
from tests.plain_stack import plain_stack
from tests.system.cdc_world import World, founded, founded_shop, until, write
from tests.system.test_cdc_job import lines, start
from tests.system.test_cdc_lag import served

from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.topics import admin_client
from ringlog.stack import Stack
from ringlog_cdc.errors import CdcError, StopRequested
from ringlog_cdc.protocol.batch import WriteRows
from ringlog_cdc.topics.source import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a stack for these tests only, so that no other test loses its broker."""
    with taking_down(plain_stack(tmp_path_factory.mktemp("away"))) as stack:
        stack.up("quick")
        yield stack


def kill_broker(stack: Stack) -> None:
    """Kill the broker; it stays down until the stack is started again."""
    os.kill(stack.up("quick").broker_pid, signal.SIGKILL)
    until(lambda: not stack.status().broker.running, "the broker to be away")


@pytest.mark.soak("the job that goes on when the broker is back; the stop in the middle of a batch")
def test_offset_requests_wait_until_the_deadline_or_a_stop(own: Stack, cluster_name: str) -> None:
    info = own.up("quick")
    stopping = threading.Event()
    patient = Offsets(info.bootstrap_servers)
    hasty, stopped = Offsets(info.bootstrap_servers, patience_s=0.5), Offsets(info.bootstrap_servers, stopping)
    with founded(info.bootstrap_servers, cluster_name) as world:
        world.send([])
        topic = f"{cluster_name}.mutations"
        before = patient.ends(topic)
        assert before == hasty.ends(topic) == stopped.ends(topic)
        with pytest.raises(CdcError, match="topic_missing"):
            hasty.ends(f"{cluster_name}.no-such-topic")
        kill_broker(own)
        with pytest.raises(LogUnavailable, match=topic):
            hasty.later(topic, 0)
        stopping.set()
        with pytest.raises(StopRequested):
            stopped.begins(topic)
        found: list[dict[int, int]] = []
        with capture_logs() as told:
            waiting = threading.Thread(target=lambda: found.append(patient.ends(topic)))
            waiting.start()
            until(lambda: [line for line in told if line["event"] == "broker_away"], "somebody to wait")
            own.up("quick")
            waiting.join(90)
        assert found == [before]
        events = [line["event"] for line in told if line["event"].startswith("broker_")]
        assert events == ["broker_away", "broker_answers_again"] * (len(events) // 2)
    for one in (patient, hasty, stopped):
        one.close()


@pytest.fixture
def shop(own: Stack, cluster_name: str) -> Iterator[World]:
    """A cluster for a job on that stack."""
    with founded_shop(own.up("quick").bootstrap_servers, cluster_name) as made:
        yield made


def test_a_job_survives_a_broker_outage(own: Stack, shop: World, tmp_path: Path, spark: SparkSession) -> None:
    with stopping(start(shop, tmp_path, spark)) as job:
        shop.send([write("before", 1)])
        until(lambda: len(shop.rows()) == 1, "the first row")
        with capture_logs() as told:
            kill_broker(own)
            asked = threading.Thread(target=job.is_idle)
            asked.start()
            until(lambda: [line for line in told if line["event"] == "broker_away"], "the job to wait")
            own.up("quick")
            asked.join(90)
        shop.send([write("after", 2)])
        until(lambda: len(shop.rows()) == 2, "the row after it", job.writer.check)
        job.writer.check()


def test_a_frozen_broker_is_reported_and_its_lag_is_unknown(
    own: Stack, shop: World, tmp_path: Path, spark: SparkSession
) -> None:
    broker = own.up("quick").broker_pid
    with stopping(start(shop, tmp_path, spark, metrics_port=0)) as job:
        shop.send([write("before", 1)])
        until(lambda: len(shop.rows()) == 1, "the first row")
        os.kill(broker, signal.SIGSTOP)
        try:
            (away,) = until(lambda: lines(tmp_path, "broker_away"), "the line", job.writer.check)
            assert away["broker"] == shop.bootstrap
            assert isinstance(away["since"], int)
            until(lambda: isnan(served(job)["behind_offsets"]), "the lag to be unknown", job.writer.check)
            assert served(job)["behind_unknown_seconds"] > 0
        finally:
            os.kill(broker, signal.SIGCONT)
        back = until(lambda: lines(tmp_path, "broker_answers_again"), "the line", job.writer.check)
        assert back[0]["since"] == away["since"]
        until(lambda: served(job)["behind_unknown_seconds"] == 0, "the lag to be known", job.writer.check)


@pytest.mark.soak("the driver that is asked to stop in the middle of a batch")
def test_a_stop_does_not_wait_for_a_broker(own: Stack, shop: World, tmp_path: Path, spark: SparkSession) -> None:
    job = start(shop, tmp_path, spark)
    shop.send([write("before", 1)])
    until(lambda: len(shop.rows()) == 1, "the first row")
    perform = job.runner.driver.handlers[WriteRows]

    def without_broker(effect: WriteRows) -> object:
        kill_broker(own)
        return perform(effect)

    job.runner.driver.handlers[WriteRows] = without_broker
    shop.send([write("after", 2)])
    until(lambda: not own.status().broker.running, "the broker to be away in the middle of a batch")
    stopped = threading.Thread(target=job.stop, daemon=True)
    stopped.start()
    stopped.join(120)
    assert not stopped.is_alive(), "a stop waits for a dead broker"
    told = [json.loads(line) for line in (job.settings.checkpoint / "progress.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in told if line["event"] == "given_up"] == [job.runner.batch]
    own.up("quick")
    again = start(shop, tmp_path, spark)
    until(lambda: len(shop.rows()) == 2, "the row that was given up", again.writer.check)
    again.stop()
    assert len(shop.rows()) == 2


def test_a_topic_lost_in_a_batch_ends_a_job(own: Stack, shop: World, tmp_path: Path, spark: SparkSession) -> None:
    """A producer would wait for the topic forever."""
    job = start(shop, tmp_path, spark)
    perform, sink = job.runner.driver.handlers[WriteRows], job.settings.sink_topic
    admin = admin_client(shop.bootstrap)

    def without_topic(effect: WriteRows) -> object:
        admin.delete_topics([sink])[sink].result()
        return perform(effect)

    job.runner.driver.handlers[WriteRows] = without_topic
    shop.send([write("row", 1)])
    with pytest.raises(CdcError, match=f"topic {sink} was deleted") as ended:
        job.wait()
    assert ended.value.code == "topic_missing"
    job.stop()
