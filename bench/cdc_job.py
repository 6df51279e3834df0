"""The CDC job compared with a bare copy by Structured Streaming from Kafka to Kafka, in one run.

    python bench/cdc_job.py [WRITES [BATCH]] [--mixed] [--json]

Starts a broker and one Spark session, and fills a mutations topic with WRITES (3,000,000) writes of 100-byte values.
Each of these jobs then moves all of them in batches of BATCH (500,000):

- a plain query that copies keys and values, with default settings
- the same with the settings of consumers and producers that the CDC job has (*tuned*)
- a copy through an Arrow function that changes nothing
- the CDC job under a generation of 1,000 streams, and under one of 100,000
- the CDC job for a table with preimages, which are rows too
- both copies again, because the speed of machines changes; CDC is compared with the mean of both runs

Rows are counted in the sink topic. Unmeasured jobs, and a third of the rows of each job, warm up the compilers. The
bench then prints rows per second, and microseconds of processor time per row including the broker. ``memory`` is the
total of driver, executor and their Python workers after a third of the rows and after all rows.

``parts`` is the greatest number of parts of a batch, without the first batch. Each part reads the whole batch from
Kafka. A job splits batches if a part takes over 20 seconds, so a busy machine also raises the processor time per row.
Compare two runs only if they have the same number of parts.

``--mixed`` compares the CDC job with itself instead: uniform writes of one cell, writes to 50 tables, writes of 1 to 32
cells, writes to a map, and all of these together. Each write has about 100 bytes of values. The shares compare writes
per second with those of the uniform writes, which run first and last.

``--json`` prints the shares as the last line.

Run it from a checkout: it builds its clusters as the system tests do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession
from tests.plain_stack import plain_stack
from tests.system.cdc_world import PARTITIONS, SEED, World, founded, now_us, until, write

from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION
from ringlog.kernel.values import CdcOptions, Column, Value, replace
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.runtime.kafka.config import spark_options
from ringlog.stack import StackInfo
from ringlog.stack.artifacts import spark_jars
from ringlog.wire.records import (
    Cell,
    DeletedElements,
    Mutation,
    encode_mutation,
    mutation_key,
    mutation_partition,
)
from ringlog_cdc.driver.job import CONSUMER_OPTIONS, CdcJob
from ringlog_cdc.driver.session import open_session
from ringlog_cdc.plan.store import PlanStore
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.sink import sink_options
from ringlog_cdc.topics.source import Offsets

WRITES, BATCH = 3_000_000, 500_000
KEYS = 100_000
SHARDS = 100
PLAIN, TUNED, AGAIN = "plain copy", "tuned copy", ", again"
UNIFORM, WARM_UP = "uniform writes", "warm-up"
TABLES, WIDTHS, COLLECTIONS = "tables", "widths", "collections"
MIXES = {
    WARM_UP: (TABLES, WIDTHS, COLLECTIONS),
    UNIFORM: (),
    "50 tables": (TABLES,),
    "1 to 32 cells": (WIDTHS,),
    "a map": (COLLECTIONS,),
    "all of these": (TABLES, WIDTHS, COLLECTIONS),
    UNIFORM + AGAIN: (),
}
"""Name of a mix to the properties of its writes. The first mix warms up the compilers."""
TABLES_OF, CELLS_OF, MAP = 50, 32, "map<text, text>"
VALUE_BYTES = 100
"""Bytes of all values of a write."""
WARMING = 2
"""Runs of a copy and of a CDC job that do not count."""
LOOK_S = 0.1
"""Each look asks the broker for the end of every partition, which costs the slower job more."""
GIVE_UP_S = 600.0


class Spent(Value):
    """Processor seconds since they began: of the broker, and of this process and all below it; mebibytes of these."""

    broker: float
    job: float
    memory: int


class Measured(Value):
    """The result of one run.

    ``rows_s``: rows per second. ``broker_us``, ``job_us``: processor time per row, in microseconds. ``third``, ``end``:
    memory in mebibytes after a third and after all of the rows. ``parts``: the most parts of a batch.
    """

    rows_s: float
    broker_us: float
    job_us: float
    third: int
    end: int
    parts: int = 1


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("writes", type=int, nargs="?", default=WRITES)
    parser.add_argument("batch", type=int, nargs="?", default=BATCH)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with started() as (info, session, folder):
        measure = _measure_mixes if chosen.mixed else _measure_all
        shares = measure(info, session, folder, chosen.writes, chosen.batch)
    if chosen.json:
        print(json.dumps({name: round(share, 3) for name, share in shares.items()}))


@contextmanager
def started(*, lake: bool = False) -> Iterator[tuple[StackInfo, SparkSession, Path]]:
    """A broker and a Spark session, with Delta if asked for, and a folder; all of it goes when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="ringlog-bench-"))
    stack = plain_stack(folder / "stack")
    try:
        info = stack.up("quick")
        found = spark_jars()
        session = open_session("ringlog-bench", found, "local[2]", memory="2g", lake=lake)
        try:
            yield info, session, folder
        finally:
            session.stop()
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


