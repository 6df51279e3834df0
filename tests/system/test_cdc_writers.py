"""Two Spark queries write the log of one cluster, each from its own topic: a switch, and its sealed generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.ending import stopping
from tests.system.cdc_world import MORE_TOKENS, PARTITIONS, World, founded_shop, now_us, until, write
from tests.system.test_cdc_job import lines

from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.generations.acceptance import stream_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.protocol.submission.results import RejectedResult
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.records import CdcRow, encode_mutation, mutation_key
from ringlog_cdc.settings import JobSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringlog_cdc.driver.job import CdcJob

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

OTHERS = "others"


class OtherSource(JobSettings):
    """Settings of a job with a source topic other than the cluster's mutations."""

    @property
    def source_topic(self) -> str:
        """Return a topic that belongs to this test."""
        return topic_name(self.cluster, OTHERS)


@contextmanager
def running(
    stack: StackInfo, cluster: str, folder: Path, spark: SparkSession, kind: type[JobSettings], writer: str
) -> Iterator[CdcJob]:
    """Run a job until the end of the block."""
    from ringlog_cdc.driver.job import CdcJob

    settings = kind(stack.bootstrap_servers, cluster, folder / writer, writer, trigger_seconds=0.1, direct=True)
    with stopping(CdcJob(settings, spark).start()) as job:
        yield job


def send_others(world: World, first: int, count: int) -> None:
    """Write to the other topic."""
    producer = Producer({**QUIET, "bootstrap.servers": world.bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        name = f"other-{number % 37}"
        key = mutation_key("shop", "orders", name.encode())
        producer.produce(
            topic_name(world.cluster, OTHERS), encode_mutation(write(name, number)), key, number % PARTITIONS
        )
    assert producer.flush(30) == 0


def count_of(rows: list[CdcRow], suffix: str) -> int:
    """Return the number of rows from that topic."""
    return sum(row.source_topic.endswith(f".{suffix}") for row in rows)


def test_two_queries_switch_once(stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path) -> None:
    with founded_shop(stack.bootstrap_servers, cluster_name, {"cdc_leeway_us": 1_000_000}) as world:
        first = world.state.generations[0]
        admin = admin_client(stack.bootstrap_servers)
        name = topic_name(cluster_name, OTHERS)
        settings = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics([NewTopic(name, PARTITIONS, 1, config=settings)])[name].result(30)
        with running(stack, cluster_name, tmp_path, spark, JobSettings, "one") as one:
            with running(stack, cluster_name, tmp_path, spark, OtherSource, "two") as two:

                def check() -> None:
                    one.writer.check()
                    two.writer.check()

                world.send(write(f"customer-{number % 37}", number) for number in range(100))
                send_others(world, 0, 100)
                until(lambda: len(world.read("cdc")) == 200, "the rows of both", check)
                operation = world.begin_join("n2", MORE_TOKENS)
                world.prepare_generation()
                until(lambda: all(low < now_us() for low in horizons(world)), "both horizons to be lowered", check)
                world.send(write(f"customer-{number % 37}", number) for number in range(100, 200))
                send_others(world, 100, 100)
                until(lambda: all(lines(tmp_path / name, "held") for name in ("one", "two")), "both to hold", check)
                assert len(world.read("cdc")) == 200
            # The second query is stopped when the generation is committed, while its writes are held.
            second = world.commit_generation(now_us())
            world.finish(operation)
            world.send(write(f"customer-{number % 37}", number) for number in range(200, 300))
            until(lambda: count_of(world.rows(), "mutations") == 300, "the rows of the first", one.writer.check)
            passed(world, "one", second.timestamp, one.writer.check)
            answer = world.author.submit(CloseCdcGeneration(first.id))
            assert isinstance(answer, RejectedResult)
            assert answer.code == "writers_behind"
            send_others(world, 200, 100)
            with running(stack, cluster_name, tmp_path, spark, OtherSource, "two") as two:
                until(lambda: count_of(world.rows(), OTHERS) == 300, "the rows of the second", two.writer.check)
                passed(world, "two", second.timestamp, two.writer.check)
            world.apply(CloseCdcGeneration(first.id))
        generations = {first.timestamp: first, second.timestamp: second}
        rows = world.rows()
        assert len({(row.source_topic, row.source_partition, row.source_offset) for row in rows}) == len(rows) == 600
        for row in rows:
            assert row.generation == max(start for start in generations if start <= row.timestamp)
            assert row.stream_id == stream_of(generations[row.generation], token_of(row.partition_key[0]))


def horizons(world: World) -> list[int]:
    """Return the write leases of all writers."""
    return [writer.horizon for writer in world.state.writers.values()]


def passed(world: World, writer: str, start: int, check: Callable[[], None]) -> None:
    """Wait until a writer's low-watermark is the start of a generation."""
    until(lambda: world.state.writers[writer].low_watermark == start, f"{writer} to be through", check)
