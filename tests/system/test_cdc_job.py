"""The CDC job on a real broker and a real Spark session: rows, dead letters, held writes, replay, a hot key."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from tests.cdc.partitions import cdc_partition
from tests.ending import stopping
from tests.system.cdc_world import HOUR_US, MORE_TOKENS, PARTITIONS, Found, World, founded_shop, now_us, until, write

from ringlog.kernel.generations.acceptance import stream_of
from ringlog.kernel.model.state import Generation
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import connection
from ringlog.stack import StackInfo
from ringlog.wire.avro.codec import header
from ringlog.wire.records import CdcRow, Cell, encode_mutation, mutation_key, mutation_partition
from ringlog_cdc.errors import CdcError
from ringlog_cdc.plan.plan import PlanEntry, decode
from ringlog_cdc.settings import JobSettings
from ringlog_schemas import current

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ringlog_cdc.driver.job import CdcJob

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

CDC_PARTITIONS = 8


def start(world: World | ClusterContext, checkpoint: Path, spark: SparkSession, **changes: object) -> CdcJob:
    """Return a job that runs in this process and appends its own leases."""
    from ringlog_cdc.driver.job import CdcJob

    values = {"direct": True, "trigger_seconds": 0.1} | changes
    return CdcJob(JobSettings(world.bootstrap, world.cluster, checkpoint, **values), spark).start()  # type: ignore[arg-type]


def run_to_idle(world: World, checkpoint: Path, spark: SparkSession, **changes: object) -> None:
    """Run the job until all mutations are durable."""
    with stopping(start(world, checkpoint, spark, stop_when_idle=True, **changes)) as job:
        job.wait()


def lines(checkpoint: Path, event: str) -> list[dict[str, object]]:
    """Return the progress lines of one kind; the last line may be incomplete."""
    path = checkpoint / "progress.jsonl"
    text = path.read_text() if path.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [line for line in found if line["event"] == event]


def identity(row: CdcRow) -> tuple[int, int]:
    """Return the origin of the row's write."""
    return row.source_partition, row.source_offset


def check_places(world: World, generations: dict[int, Generation]) -> None:
    """Check that each row has the stream of its key in its generation, is in that stream's partition, and keeps the
    key's order.
    """
    last: dict[tuple[bytes, int], int] = defaultdict(lambda: -1)
    for item, row in zip(world.read("cdc"), world.rows(), strict=True):
        wanted = stream_of(generations[row.generation], token_of(row.partition_key[0]))
        assert (item.key, row.stream_id) == (wanted, wanted)
        assert item.partition == cdc_partition(wanted, CDC_PARTITIONS)
        key = (row.partition_key[0], row.generation)
        assert row.source_offset > last[key]
        last[key] = row.source_offset


def no_mutations() -> list[bytes | None]:
    """Return values that resemble mutations but that the strict decoder rejects."""
    claims_gigabytes = header(current()["ringlog.mutations.Mutation"].fingerprint) + b"\x00\x00" + b"\xfe" * 4 + b"\x0f"
    good = encode_mutation(write("k", 1))
    return [
        None,
        b"",
        b"no mutation",
        b"\xc3\x01" + b"\0" * 30,
        claims_gigabytes,
        good + b"!",
        good[:-1],
        good.replace(b"amount", b"amo\xffnt"),
        good.replace(b"amount", b"a\xed\xa0\x80nt"),
        good.replace(b"orders", b"order\xff"),
    ]