def _measure_all(info: StackInfo, session: SparkSession, folder: Path, writes: int, batch: int) -> dict[str, float]:
    """Measure copies and jobs. Return the share of the tuned copy."""
    print(f"{writes:,} writes, batches of {batch:,}")
    with cluster(info, 10) as world:
        fill(world, writes)
        _copied(world, session, folder, writes, batch)
        _logged(world, session, folder, writes, batch)
    for _ in range(1, WARMING):
        with cluster(info, 10) as world:
            fill(world, writes)
            _copied(world, session, folder, writes, batch, tuned=True)
            _logged(world, session, folder, writes, batch)
    found: dict[str, Measured] = {}
    with cluster(info, 10) as first:
        fill(first, writes)

        def copies(which: str) -> None:
            _note(found, PLAIN + which, _copied(first, session, folder, writes, batch))
            _note(found, TUNED + which, _copied(first, session, folder, writes, batch, tuned=True))

        copies("")
        _note(found, "copy through Arrow", _copied(first, session, folder, writes, batch, tuned=True, arrow=True))
        _note(found, f"CDC, {10 * SHARDS:,} streams", _logged(first, session, folder, writes, batch))
        with cluster(info, 1_000) as world:
            fill(world, writes)
            _note(found, f"CDC, {1_000 * SHARDS:,} streams", _logged(world, session, folder, writes, batch))
        with cluster(info, 10) as world:
            world.apply(AlterTable("shop", "orders", cdc=CdcOptions(True, preimage="full")))
            fill(world, writes)
            # The first write to each row has no preimage.
            rows = 2 * writes - min(writes, KEYS)
            _note(found, "CDC with preimages", _logged(world, session, folder, rows, batch))
        copies(AGAIN)
    return _show(found)


def _measure_mixes(info: StackInfo, session: SparkSession, folder: Path, writes: int, batch: int) -> dict[str, float]:
    """Measure the mixes. Return the share of uniform writes."""
    found: dict[str, Measured] = {}
    for name, kinds in MIXES.items():
        with cluster(info, 10) as world:
            make = mixed(world, kinds)
            fill(world, writes, make)
            _note(found, name, _logged(world, session, folder, writes, batch))
    same = (found[UNIFORM].rows_s + found[UNIFORM + AGAIN].rows_s) / 2
    shares = {name: one.rows_s / same for name, one in found.items() if name != WARM_UP}
    for name, share in shares.items():
        print(f"{name:28} {share:9.2f} of uniform writes")
    return shares


def _note(found: dict[str, Measured], name: str, measured: Measured) -> None:
    found[name] = measured
    print(f"{name}: {measured.rows_s:,.0f} rows/s, {measured.broker_us + measured.job_us:.2f} us a row", flush=True)


def _show(found: dict[str, Measured]) -> dict[str, float]:
    plain, tuned = ((found[name].rows_s + found[name + AGAIN].rows_s) / 2 for name in (PLAIN, TUNED))
    print(
        f"{'job':28} {'rows/s':>9} {'of plain':>9} {'of tuned':>9} {'us a row':>9} {'of broker':>9} "
        f"{'MiB at 1/3':>10} {'at the end':>10} {'parts':>5}"
    )
    for name, one in found.items():
        print(
            f"{name:28} {one.rows_s:9,.0f} {one.rows_s / plain:9.2f} {one.rows_s / tuned:9.2f} "
            f"{one.broker_us + one.job_us:9.2f} {one.broker_us:9.2f} {one.third:10,} {one.end:10,} "
            f"{one.parts:5}"
        )
    return {name: one.rows_s / tuned for name, one in found.items()}


