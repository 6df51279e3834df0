"""``make archives``: record the class archives of broker and Spark, unless those of these versions exist.

A small run of each covers the usual start: topics, a group, a transaction; a query, a stream, Arrow.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark import SparkContext

from ringlog.runtime.kafka.config import connection
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.stack.artifacts import jars
from ringlog.stack.commands import Stack
from ringlog.stack.java import BROKER, RECORD, SPARK, find_java, path_of, recording_path
from ringlog_cdc.driver.session import open_session

ENDS_S_MAX = 120.0
NAMES = (BROKER, SPARK)


def main() -> None:
    """Record the missing archives; the stack does not use an archive that cannot be recorded."""
    wanted, stamp = _versions(), path_of(BROKER).with_name("recorded.json")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    for name in NAMES:
        path_of(name).parent.mkdir(parents=True, exist_ok=True)
        recording_path(name).unlink(missing_ok=True)
    os.environ[RECORD] = "1"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as both:
        broker = both.submit(_broker, Path(folder) / "stack")
        _spark(Path(folder))
        broker.result()
    there = [name for name in NAMES if recording_path(name).is_file()]
    for name in there:
        recording_path(name).replace(path_of(name))
    stamp.write_text(wanted, encoding="utf-8")
    sizes = [f"{name} {path_of(name).stat().st_size >> 20} MiB" for name in there]
    print(f"archives: {', '.join(sizes) or 'none'}")


def _versions() -> str:
    java = find_java()
    assert java is not None, "`make setup` installs it"
    said = subprocess.run([java.path, "-version"], capture_output=True, text=True, check=True).stderr
    return json.dumps([java.path, said, [str(jar) for jar in jars("kafka")], pyspark.__version__])


def _broker(data: Path) -> None:
    stack = Stack(data)
    info = stack.up()
    try:
        servers = connection(info.bootstrap_servers, read_kafka_config(Path(info.kafka_config)).security)
        admin = AdminClient(servers)
        for made in admin.create_topics([NewTopic("records", 1, 1)]).values():
            made.result()
        producer = Producer({**servers, "transactional.id": "recorder"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("records", b"a record")
        producer.commit_transaction()
        consumer = Consumer({**servers, "group.id": "recorder", "auto.offset.reset": "earliest"})
        consumer.subscribe(["records"])
        consumer.poll(10)
        consumer.close()
    finally:
        stack.down()


def _spark(folder: Path) -> None:
    session = open_session("recorder", (), "local[2]", memory="1g", java_options="-XX:TieredStopAtLevel=1")
    gateway: Any = SparkContext._gateway

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def batch(frame: Any, _: int) -> None:
        frame.mapInArrow(same, frame.schema).groupBy("value").count().toPandas()

    (folder / "rows").mkdir()
    (folder / "rows" / "some.txt").write_text("a\nb\n", encoding="utf-8")
    rows = session.readStream.text(str(folder / "rows")).writeStream.foreachBatch(batch)
    query = rows.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(ENDS_S_MAX), "two lines take no minutes"
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(ENDS_S_MAX)


if __name__ == "__main__":
    main()
