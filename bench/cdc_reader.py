"""Readers of the CDC log compared with a bare count of its topic: rows per second, and shares, in one run.

    python bench/cdc_reader.py [ROWS] [--json]

Starts a broker and one local Spark session, and fills the CDC topic of a cluster with ROWS (300,000) rows of 100-byte
values under one generation. These readers read all of them: ``spark.read.format("kafka")`` that counts the records; the
``ringlog-cdc`` data source as a batch, with one task and with two, and as a stream (batches of 100,000); the plain
client in one process. Rows of the data source go to Spark's ``noop`` sink: every column is decoded and crosses to the
JVM. ``--json`` prints the shares as the last line.

Run it from a checkout: it builds its clusters as the system tests do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from tests.plain_stack import plain_stack
from tests.system.cdc_log import CdcLog
from tests.system.cdc_world import founded, now_us

from ringlog.client.cdc import CdcReader
from ringlog.kernel.values import replace
from ringlog.log.kafka.topics import topic_name
from ringlog.stack import StackInfo
from ringlog.stack.artifacts import spark_jars
from ringlog.wire.records import Cell
from ringlog_cdc import read_cdc
from ringlog_cdc.driver.session import open_session

ROWS = 300_000
KEYS = 10_000
STREAMS_OF = tuple(-(2**63) + 1 + 2**64 // 64 * number for number in range(64))
TABLE = "shop.orders"

Where = tuple[str, str, str]
"""Brokers, cluster, table."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ringlog-bench-"))
    stack = plain_stack(folder / "stack")
    try:
        found = _measure_all(stack.up("quick"), folder, chosen.rows)
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)
    bare = next(iter(found.values()))
    if chosen.json:
        print(json.dumps({name: round(rate / bare, 3) for name, rate in found.items()}))


def _measure_all(info: StackInfo, folder: Path, rows: int) -> dict[str, float]:
    """Return rows per second by reader. The bare count is the first one."""
    found: dict[str, float] = {}
    name = f"b{uuid.uuid4().hex[:10]}"
    with founded(info.bootstrap_servers, name) as world:
        world.join("n1", STREAMS_OF, now_us() - 60_000_000)
        world.schema()
        log = CdcLog(world)
        _fill(log, rows)
        log.publish()
        where = (info.bootstrap_servers, name, TABLE)
        print(f"{rows:,} rows")
        print(f"{'reader':36} {'rows/s':>9} {'of a bare count':>15}")
        _by_spark(found, where, folder, rows, 2)
        _by_spark(found, where, folder, rows, 1)
        _note(found, "plain client", _timed(rows, lambda: _iterated(where, rows)))
    return found


def _by_spark(found: dict[str, float], where: Where, folder: Path, rows: int, cores: int) -> None:
    """Run the Spark readers with this number of tasks at a time. Bare count and stream run once, with the first one."""
    tasks = f"{cores} task{'s' if cores > 1 else ''}"
    session = open_session("ringlog-bench", spark_jars(), f"local[{cores}]")
    try:
        _written(read_cdc(session, *where).limit(1))  # the first Python worker is slow to start
        if not found:
            _bare(session, where, rows)  # so is the first look of the connector
            _note(found, f"bare count, {tasks}", _timed(rows, lambda: _bare(session, where, rows)))
            followed = _timed(rows, lambda: _followed(session, where, folder, rows))
            _note(found, f"ringlog-cdc, stream, {tasks}", followed)
        batch = _timed(rows, lambda: _written(read_cdc(session, *where)))
        _note(found, f"ringlog-cdc, batch, {tasks}", batch)
    finally:
        session.stop()


def _fill(log: CdcLog, rows: int) -> None:
    """Rows of writes to ``KEYS`` partition keys in turn, as one writer adds them."""
    start = now_us() - 30_000_000
    cell = Cell("note", os.urandom(50).hex().encode())
    kept = [log.row(f"customer-{number}", number, start) for number in range(KEYS)]
    log.write(
        replace(
            kept[number % KEYS],
            source_offset=number,
            time=kept[number % KEYS].time[:8] + number.to_bytes(8, "big"),
            timestamp=start,
            cells=(cell,),
            deleted=(),
        )
        for number in range(rows)
    )


def _bare(session: SparkSession, where: Where, rows: int) -> None:
    options = {"kafka.bootstrap.servers": where[0], "kafka.isolation.level": "read_committed"}
    options["subscribe"] = topic_name(where[1], "cdc")
    assert session.read.format("kafka").options(**options).load().count() == rows


def _written(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _followed(session: SparkSession, where: Where, folder: Path, rows: int) -> None:
    seen: list[int] = []
    query = (
        read_cdc(session, *where, stream=True)
        .writeStream.foreachBatch(lambda frame, _: seen.append(frame.count()))
        .option("checkpointLocation", str(folder / "followed"))
        .start()
    )
    while sum(seen) < rows:
        assert query.exception() is None, query.exception()
        time.sleep(0.05)
    query.stop()
    assert sum(seen) == rows


def _iterated(where: Where, rows: int) -> None:
    with CdcReader(where[0], where[1], tables=[where[2]], until_end=True) as reader:
        assert sum(len(change.rows) for change in reader) == rows


def _timed(rows: int, work: Callable[[], None]) -> float:
    """Rows a second."""
    began = time.perf_counter()
    work()
    return rows / (time.perf_counter() - began)


def _note(found: dict[str, float], name: str, rate: float) -> None:
    found[name] = rate
    print(f"{name:36} {rate:9,.0f} {rate / next(iter(found.values())):15.2f}", flush=True)


if __name__ == "__main__":
    main()
