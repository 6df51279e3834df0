"""The CDC job with a lake compared with bare copies into Delta tables, in one run.

    python bench/cdc_lake.py [WRITES [BATCH]]

Starts a broker and one Spark session with Delta, and fills a mutations topic with WRITES (2,000,000) writes of 100-byte
values. Four jobs then move all of them in batches of BATCH (500,000), without pauses. The first query appends keys and
values to a Delta table. The second one writes them to a topic and, from memory, to a table. Then the CDC job runs
without a lake, and with one. Copies and the job with a lake run once before, to warm up.

Rows are counted at their last destination: in the commits of the Delta table, or else in the topic. Measurement and
warm-up are as in ``cdc_job.py``.

Run it from a checkout: it builds its clusters as the system tests do.
"""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.cdc_job import Measured, cluster, fill, mutations, remove_topics, rows_of, running, started, watch
from confluent_kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.system.cdc_world import World

from ringlog.log.kafka.topics import admin_client
from ringlog.stack import StackInfo
from ringlog_cdc.lake.delta import log_path
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.sink import sink_options

WRITES, BATCH = 2_000_000, 500_000
TOKENS = 10
TABLE = "shop.orders"
SINK_PARTITIONS = 8


class LakeRows:
    """Number of rows added to a Delta table: the sum over its commits, each read once."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._commits = 0
        self._rows = 0

    def __call__(self) -> int:
        """Return the number of rows now; 0 without a table."""
        while (commit := self._log / f"{self._commits:020}.json").is_file():
            for line in commit.read_text(encoding="utf-8").splitlines():
                added = json.loads(line).get("add")
                self._rows += json.loads(added["stats"])["numRecords"] if added else 0
            self._commits += 1
        return self._rows


def main() -> None:
    """Measure and print."""
    writes = int(sys.argv[1]) if len(sys.argv) > 1 else WRITES
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else BATCH
    with started(lake=True) as (info, session, folder):
        _measure_all(info, session, folder, writes, batch)


def _measure_all(info: StackInfo, session: SparkSession, folder: Path, writes: int, batch: int) -> None:
    print(f"{writes:,} writes, batches of {batch:,}")
    print(
        f"{'job':28} {'rows/s':>9} {'of a copy':>9} {'of both':>9} {'us a row':>9} {'of broker':>9} "
        f"{'MiB at 1/3':>10} {'at the end':>10}"
    )
    bare: list[Measured] = []
    with cluster(info, TOKENS) as world:
        fill(world, writes)
        for both in (False, True):
            _copied(world, session, folder, writes, batch, both)  # warms connector and Delta for all
        for name, both in (("bare copy to Delta", False), ("bare copy to both", True)):
            bare.append(_copied(world, session, folder, writes, batch, both))
            _show(name, bare[-1], bare)
        _show("CDC, topic only", _logged(world, session, folder, writes, batch, None), bare)
    for lake in ("warming", "lake"):
        with cluster(info, TOKENS) as world:
            fill(world, writes)
            found = _logged(world, session, folder, writes, batch, folder / lake)
    _show("CDC, topic and lake", found, bare)


def _show(name: str, found: Measured, bare: list[Measured]) -> None:
    shares = [f"{found.rows_s / other.rows_s:9.2f}" for other in bare] + [" " * 9] * (2 - len(bare))
    times = f"{found.broker_us + found.job_us:9.2f} {found.broker_us:9.2f}"
    print(f"{name:28} {found.rows_s:9,.0f} {' '.join(shares)} {times} {found.third:10,} {found.end:10,}", flush=True)


def _copied(world: World, session: SparkSession, folder: Path, writes: int, batch: int, both: bool) -> Measured:
    """All mutations to a separate Delta table, unchanged; before it, with ``both``, to a topic."""
    name = f"copy-{uuid.uuid4().hex[:8]}"
    table = folder / f"{name}-table"
    rows = mutations(world, session, batch)
    writer: Any = rows.writeStream.option("checkpointLocation", str(folder / name)).trigger(processingTime="0 seconds")
    if both:
        admin = admin_client(world.bootstrap)
        admin.create_topics([NewTopic(name, SINK_PARTITIONS, 1)])[name].result(30)
        query = writer.foreachBatch(_to_both(world, name, table)).start()
    else:
        query = writer.format("delta").start(str(table))
    try:
        return watch(folder, str(table), LakeRows(table), writes)
    finally:
        query.stop()
        shutil.rmtree(table)
        if both:
            remove_topics(world.bootstrap, name)


def _to_both(world: World, topic: str, table: Path) -> Callable[[DataFrame, int], None]:
    def written(frame: DataFrame, _: int) -> None:
        kept = frame.persist()
        try:
            (
                kept.withColumn("topic", F.lit(topic))
                .write.format("kafka")
                .options(**sink_options(world.bootstrap))
                .save()
            )
            kept.write.format("delta").mode("append").save(str(table))
        finally:
            kept.unpersist()

    return written


def _logged(world: World, session: SparkSession, folder: Path, writes: int, batch: int, lake: Path | None) -> Measured:
    """Write all mutations as rows of the CDC topic, and of the lake if there is one."""
    settings = JobSettings(
        world.bootstrap,
        world.cluster,
        folder / world.cluster,
        max_offsets_per_trigger=batch,
        trigger_seconds=0.0,
        direct=True,
        lake=None if lake is None else str(lake),
    )
    with running(settings, session) as job, rows_of(world, settings.sink_topic) as in_topic:
        if lake is None:
            return watch(folder, settings.sink_topic, in_topic, writes, job.writer.check)
        table = Path(log_path(str(lake), TABLE))
        found = watch(folder, str(table), LakeRows(table), writes, job.writer.check)
        assert in_topic() == writes
        return found


if __name__ == "__main__":
    main()
