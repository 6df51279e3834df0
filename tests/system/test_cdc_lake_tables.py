"""Tables of a lake: the files that a reader of one stream opens; generations and streams that follow the state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.cdc.bench import Bench
from tests.cdc.lake.test_lake import FIELDS, row
from tests.refusals import raises_code
from tests.system.cdc_world import now_us
from tests.system.test_cdc_lake import table_in

from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.values import replace
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.wire.records import encode_cdc_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


def with_first(state: ClusterState, epoch: int, **changes: Any) -> ClusterState:
    """Return the state with another first generation, at a later epoch."""
    first, *others = state.generations
    changed: Generation = replace(first, **changes)
    return replace(state, epoch=epoch, generations=(changed, *others))


def test_generations_and_streams_follow_the_state(spark: SparkSession, tmp_path: Path) -> None:
    from ringlog_cdc.lake.delta import DeltaTables
    from ringlog_cdc.lake.descriptions import Descriptions

    metadata, lake = MemoryLog(), tmp_path / "lake"
    with LogReplica(metadata) as replica:
        bench = Bench(metadata, replica, tmp_path / "bench")
        one = bench.world.state
        bench.world.join("n2", (1000,), now_us())
        two = bench.world.state
    first, second = (generation.timestamp for generation in two.generations)

    def rows(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in table_in(spark, lake, name).select(*columns).collect())

    def keeper() -> Descriptions:
        return Descriptions(DeltaTables(spark, "test"), str(lake), one.cluster_id)

    kept = keeper()
    assert kept.keep(one)
    assert not kept.keep(one)
    assert kept.keep(two)
    streams = [found for generation in two.generations for part in generation.ranges for found in part.streams]
    assert sorted(bytes(row[0]) for row in rows("cdc-streams", "cdc$stream_id")) == sorted(streams)
    assert rows("cdc-generations", "cdc$generation", "closed", "expired") == [(first, None, None), (second, None, None)]
    forgotten = size_of(two.generations[0])
    gone = with_first(
        two, two.epoch + 2, closed=two.epoch + 1, expired=two.epoch + 2, expired_at=77, ranges=(), forgotten=forgotten
    )
    assert kept.keep(gone)
    after = [(first, two.epoch + 1, 77), (second, None, None)]
    assert rows("cdc-generations", "cdc$generation", "closed", "expired") == after
    of_first = table_in(spark, lake, "cdc-streams").where(f"`cdc$generation` = {first}").select("expired").collect()
    assert {row[0] for row in of_first} == {77}
    assert len(of_first) == forgotten.streams
    # This is another driver with an older state.
    keeper().keep(two)
    assert rows("cdc-generations", "cdc$generation", "closed", "expired") == after
    marked = table_in(spark, lake, "cdc-streams").where("expired IS NOT NULL").select("cdc$generation", "expired")
    assert {tuple(found) for found in marked.collect()} == {(first, 77)}


def test_a_lake_is_of_one_cluster(spark: SparkSession, tmp_path: Path) -> None:
    from ringlog_cdc.errors import CdcError
    from ringlog_cdc.lake.delta import DeltaTables
    from ringlog_cdc.lake.identity import Identity
    from ringlog_cdc.lake.sink import Lake

    def lake(cluster: str, checkpoint: str) -> Lake:
        identity = Identity(cluster, "spark", checkpoint, str(tmp_path))
        return Lake(DeltaTables(spark, identity.author), identity)

    lake("one", "a").sign()
    lake("one", "a").sign()
    assert lake("one", "a").others() == []
    assert lake("one", "b").others() == ["ringlog/one/spark/a"]
    with raises_code(CdcError, "lake_of_another", match="another cluster"):
        lake("two", "a").others()


def test_a_lost_lake_is_not_created_again(spark: SparkSession, tmp_path: Path) -> None:
    from ringlog_cdc.errors import CdcError
    from ringlog_cdc.lake.delta import DeltaTables
    from ringlog_cdc.lake.identity import Made, identify
    from ringlog_cdc.lake.sink import Lake, LakeCommit

    root, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    checkpoint.mkdir()
    identity = identify(checkpoint, "one", "spark", str(root))
    assert identity is not None

    def lake() -> Lake:
        return Lake(DeltaTables(spark, identity.author), identity, Made(checkpoint, identity))

    def add(number: int, to: Lake | None = None, table_id: str = "first") -> None:
        found = row(source_offset=number)
        rows = spark.createDataFrame(
            [("shop.people", found.generation, -5, 0, bytearray(encode_cdc_row(found)))],
            "table string, generation bigint, token bigint, epoch bigint, value binary",
        )
        (to or lake()).add(rows, LakeCommit(number, {}), {"shop.people": [FIELDS]}, {"shop.people": table_id})

    with raises_code(CdcError, "lake_lost"):
        lake().check_signed()
    lake().sign()
    lake().check_signed()
    for number in (1, 2):
        add(number)
    assert table_in(spark, root, "shop/people_scylla_cdc_log").count() == 2
    running = lake()
    add(3, running)
    shutil.rmtree(root / "shop")
    for other in (running, None):
        with pytest.raises(CdcError, match="lost the table of") as refused:
            add(4, other)
        assert refused.value.code == "lake_lost"
    (mark,) = (checkpoint / "lake.tables").iterdir()
    assert str(mark) in refused.value.hint
    mark.unlink()
    add(4, running)
    assert table_in(spark, root, "shop/people_scylla_cdc_log").count() == 1
    # The table and its directory in the lake were dropped; another table has its name.
    shutil.rmtree(root / "shop")
    add(5, running, "second")
    assert table_in(spark, root, "shop/people_scylla_cdc_log").count() == 1
    running.check_there()
    shutil.rmtree(root)
    with raises_code(CdcError, "lake_lost", match="does not contain those writes"):
        running.check_there()


@pytest.mark.soak("generations and streams follow the state")
def test_a_reader_of_one_generation_and_stream_opens_only_its_files(spark: SparkSession, tmp_path: Path) -> None:
    from ringlog_cdc.lake.delta import DeltaTables
    from ringlog_cdc.lake.identity import Identity
    from ringlog_cdc.lake.sink import HEADS_TYPE, Lake, LakeCommit, heads

    old, new = 1_000, 2_000
    rows = [
        row(stream_id=stream(number % 50), generation=(old, new)[number % 2], source_offset=number)
        for number in range(400)
    ]
    values = spark.createDataFrame([(encode_cdc_row(one),) for one in rows], "value binary")
    lake = Lake(DeltaTables(spark, "a"), Identity("c", "w", "a", str(tmp_path)), rows_per_file=50)
    lake.add(values.mapInArrow(heads, HEADS_TYPE), LakeCommit(0, {}), {"shop.people": [FIELDS]}, {})
    path = str(tmp_path / "shop" / "people_scylla_cdc_log")
    whole = spark.read.format("delta").load(path)
    of_old = whole.where(f"`cdc$generation` = {old}")
    wanted = int.from_bytes(stream(4)[:8], "big", signed=True)
    one = of_old.where(f"`cdc$stream_token` = {wanted}")
    assert all(f"cdc$generation={old}" in name for name in of_old.inputFiles())
    assert 3 <= len(of_old.inputFiles()) < len(whole.inputFiles())
    assert len(one.inputFiles()) == 1
    for name in whole.inputFiles():  # Spark keeps the order of the tasks' rows
        file = pq.read_table(name.removeprefix("file://"))
        columns = (file.column(name).to_pylist() for name in ("cdc$stream_token", "cdc$source_offset"))
        places = [*zip(*columns, strict=True)]
        assert places == sorted(places)
    assert {bytes(found["cdc$stream_id"]) for found in one.collect()} == {stream(4)}
    assert one.count() == 400 // 50
    # Compaction as in the guide merges small files, and the rows stay the same.
    spark.sql(f"OPTIMIZE delta.`{path}` WHERE `cdc$generation` = {old} ZORDER BY (`cdc$stream_token`)")
    after = spark.read.format("delta").load(path)
    assert len(after.where(f"`cdc$generation` = {old}").inputFiles()) == 1
    assert sorted(found["cdc$source_offset"] for found in after.collect()) == list(range(400))


def stream(number: int) -> bytes:
    """Return a stream of some position of the ring."""
    return ((number * 2**57 - 2**62) % 2**64).to_bytes(8, "big") + bytes(8)
