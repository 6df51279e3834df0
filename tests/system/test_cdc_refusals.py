"""The CDC job with hostile records, late writes, changed topics and lost plans.

A checkpoint may be lost in whole or in part, and a second job may start: decisions remain, and no row is logged twice.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.ending import stopping
from tests.refusals import raises_code
from tests.system.cdc_world import HOUR_US, MORE_TOKENS, World, founded_shop, now_us, until, write
from tests.system.test_cdc_job import forget_last_batch, identity, lines, run_to_idle, start
from tests.system.topic_settings import alter

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.log.errors import TopicMisconfigured
from ringlog.operator.fencing import fence
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.records import VALUE_KEPT, encode_mutation
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

ZEROS = bytes(8_000_000)


def send_compressed(world: World, value: bytes) -> None:
    """Send a record that the broker accepts because it is small when compressed."""
    producer = Producer(
        {**QUIET, "bootstrap.servers": world.bootstrap, "message.max.bytes": 2 * len(value), "compression.type": "gzip"}
    )
    producer.produce(f"{world.cluster}.mutations", value, b"raw", 0)
    assert producer.flush(30) == 0


def give_up(world: World, values: Iterable[bytes]) -> None:
    """Send records in a transaction and abort it."""
    producer = Producer({**QUIET, "bootstrap.servers": world.bootstrap, "transactional.id": world.cluster})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(f"{world.cluster}.mutations", value, b"k", 0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)


def test_hostile_records_and_topics(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    second = shop.join("n2", MORE_TOKENS, now_us() - HOUR_US // 2)
    shop.send([write("first", 1)])
    give_up(shop, [encode_mutation(write("never", 1)), b"never"])
    send_compressed(shop, ZEROS)
    shop.send_raw(encode_mutation(write("k", 1, partition_key=(b"",) * 200_000)))
    shop.send([write("k", 1, second.timestamp - 1), write("last", 1)])
    run_to_idle(shop, tmp_path, spark)

    assert {row.partition_key for row in shop.rows()} == {(b"first",), (b"last",)}
    letters = {letter.reason: letter for letter in shop.letters()}
    assert len(shop.letters()) == 3
    assert set(letters) == {"unreadable", "bad_key", "timestamp_too_old"}
    cut = letters["unreadable"]
    assert cut.value == ZEROS[:VALUE_KEPT]
    assert f"{VALUE_KEPT} of {len(ZEROS)} bytes" in cut.detail
    assert hashlib.sha256(ZEROS).hexdigest() in cut.detail

    admin = AdminClient({**QUIET, "bootstrap.servers": shop.bootstrap})
    alter(admin, f"{shop.cluster}.mutations", "message.timestamp.type", "CreateTime")
    with pytest.raises(TopicMisconfigured, match="timestamp"):
        start(shop, tmp_path, spark)
    alter(admin, f"{shop.cluster}.mutations", "message.timestamp.type", "LogAppendTime")
    more_partitions(admin, f"{shop.cluster}.cdc")
    with pytest.raises(CdcError) as caught:
        start(shop, tmp_path, spark)
    assert caught.value.code == "partitions_changed"


def more_partitions(admin: AdminClient, topic: str) -> None:
    """Double the number of partitions."""
    count = 2 * len(admin.list_topics(topic, timeout=60).topics[topic].partitions)
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
    until(lambda: len(admin.list_topics(topic, timeout=60).topics[topic].partitions) == count, "the partitions")


@pytest.mark.soak("tests/kernel/generations, and the simulator changes leeways")
def test_more_lateness_opens_nothing(stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path) -> None:
    with founded_shop(stack.bootstrap_servers, cluster_name, {"cdc_leeway_us": 0}) as world:
        second = world.join("n2", MORE_TOKENS, now_us() - HOUR_US // 2)
        # Each partition has a record after the start of the second generation, so no clock decides whether that has
        # passed.
        count = world.send(write(f"customer-{number}", number, now_us() - 1_000_000) for number in range(100))
        with stopping(start(world, tmp_path, spark)) as job:
            until(
                lambda: world.state.writers["spark"].low_watermark == second.timestamp,
                "the first generation to be closed",
                job.writer.check,
            )
            world.apply(ChangeSettings((("cdc_leeway_us", HOUR_US),)))
            world.send([write("late", 1, second.timestamp - 1), write("new", 1, second.timestamp)])
            until(lambda: len(world.read("cdc")) == count + 1, "the row", job.writer.check)
            until(job.is_idle, "all to be durable", job.writer.check)
        letters = world.read("dead-letters")
        assert [letter.reason for letter in world.letters()] == ["timestamp_too_old"]
        forget_last_batch(tmp_path)
        run_to_idle(world, tmp_path, spark)
        assert {item.value for item in world.read("dead-letters")} == {letters[0].value}
        assert len({row.source_offset for row in world.rows() if row.partition_key == (b"late",)}) == 0


def test_open_plans_are_completed(stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path) -> None:
    from ringlog_cdc.driver.batch import BatchRunner

    def dies(*_: object) -> None:
        raise RuntimeError("killed before the first row")

    settings = {"cdc_leeway_us": 1_000_000, "cdc_horizon_lead_us": 1_000_000}
    with founded_shop(stack.bootstrap_servers, cluster_name, settings) as world:
        first = world.state.generations[0]
        count = world.send(write(f"customer-{number % 37}", number) for number in range(100))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchRunner, "_write_rows", dies)
            with pytest.raises(RuntimeError, match="killed"):
                run_to_idle(world, tmp_path, spark)
        assert world.read("cdc") == []
        operation = world.begin_join("n2", MORE_TOKENS)
        world.prepare_generation()

        job = start(world, tmp_path, spark)
        try:
            # The generation is prepared when the job starts: planned rows are written, new mutations wait.
            until(lambda: len(world.read("cdc")) == count, "the planned rows", job.writer.check)
            until(lambda: world.state.writers["spark"].horizon < now_us(), "the clock to pass the horizon")
            world.send(write(f"customer-{number % 37}", number) for number in range(100, 150))
            until(lambda: lines(tmp_path, "held"), "a held batch", job.writer.check)
            lowered = world.state.writers["spark"].horizon
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BatchRunner, "_write_rows", dies)
                second = world.commit_generation(lowered + 1)
                world.finish(operation)
                with pytest.raises(RuntimeError, match="killed"):
                    until(lambda: False, "the end of the job", lambda: _raise_failure(job.runner))
        finally:
            with pytest.raises(RuntimeError, match="killed"):
                job.stop()
        assert len(world.read("cdc")) == count
        world.join("n3", (42,), world.state.writers["spark"].horizon + 1)
        run_to_idle(world, tmp_path, spark)
        assert Counter(row.generation for row in world.rows()) == {first.timestamp: 100, second.timestamp: 50}
        assert world.letters() == []


def _raise_failure(runner: object) -> None:
    failure = getattr(runner, "failure", None)
    if failure is not None:
        raise failure


def test_skipped_rows_stay_skipped(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    # The table has no log yet; writes of another table are in between.
    shop.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(80))
    run_to_idle(shop, first, spark)
    shop.alter(AlterTable("shop", "quiet", (), CdcOptions(enabled=True)))
    shop.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(80, 120))
    run_to_idle(shop, first, spark)
    before = Counter(identity(row) for row in shop.rows())
    assert len(before) == 80
    assert sum(place.offset for place in shop.state.writers["spark"].decided) >= 80

    with raises_code(CdcError, "source_in_use", match="spark logs"):
        run_to_idle(shop, other, spark, writer="other")
    assert not (other / "claim.json").exists()
    assert "other" not in shop.state.writers

    shutil.move(first / "plans", tmp_path / "plans")
    incarnation = shop.state.writers["spark"].incarnation
    with raises_code(CdcError, "plan_chain_broken"):
        run_to_idle(shop, first, spark)
    assert shop.state.writers["spark"].incarnation == incarnation

    context = ClusterContext(shop.bootstrap, shop.cluster, "")
    shop.apply(fence(context, shop.state.writers["spark"], "lost", None, "", "the test has lost it"))
    shop.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(120, 140))
    run_to_idle(shop, second, spark)
    after = Counter(identity(row) for row in shop.rows())
    assert {place: after[place] for place in before} == before
    assert len(after) == 100
    assert shop.letters() == []
