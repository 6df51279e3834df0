"""Latency of the CDC job under a trickle of writes: from the producer's call to the row at a plain consumer.

    python bench/cdc_latency.py [SECONDS [ROWS_PER_SECOND [TRIGGER_SECONDS]]]

Starts a broker and one Spark session, and sends ROWS_PER_SECOND (10) writes for SECONDS (60) to a table without images.
The first third warms up the compilers and does not count. The bench prints the median and the 99th percentile of the
latency, and the medians of the steps of a batch as Spark and the job report them. Run it on an idle machine: a batch
takes a few hundred milliseconds of two cores.

Run it from a checkout: it builds its cluster as the system tests do.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from tests.plain_stack import plain_stack
from tests.system.cdc_world import World, founded_shop, now_us, write

from ringlog.log.kafka.topics import topic_name
from ringlog.runtime.kafka.config import connection
from ringlog.stack.artifacts import spark_jars
from ringlog.wire.records import decode_cdc_row
from ringlog_cdc.driver.job import CdcJob
from ringlog_cdc.driver.session import open_session
from ringlog_cdc.settings import JobSettings

SECONDS, RATE, TRIGGER_S = 60.0, 10.0, 0.5


class Latencies(threading.Thread):
    """A consumer of the CDC topic: (time of the write, latency in seconds) of each row."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.found: list[tuple[int, float]] = []
        self.over = threading.Event()
        self._config = connection(bootstrap) | {"group.id": "latency", "fetch.wait.max.ms": 20}
        self._topic = topic

    def run(self) -> None:
        with closing(Consumer(self._config)) as consumer:
            partitions = consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
            consumer.assign([TopicPartition(self._topic, number, 0) for number in partitions])
            while not self.over.is_set():
                for message in consumer.consume(1_000, 0.05):
                    sent = decode_cdc_row(message.value() or b"").timestamp
                    self.found.append((sent, (now_us() - sent) / 1e6))


def measure(world: World, session: SparkSession, folder: Path, seconds: float, rate: float, trigger: float) -> None:
    """Run the job under the trickle, and print the figures."""
    settings = JobSettings(world.bootstrap, world.cluster, folder / "checkpoint", trigger_seconds=trigger, direct=True)
    rows = Latencies(world.bootstrap, topic_name(world.cluster, "cdc"))
    rows.start()
    job = CdcJob(settings, session).start()
    count, began = 0, time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if count <= (now - began) * rate:
            count += world.send([write(f"k{count % 97}", count)])
        else:
            time.sleep(0.005)
    while len(rows.found) < count:
        job.writer.check()
        time.sleep(0.05)
    job.stop()
    rows.over.set()
    first = min(sent for sent, _ in rows.found)
    counted = sorted(latency for sent, latency in rows.found if sent - first > seconds * 1e6 / 3)
    print(f"{count:,} writes, {len(counted):,} counted, trigger {trigger} s")
    print(f"latency: p50 {median(counted):.2f} s, p99 {quantiles(counted, n=100)[98]:.2f} s")
    print(f"steps of a batch, median ms: {json.dumps(steps(settings.checkpoint / 'progress.jsonl'))}")


def steps(path: Path) -> dict[str, float]:
    """Return the medians of the steps of a batch."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    batches = [line for line in lines if line["event"] == "batch" and "spark_ms" in line]
    for line in batches[len(batches) // 3 :]:
        for name, value in {**line["spark_ms"], "duration_ms": line["duration_ms"]}.items():
            times[name].append(value)
    return {name: round(median(found), 1) for name, found in sorted(times.items())}


def main(seconds: float = SECONDS, rate: float = RATE, trigger: float = TRIGGER_S) -> None:
    """Measure once."""
    with tempfile.TemporaryDirectory() as name:
        stack = plain_stack(Path(name) / "stack")
        session = open_session("latency", spark_jars(), "local[2]")
        try:
            bootstrap = stack.up("quick").bootstrap_servers
            with founded_shop(bootstrap, f"t{uuid.uuid4().hex[:8]}") as world:
                measure(world, session, Path(name), seconds, rate, trigger)
        finally:
            session.stop()
            stack.down()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
