"""The CDC log as a Spark data source: batch, stream, generation switch, restart from the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ending import stopping
from tests.system.cdc_log import CdcLog, Story, drop_all
from tests.system.cdc_world import until

from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.values import replace
from ringlog.wire.records import Cell
from ringlog_cdc import read_cdc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


class Sink:
    """The rows of a query, by batch; a repeated batch must be identical."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("`cdc$generation`", "number").collect()
        found = sorted((row[0], row[1]) for row in rows)
        assert self.batches.setdefault(batch, found) == found

    @property
    def numbers(self) -> list[int]:
        return [number for _, rows in sorted(self.batches.items()) for _, number in rows]


def started(frame: DataFrame, sink: Sink, checkpoint: Path, **trigger: str | bool) -> StreamingQuery:
    """Start a query and wait until its source has started.

    Spark gives the Python process of a stream's source a fixed ten seconds to answer, also on a busy machine. Otherwise
    the query ends before it has read a row. It is restarted here, as an operator would do.
    """
    to_start = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(checkpoint))
    for _ in range(5):
        query = to_start.trigger(**trigger).start()  # type: ignore[arg-type]
        until(
            lambda query=query: query.exception() or not query.status["message"].startswith("Initializing"),  # type: ignore[misc]
            "the query's source",
        )
        if "Python worker failed to connect back" not in str(query.exception()):
            break
    return query


@contextmanager
def running(frame: DataFrame, sink: Sink, checkpoint: Path) -> Iterator[StreamingQuery]:
    with stopping(started(frame, sink, checkpoint, processingTime="200 milliseconds")) as query:
        yield query


def fine(query: StreamingQuery) -> None:
    assert query.exception() is None, str(query.exception())[:3000]


def test_a_batch_query_has_every_write_once_with_typed_columns(log: CdcLog, spark: SparkSession) -> None:
    story = Story(log)
    story.play()
    frame = read_cdc(spark, log.world.bootstrap, log.world.cluster, "shop.orders")
    rows = frame.collect()
    assert sorted(row["number"] for row in rows) == list(range(story.numbers))
    assert {row["cdc$generation"] for row in rows} == set(story.starts)
    written = {int.from_bytes(row.clustering_key[0] or b""): row for row in story.written}
    for row in rows:
        wanted = written[row["number"]]
        found: dict[str, Any] = row.asDict()
        assert found.pop("cdc$time").replace("-", "") == wanted.time.hex()
        assert found == {
            "cdc$stream_id": bytearray(wanted.stream_id),
            "cdc$batch_seq_no": 0,
            "cdc$operation": 2,
            "cdc$ttl": None,
            "cdc$end_of_batch": True,
            "cdc$timestamp": wanted.timestamp,
            "cdc$generation": wanted.generation,
            "customer": wanted.partition_key[0].decode(),
            "number": row["number"],
            "amount": 7,
            "note": None,
            "cdc$deleted_amount": None,
            "cdc$deleted_note": True,
            "cdc$undecoded": None,
        }


def test_a_stream_continues_from_its_checkpoint_over_switches(log: CdcLog, spark: SparkSession, tmp_path: Path) -> None:
    story, sink = Story(log), Sink()
    story.join(0)
    story.write(story.rows(0, 40), copies=2)
    log.publish()
    frame = read_cdc(spark, log.world.bootstrap, log.world.cluster, "shop.orders", stream=True)
    with running(frame, sink, tmp_path) as query:
        until(lambda: len(sink.numbers) == 40, "the first rows", lambda: fine(query))
        story.join(1)
        story.write(story.rows(1, 30))
        story.write(story.rows(0, 10))
        log.publish()
        until(lambda: len(sink.numbers) == 50, "late rows of the first generation", lambda: fine(query))
        assert set(sink.numbers) == {*range(40), *range(70, 80)}
    story.write(story.rows(0, 5))
    log.close(story.starts[1])
    log.publish()
    frame = read_cdc(spark, log.world.bootstrap, log.world.cluster, "shop.orders", stream=True)
    with running(frame, sink, tmp_path) as query:
        until(lambda: len(sink.numbers) >= story.numbers, "everything", lambda: fine(query))
        story.write(story.rows(1, 3), copies=3)
        until(lambda: len(sink.numbers) >= story.numbers, "what was written meanwhile", lambda: fine(query))
    assert sorted(sink.numbers) == list(range(story.numbers))
    generations = [[generation for generation, _ in rows] for _, rows in sorted(sink.batches.items()) if rows]
    assert all(max(one) <= min(behind) for one, behind in pairwise(generations))


def run_to_the_end(frame: DataFrame, sink: Sink, checkpoint: Path) -> None:
    """Run a periodic query once."""
    query = started(frame, sink, checkpoint, availableNow=True)
    assert query.awaitTermination(120)
    fine(query)


