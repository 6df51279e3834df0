"""The job with a lake: every row is in the topic and in its Delta table, once, whatever is killed or lost between."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.cdc_world import World, founded, now_us, until, write
from tests.system.test_cdc_kill import alive, driver, in_hand

from ringlog.cli.fencing import fence
from ringlog.kernel.commands.model import AlterTable, Column
from ringlog.runtime.context import Context
from ringlog.stack import StackInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

HOUR_US = 3_600_000_000
TOKENS = (-5_000_000_000_000_000_000, 0, 7_000_000_000_000_000_000)
Row = tuple[int, int, int, int, bytes]


@pytest.fixture
def shop(stack: StackInfo, cluster_name: str) -> Iterator[World]:
    with founded(stack.bootstrap_servers, cluster_name) as world:
        world.join("n1", TOKENS, now_us() - HOUR_US)
        world.schema()
        world.table("carts")
        yield world


def table_in(spark: SparkSession, lake: Path, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(lake / name))


def rows_in(spark: SparkSession, lake: Path, *names: str) -> Counter[Row]:
    """Identity and stream of each row of these tables, with how often it is there."""
    found: Counter[Row] = Counter()
    for name in names:
        columns = ("partition", "offset")
        rows = table_in(spark, lake, f"shop/{name}_scylla_cdc_log").select(
            *(f"cdc$source_{column}" for column in columns), "cdc$timestamp", "cdc$batch_seq_no", "cdc$stream_id"
        )
        found.update((*row[:4], bytes(row[4])) for row in rows.collect())
    return found


def rows_of_topic(world: World) -> Counter[Row]:
    return Counter(
        (row.source_partition, row.source_offset, row.timestamp, row.batch_seq_no, row.stream_id)
        for row in world.rows()
    )


def some(begin: int, end: int) -> Iterator[Any]:
    """Writes to two tables in turn."""
    for number in range(begin, end):
        yield write(f"customer-{number % 97}", number, table=("orders", "carts")[number % 2])


def test_killed_and_lost_checkpoints_leave_each_row_once_in_the_topic_and_in_the_lake(
    shop: World, spark: SparkSession, tmp_path: Path
) -> None:
    lake, first, second = tmp_path / "lake", tmp_path / "first", tmp_path / "second"
    shop.send(some(0, 2_000))
    with driver(shop, first, "--lake", str(lake)) as process:
        until(lambda: in_hand(first), "a batch in hand", lambda: alive(process, first))
        process.send_signal(signal.SIGKILL)
    killed_in = in_hand(first)
    with driver(shop, first, "--lake", str(lake)) as process:
        until(lambda: in_hand(first) > killed_in, "another batch in hand", lambda: alive(process, first))
        process.send_signal(signal.SIGKILL)
    shutil.rmtree(first)
    with driver(shop, second, "--lake", str(lake)) as process:
        assert process.wait(120) == 1
        said = (second / "output").read_text()
        assert "checkpoint_lost" in said
        assert "ringlog cdc fence --writer spark" in said
    context = Context(shop.bootstrap, shop.cluster, "")
    shop.apply(fence(context, shop.state.writers["spark"], "lost", None, "", "the test has killed it"))
    before = rows_of_topic(shop)
    shop.send(some(2_000, 2_250))
    shop.apply(AlterTable("shop", "orders", (Column("extra", "int"),)))
    shop.send(
        replace(item, cells=(*item.cells, type(item.cells[0])("extra", b"\0\0\0\5")))
        for item in (write("altered", number) for number in range(10))
    )
    with driver(shop, second, "--lake", str(lake), "--stop-when-idle") as process:
        assert process.wait(240) == 0, (second / "output").read_text()[-3000:]
    after = rows_of_topic(shop)
    mutations = {(item.partition, item.offset) for item in shop.read("mutations")}
    assert {row[:2] for row in after} == mutations
    assert len(after) == 2_260
    # What was there before the loss is as often there as it was; the rest is there once.
    assert all(count == before.get(row, 1) for row, count in after.items())
    found = rows_in(spark, lake, "orders", "carts")
    assert found == Counter(after.keys())
    extra = table_in(spark, lake, "shop/orders_scylla_cdc_log").groupBy("extra").count().collect()
    assert {row["extra"]: row["count"] for row in extra} == {None: 1_125, 5: 10}
    authors = table_in(spark, lake, "cdc-writers").collect()
    assert len({row["author"] for row in authors}) == 2
    streams = {bytes(row["cdc$stream_id"]) for row in table_in(spark, lake, "cdc-streams").collect()}
    assert {row[4] for row in found} <= streams