# ------------------------------------------------------------------------------------------------------ input


@contextmanager
def cluster(info: StackInfo, tokens: int) -> Iterator[World]:
    """A cluster of one node, this number of tokens and as many times ``SHARDS`` streams; its topics go with it."""
    name = f"b{uuid.uuid4().hex[:10]}"
    with founded(info.bootstrap_servers, name) as world:
        node = str(uuid.uuid4())
        world.apply(RegisterNode("n1", node, "127.0.0.1:20000", "dc1", "r1", SHARDS, 12, "1", (), 1))
        step = 2**64 // tokens
        epoch = world.apply(Join(node, tuple(-(2**63) + 1 + step * number for number in range(tokens)), SEED))
        operation = f"join-{epoch}"
        while world.state.operations[operation].stage != COMMIT_CDC_GENERATION:
            world.advance(operation)
        world.prepare_generation()
        world.commit_generation(now_us() - 60_000_000)
        world.finish(operation)
        world.schema()
        yield world
    remove_topics(info.bootstrap_servers, f"{name}.")


def remove_topics(bootstrap: str, prefix: str) -> None:
    """Obsolete files would fill the page cache and slow down the next job."""
    admin = admin_client(bootstrap)
    names = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(prefix)]
    for done in admin.delete_topics(names).values():
        done.result(30)