def test_available_now_reads_all_of_all_generations(log: CdcLog, spark: SparkSession, tmp_path: Path) -> None:
    story, sink = Story(log), Sink()
    story.play()
    where = (spark, log.world.bootstrap, log.world.cluster, "shop.orders")
    run_to_the_end(read_cdc(*where, stream=True), sink, tmp_path)
    assert sorted(sink.numbers) == list(range(story.numbers))
    assert {generation for _, rows in sink.batches.items() for generation, _ in rows} == set(story.starts)
    run_to_the_end(read_cdc(*where, stream=True), sink, tmp_path)
    assert sorted(sink.numbers) == list(range(story.numbers))
    story.write(story.rows(2, 7), copies=2)
    run_to_the_end(read_cdc(*where, stream=True), sink, tmp_path)
    assert sorted(sink.numbers) == list(range(story.numbers))
    remember_another_history(tmp_path / "offsets")
    with running(read_cdc(*where, stream=True), sink, tmp_path) as query:
        until(lambda: query.exception() is not None, "an error")
        assert "according to the query's checkpoint" in str(query.exception())


def remember_another_history(offsets: Path) -> None:
    """Change the offsets as if the metadata log had been cut and had grown again since Spark wrote the newest one."""
    newest = max((path for path in offsets.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    text = newest.read_text()
    seen = re.search(r"state_id[^0-9a-f]+([0-9a-f-]{36})", text)
    assert seen is not None, text
    newest.write_text(text.replace(seen[1], "0190b3f0-0000-7000-8000-000000000000"))
    newest.with_name(f".{newest.name}.crc").unlink()


def test_a_recreated_table_has_only_its_own_rows(log: CdcLog, spark: SparkSession) -> None:
    story = Story(log)
    story.join(0)
    old, epoch = log.world.state.tables["shop.orders"].id, log.world.state.epoch
    story.write(story.rows(0, 5))
    log.world.apply(DropTable("shop", "orders"))
    log.world.table("orders")
    new_ones, (odd,) = story.rows(0, 4), story.rows(0, 1)
    late = [replace(row, epoch=epoch) for row in story.rows(0, 3)]
    story.write([*new_ones, replace(odd, cells=(Cell("nosuchcol", b"!"),)), *late])
    log.publish()
    where = (spark, log.world.bootstrap, log.world.cluster, "shop.orders")
    new = {row["number"]: row["cdc$undecoded"] for row in read_cdc(*where).collect()}
    assert new == {**dict.fromkeys(range(5, 9)), 9: {"nosuchcol": bytearray(b"!")}}
    assert {row["number"] for row in read_cdc(*where, table_id=old).collect()} == {*range(5), 10, 11, 12}


def test_a_stream_ends_at_another_table_of_its_name(log: CdcLog, spark: SparkSession, tmp_path: Path) -> None:
    story, sink = Story(log), Sink()
    story.join(0)
    story.write(story.rows(0, 5))
    log.publish()
    where = (spark, log.world.bootstrap, log.world.cluster, "shop.orders")
    with running(read_cdc(*where, stream=True), sink, tmp_path) as query:
        until(lambda: len(sink.numbers) == 5, "the first rows", lambda: fine(query))
        log.world.apply(DropTable("shop", "orders"))
        log.world.table("orders")
        story.write(story.rows(0, 4))
        until(lambda: query.exception() is not None, "an error")
        assert "was dropped or renamed at epoch" in str(query.exception())
    assert sorted(sink.numbers) == list(range(5))
    with running(read_cdc(*where, stream=True), sink, tmp_path) as query:
        until(lambda: len(sink.numbers) == 9, "the rows of the other one", lambda: fine(query))
    assert sorted(sink.numbers) == list(range(9))


@pytest.mark.soak("the same of the reader, and the stream that goes on from its checkpoint")
def test_rows_no_longer_kept_end_a_query_or_are_skipped(log: CdcLog, spark: SparkSession, tmp_path: Path) -> None:
    story, sink = Story(log), Sink()
    story.join(0)
    story.write(story.rows(0, 20))
    log.publish()
    where = (spark, log.world.bootstrap, log.world.cluster, "shop.orders")
    with running(read_cdc(*where, stream=True), sink, tmp_path) as query:
        until(lambda: len(sink.numbers) == 20, "the first rows", lambda: fine(query))
        # Spark would repeat an uncommitted batch without the deleted rows.
        until((tmp_path / "commits" / str(max(sink.batches))).exists, "the commit of the batch", lambda: fine(query))
    story.write(story.rows(0, 20))
    drop_all(log)
    with running(read_cdc(*where, stream=True), sink, tmp_path) as query:
        until(lambda: query.exception() is not None, "an error")
        assert "rows_lost" in str(query.exception()) or "RowsLost" in str(query.exception())
    with running(read_cdc(*where, stream=True, lost="skip"), sink, tmp_path) as query:
        story.write(story.rows(0, 5))
        until(lambda: len(sink.numbers) == 25, "rows behind the hole", lambda: fine(query))
    assert sorted(sink.numbers) == [*range(20), *range(40, 45)]