def test_mutations_become_rows_or_dead_letters_with_a_reason(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    generation = shop.state.generations[0]
    began = generation.timestamp
    shop.send(write(f"customer-{number % 37}", number) for number in range(500))
    number = (9).to_bytes(8, "big")
    bad = {
        "foreign_cluster": write("k", 1, cluster_id=str(uuid.uuid4())),
        "unknown_table": write("k", 1, table="nowhere"),
        "unknown_operation": write("k", 1, operation="UNKNOWN"),
        "null_partition_key": write(None, 1),
        "bad_key": write("k", 1, clustering_key=(number, number)),
        "bad_key_type": write("k", 1, clustering_key=(number[1:],)),
        "bad_value_type": write("k", 1, cells=(Cell("note", b"n"), Cell("amount", b"\0"))),
        "unknown_column": write("k", 1, cells=(Cell("note", b"n"), Cell("nosuch", b"x"))),
        "timestamp_in_future": write("k", 1, now_us() + 60_000_000),
        "timestamp_too_old": write("k", 1, began - HOUR_US),
        "oversized": write("k", 1, cells=(Cell("note", b"x" * 60_000),)),
    }
    # No generation precedes the first one, and the rule of late writes does not apply to it.
    bad["no_generation"] = bad.pop("timestamp_too_old")
    shop.send(bad.values())
    bad["wrong_record_key"] = write("k", 1)
    shop.send([bad["wrong_record_key"]], b"another key")
    unreadable = no_mutations()
    for value in unreadable:
        shop.send_raw(value)
    shop.send([write("quiet", 1, table="quiet"), write("last", 77)])
    run_to_idle(shop, tmp_path, spark, row_bytes_max=50_000)

    rows, letters = shop.rows(), shop.letters()
    assert len(rows) == 501
    assert len({identity(row) for row in rows}) == 501
    check_places(shop, {began: generation})
    assert {row.generation for row in rows} == {began}
    assert {(row.operation, row.deleted, row.batch_seq_no, row.end_of_batch) for row in rows} == {
        (2, ("note",), 0, True)
    }
    assert all(uuid.UUID(bytes=row.time).time // 10 - 12_219_292_800_000_000 == row.timestamp for row in rows)

    assert Counter(letter.reason for letter in letters) == Counter([*bad, *["unreadable"] * len(unreadable)])
    originals = {letter.reason: letter.value for letter in letters}
    named = {"unknown_column": "nosuch", "bad_key_type": "number", "bad_value_type": "amount"}
    details = {letter.reason: letter.detail for letter in letters}
    assert all(f"column '{column}'" in details[reason] for reason, column in named.items())
    for reason, mutation in bad.items():
        assert originals[reason] == encode_mutation(mutation), reason
    assert {letter.value for letter in letters if letter.reason == "unreadable"} == set(unreadable)
    mutations = {(item.partition, item.offset): item for item in shop.read("mutations")}
    for letter in letters:
        source = mutations[letter.partition, letter.offset]
        assert (letter.key, letter.value) == (source.key, source.value)
    assert [line["skipped"] for line in lines(tmp_path, "batch") if line["skipped"]] == [1]


def test_operations_keep_fields(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    sent = [
        write("a", 1, ttl=60, cells=(Cell("amount", b"\0\0\0\7"),)),
        write("a", 1, operation="UPDATE", mutation_id=None),
        write("a", 1, operation="ROW_DELETE", cells=()),
        write("a", 1, operation="PARTITION_DELETE", clustering_key=(), cells=()),
    ]
    shop.send(sent)
    run_to_idle(shop, tmp_path, spark)
    rows = shop.rows()
    assert [row.operation for row in rows] == [2, 1, 3, 4]
    for row, mutation in zip(rows, sent, strict=True):
        assert row.mutation_id == mutation.mutation_id
        assert (row.keyspace, row.table, row.timestamp, row.ttl) == (
            mutation.keyspace,
            mutation.table,
            mutation.timestamp,
            mutation.ttl,
        )
        assert (row.partition_key, row.clustering_key) == (mutation.partition_key, mutation.clustering_key)
        assert row.cells == tuple(cell for cell in mutation.cells if cell.value is not None)
        assert row.source_topic == f"{shop.cluster}.mutations"


def test_writes_await_a_generation(stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path) -> None:
    """No write above the frozen lease is routed; the generation is committed above it; then all writes continue."""
    with founded_shop(stack.bootstrap_servers, cluster_name, {"cdc_leeway_us": 1_000_000}) as world:
        first = world.state.generations[0]
        with stopping(start(world, tmp_path, spark)) as job:
            count = world.send(write(f"customer-{number % 37}", number) for number in range(200))
            until(lambda: len(world.read("cdc")) == count, "the first rows", job.writer.check)
            check_checkpoint_rules(world, tmp_path, spark)
            operation = world.begin_join("n2", MORE_TOKENS)
            world.prepare_generation()
            used = max(row.timestamp for row in world.rows())
            lowered = until(
                lambda: (found := world.state.writers["spark"].horizon) < now_us() and found,
                "the horizon to be lowered",
                job.writer.check,
            )
            assert lowered > used
            world.send(write(f"customer-{number % 37}", number) for number in range(200))
            until(lambda: lines(tmp_path, "held"), "a held batch", job.writer.check)
            assert len(world.read("cdc")) == count

            second = world.commit_generation(now_us())
            world.finish(operation)
            until(lambda: now_us() > second.timestamp, "the second generation to begin", job.writer.check)
            count += world.send(write(f"customer-{number % 37}", number) for number in range(200)) + 200
            until(lambda: len(world.read("cdc")) == count, "all rows", job.writer.check)
            world.send([write("one", 1)])
            until(
                lambda: world.state.writers["spark"].low_watermark == second.timestamp,
                "the low-watermark of the second generation",
                job.writer.check,
            )
        check_places(world, {first.timestamp: first, second.timestamp: second})
        rows = world.rows()
        assert all((row.timestamp >= second.timestamp) == (row.generation == second.timestamp) for row in rows)
        assert Counter(row.generation for row in rows)[first.timestamp] >= 200
        assert Counter(row.generation for row in rows)[second.timestamp] >= 200
        assert world.letters() == []
        claimed = {position.partition: position.offset for position in world.state.writers["spark"].positions}
        for item, row in zip(world.read("cdc"), rows, strict=True):
            assert row.generation == second.timestamp or item.offset < claimed[item.partition]


def check_checkpoint_rules(world: World, checkpoint: Path, spark: SparkSession) -> None:
    """Check that a running job excludes a second job on its checkpoint, and one with its name on another checkpoint."""
    from ringlog_cdc.driver.job import CdcJob

    for folder, code in ((checkpoint, "checkpoint_in_use"), (checkpoint / "other", "checkpoint_lost")):
        job = CdcJob(JobSettings(world.bootstrap, world.cluster, folder, direct=True), spark)
        job.stopping.set()  # it does not wait for the lock
        with pytest.raises(CdcError) as caught:
            job.start()
        assert caught.value.code == code


def forget_last_batch(checkpoint: Path) -> None:
    """Simulate a driver that died after the last rows were acknowledged and before it recorded that."""
    batch = max(int(path.name) for path in (checkpoint / "spark" / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "spark" / "commits" / str(batch)).unlink()
    (checkpoint / "spark" / "commits" / f".{batch}.crc").unlink(missing_ok=True)
    done = sorted((checkpoint / "plans").glob("*.done"))
    for path in done:
        if decode(path.with_suffix(".json").read_bytes()).batch == batch:
            path.unlink()


def test_a_replay_has_the_same_bytes(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    first = shop.state.generations[0]
    shop.send(write(f"customer-{number % 37}", number) for number in range(300))
    shop.send([write("k", 1, table="later")])
    run_to_idle(shop, tmp_path, spark)
    rows, letters = shop.read("cdc"), shop.read("dead-letters")
    assert (len(rows), len(letters)) == (300, 1)

    horizon = shop.state.writers["spark"].horizon
    second = shop.join("n2", MORE_TOKENS, horizon + 1)
    assert second.timestamp > first.timestamp
    shop.table("later")
    forget_last_batch(tmp_path)
    run_to_idle(shop, tmp_path, spark)

    again = shop.read("cdc")
    assert Counter((item.partition, item.key, item.value) for item in again) == Counter(
        {(item.partition, item.key, item.value): 2 for item in rows}
    )
    assert [item.value for item in shop.read("dead-letters")] == [letters[0].value] * 2
    check_replay_order([item.value for item in again], [item.value for item in rows])

    run_to_idle(shop, tmp_path, spark)
    assert len(shop.read("cdc")) == 600


def test_a_job_reads_new_partitions(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    from ringlog_cdc.driver.job import CdcJob
    from ringlog_cdc.driver.program import StopSignal, run_jobs

    settings = JobSettings(shop.bootstrap, shop.cluster, tmp_path, direct=True, trigger_seconds=0.1)
    stopping = StopSignal()
    running = threading.Thread(target=run_jobs, args=(lambda: CdcJob(settings, spark), stopping))
    running.start()
    try:
        shop.send([write("a", 1)])
        until(lambda: len(shop.rows()) == 1, "a row")
        added = NewPartitions(topic_name(shop.cluster, "mutations"), PARTITIONS + 1)
        admin = admin_client(shop.bootstrap)
        for done in admin.create_partitions([added]).values():
            done.result()
        until(lambda: len(lines(tmp_path, "started")) == 2, "the next job")
        producer = Producer(connection(shop.bootstrap))  # the other driver knows only the previous partitions
        producer.produce(added.topic, encode_mutation(write("b", 2)), mutation_key("shop", "orders", b"b"), PARTITIONS)
        assert producer.flush(30) == 0
        until(lambda: len(shop.rows()) == 2, "a row of the added partition")
    finally:
        stopping.set()
        running.join()
    assert {identity(row) for row in shop.rows()} >= {(PARTITIONS, 0)}


def check_replay_order(again: list[bytes], rows: list[bytes]) -> None:
    """Check that the first copies of all rows are in the original order, so repetitions follow them."""
    seen: dict[bytes, None] = dict.fromkeys(again)
    assert list(seen) == rows


def schema_of(full_name: str) -> Callable[[bytes], object]:
    """Return a decoder of bodies with plain fastavro, for readers without Ringlog."""
    parsed = fastavro.parse_schema(dict(current()[full_name].json))
    return lambda data: fastavro.schemaless_reader(io.BytesIO(data[10:]), parsed)


def test_rows_are_avro_for_any_reader(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    sent = write("a", 1)
    shop.send([sent])
    run_to_idle(shop, tmp_path, spark)
    (item,) = shop.read("cdc")
    found = schema_of("ringlog.cdc.CdcRow")(item.value)
    assert isinstance(found, dict)
    assert found["cells"] == [{"column": "amount", "value": b"\0\0\0\7"}]
    assert found["stream_id"] == item.key


HOT, OTHERS = 3_600, 400
SHARE = 60


def partition_of(key: str) -> int:
    """Return the source partition of a customer."""
    return mutation_partition(mutation_key("shop", "orders", compose([key.encode()])), PARTITIONS)


def plans(checkpoint: Path) -> list[PlanEntry]:
    """Return the plans so far."""
    return [decode(path.read_bytes()) for path in sorted((checkpoint / "plans").glob("[0-9]*.json"))]


def ends_of(found: list[Found]) -> dict[int, int]:
    """Return the end of each source partition."""
    return dict(Counter(item.partition for item in found))


def test_a_hot_key_delays_no_others(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    hot = partition_of("hot")
    cold = [key for key in (f"customer-{number}" for number in range(200)) if partition_of(key) != hot]
    shop.send(write(cold[number % len(cold)], number) for number in range(OTHERS))
    shop.send(write("hot", number) for number in range(HOT))
    waiting = ends_of(shop.read("mutations"))
    needed = -(-max(count for partition, count in waiting.items() if partition != hot) // SHARE)

    with stopping(start(shop, tmp_path, spark, max_offsets_per_trigger=SHARE * PARTITIONS)) as job:
        until(lambda: job.runner.last_batch >= needed - 1, "the batches that the others need", job.writer.check)
        check_others_are_planned(tmp_path, needed - 1, waiting, hot)
        # While the backlog is processed, new mutations of other keys are in one of the next two batches.
        shop.send(write(key, 10_000) for key in cold[:SHARE])
        last = job.runner.last_batch
        now = ends_of(shop.read("mutations"))
        until(lambda: job.runner.last_batch >= last + 2, "two batches more", job.writer.check)
        check_others_are_planned(tmp_path, last + 2, now, hot)
    check_rows(shop)


def check_others_are_planned(checkpoint: Path, batch: int, ends: dict[int, int], hot: int) -> None:
    """Check that this batch plans all other partitions to these ends, and the hot one not."""
    positions = dict([entry for entry in plans(checkpoint) if entry.batch == batch][-1].positions)
    assert {partition: offset for partition, offset in positions.items() if partition != hot} == {
        partition: end for partition, end in ends.items() if partition != hot
    }
    assert positions[hot] < ends[hot]


def check_rows(world: World) -> None:
    """Check that the written rows are a prefix of each source partition, once."""
    offsets: dict[int, list[int]] = {}
    for row in world.rows():
        offsets.setdefault(row.source_partition, []).append(row.source_offset)
    assert all(sorted(found) == list(range(len(found))) for found in offsets.values())