def uniform(number: int) -> Mutation:
    """A write of one cell to ``shop.orders``."""
    note = Cell("note", os.urandom(VALUE_BYTES // 2).hex().encode())
    return write(f"customer-{number}", number, now_us() - 30_000_000, cells=(note,), mutation_id=None)


def mixed(world: World, kinds: Collection[str]) -> Callable[[int], Mutation]:
    """Create the tables of a mix. Return the function that makes its writes."""
    names = [f"t{number}" for number in range(TABLES_OF if TABLES in kinds else 1)]
    types = {"customer": "text", "number": "bigint", **{f"c{n}": "text" for n in range(CELLS_OF)}}
    if COLLECTIONS in kinds:
        types["items"] = MAP
    columns = tuple(Column(name, kind) for name, kind in types.items())
    for name in names:
        key = ("customer",), ("number",)
        world.apply(CreateTable("shop", name, str(uuid.uuid4()), columns, *key, CdcOptions(True)))

    def make(number: int) -> Mutation:
        width = 1 + number % CELLS_OF if WIDTHS in kinds else 1
        texts = [os.urandom(VALUE_BYTES // 2 // width).hex() for _ in range(width)]
        cells = tuple(Cell(f"c{place}", text.encode()) for place, text in enumerate(texts))
        one = replace(uniform(number), table=names[number % len(names)], cells=cells)
        if COLLECTIONS not in kinds:
            return one
        pairs = tuple((f"k{place}", text) for place, text in enumerate(texts))
        added = replace(one, operation="UPDATE", cells=(Cell("items", serialize(MAP, pairs)),))
        removed = replace(one, operation="UPDATE", deleted_elements=(DeletedElements("items", (b"k0",)),))
        return (one, added, removed, replace(added, replaced=("items",)))[number % 4]

    return make


def fill(world: World, writes: int, make: Callable[[int], Mutation] = uniform) -> None:
    """Writes to ``KEYS`` partition keys in turn: each is encoded once, and is another write each time it is sent."""
    records = []
    for number in range(min(KEYS, writes)):
        one = make(number)
        key = mutation_key(one.keyspace, one.table, (one.partition_key[0] or b""))
        records.append((encode_mutation(one), key, mutation_partition(key, PARTITIONS)))
    producer = Producer(
        {"bootstrap.servers": world.bootstrap, "linger.ms": 20, "acks": "all", "queue.buffering.max.messages": 500_000}
    )
    topic = topic_name(world.cluster, "mutations")
    for number in range(writes):
        value, key, partition = records[number % KEYS]
        while True:
            try:
                producer.produce(topic, value, key, partition)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


# ------------------------------------------------------------------------------------------------------- jobs


def mutations(world: World, session: SparkSession, batch: int, *, tuned: bool = True) -> DataFrame:
    """A stream of keys and values of all mutations; ``tuned``: with the job's settings of consumers."""
    return (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", world.bootstrap)
        .options(**(CONSUMER_OPTIONS if tuned else {}))
        .option("subscribe", topic_name(world.cluster, "mutations"))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .select("key", "value")
    )


def _copied(
    world: World,
    session: SparkSession,
    folder: Path,
    writes: int,
    batch: int,
    *,
    tuned: bool = False,
    arrow: bool = False,
) -> Measured:
    """All mutations to a separate topic, unchanged; ``tuned``: with the job's settings of Kafka's clients."""
    topic = f"copy-{uuid.uuid4().hex[:8]}"
    admin = admin_client(world.bootstrap)
    admin.create_topics([NewTopic(topic, 8, 1)])[topic].result(30)
    # The controller answers, and a busy broker may not know the topic yet.
    until(lambda: topic in admin.list_topics(timeout=30).topics, f"topic {topic}")
    chosen = mutations(world, session, batch, tuned=tuned)
    query = (
        (chosen.mapInArrow(lambda batches: batches, "key binary, value binary") if arrow else chosen)
        .writeStream.format("kafka")
        .option("topic", topic)
        .options(**(sink_options(world.bootstrap) if tuned else spark_options(world.bootstrap)))
        .option("checkpointLocation", str(folder / topic))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        with rows_of(world, topic) as count:
            return watch(folder, topic, count, writes)
    finally:
        query.stop()
        remove_topics(world.bootstrap, topic)


def _logged(world: World, session: SparkSession, folder: Path, rows: int, batch: int) -> Measured:
    """All mutations as this number of rows of the CDC topic."""
    settings = JobSettings(
        world.bootstrap,
        world.cluster,
        folder / world.cluster,
        max_offsets_per_trigger=batch,
        trigger_seconds=0.0,
        direct=True,
    )
    with running(settings, session) as job, rows_of(world, settings.sink_topic) as count:
        measured = watch(folder, settings.sink_topic, count, rows, job.writer.check)
    store = PlanStore(settings.checkpoint)
    counts = (len(store.parts(number)) for number in range(1, store.head.batch + 1))
    return replace(measured, parts=max(counts, default=1))


@contextmanager
def running(settings: JobSettings, session: SparkSession) -> Iterator[CdcJob]:
    """The job, until the block ends."""
    job = CdcJob(settings, session).start()
    waiting = threading.Thread(target=job.wait, daemon=True)
    waiting.start()
    try:
        yield job
    finally:
        job.stop()
        waiting.join()


@contextmanager
def rows_of(world: World, topic: str) -> Iterator[Callable[[], int]]:
    """How many records a topic has now."""
    offsets = Offsets(world.bootstrap)
    try:
        yield lambda: sum(offsets.ends(topic).values())
    finally:
        offsets.close()


def watch(
    folder: Path, sink: str, count: Callable[[], int], writes: int, check: Callable[[], None] = lambda: None
) -> Measured:
    """Cost of moving the last two thirds of the rows to a sink; ``check`` raises if the process that moves them has
    ended.
    """
    begun: tuple[float, int, Spent] | None = None
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        check()
        rows = count()
        now = time.monotonic()
        assert now < deadline, f"{sink}: {rows} of {writes} rows"
        if begun is None and rows >= writes // 3:
            begun = now, rows, spent(folder)
        if begun is not None and rows >= writes:
            began, first, before = begun
            after, moved = spent(folder), rows - first
            return Measured(
                moved / (now - began),
                (after.broker - before.broker) / moved * 1e6,
                (after.job - before.job) / moved * 1e6,
                before.memory,
                after.memory,
            )
        threading.Event().wait(LOOK_S)


def spent(folder: Path) -> Spent:
    """Resources used so far; the broker is the process that was started with a file in ``folder``."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    pages: dict[int, int] = {}
    broker = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        pid = int(path.name)
        parents[pid], pages[pid] = int(fields[1]), int(fields[21])
        seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if "kafka.Kafka" in command and str(folder) in command:
            broker.add(pid)
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    memory = sum(pages[pid] for pid in mine) * os.sysconf("SC_PAGE_SIZE") // 2**20
    return Spent(sum(seconds[pid] for pid in broker), sum(seconds[pid] for pid in mine), memory)


if __name__ == "__main__":
    main()
