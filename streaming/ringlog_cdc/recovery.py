"""A checkpoint that takes the place of a lost one: it finds what was written, and writes what is missing.

Plans are lost with a checkpoint, so every write is decided anew. What was decided before is in the topics: a write with
a row in the CDC topic, or a letter among the dead letters, keeps it. Before its first batch the job reads both topics
and notes the identities of all rows and letters of the mutations that it will read again (``Index``); a plan part that
lies within their bounds then leaves out what is there:

- nothing of a mutation that has a letter goes out;
- a row that is there does not go out again;
- no letter goes out for a mutation that has a row: its generation may have closed since.

The index is made once, after the right of all earlier incarnations to write was taken away, and never changed: a part
that is carried out again leaves out the same. It is a folder of Parquet files in the checkpoint; of it a part's own
identities are in memory, no more. The place of a row in the topic proves nothing, so each is looked for by identity.
Rows keep the order of their source: what is missing of it in a partition of the topic is its end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ringlog.kernel.settings import SETTINGS
from ringlog.kernel.state import ClusterState
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.lake.heads import heads_of
from ringlog_cdc.lake.sink import HEADS_TYPE, heads
from ringlog_cdc.plan import OffsetRange, PlanEntry
from ringlog_cdc.plan_store import create_if_absent
from ringlog_cdc.progress import Progress
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.source import Offsets
from ringlog_cdc.verdicts import KNOWN, ROUTED

Batches = Iterable[pa.RecordBatch]
Positions = Mapping[int, int]

FOLDER, FILE = "recovery", "recovery.json"
CHUNK = 2_000_000
"""Records of a topic in one step; after each the progress says how far it is."""
CLOCK_MARGIN_US = 3_600_000_000
"""The CDC topic is read from this long before the time of the first mutation: its records have the time of their
writer's clock. One that is slower leaves rows unseen, which are then written again: a reader drops them."""
INDEX_TYPE = "partition int, offset bigint, timestamp bigint, number int, letter boolean"


@dataclass(frozen=True, slots=True)
class Known:
    """What is there of the mutations of a plan part: rows by (partition, offset, timestamp, number), and letters."""

    rows: frozenset[tuple[int, int, int, int]]
    letters: frozenset[tuple[int, int]]

    @property
    def decided(self) -> frozenset[tuple[int, int]]:
        """Mutations of which a row is there."""
        return frozenset((partition, offset) for partition, offset, _, _ in self.rows)


def is_needed(state: ClusterState, head: PlanEntry) -> bool:
    """True for a checkpoint without plans where a writer's right to write was taken away: it may have written."""
    return head.sequence < 0 and any(writer.fenced is not None for writer in state.writers.values())


class Index:
    """Identities of what is in the topics, in the folder of a checkpoint."""

    def __init__(self, session: SparkSession, checkpoint: Path) -> None:
        self._session = session
        self._checkpoint = checkpoint
        self._folder = checkpoint / FOLDER
        path = checkpoint / FILE
        self.is_made = path.exists()
        self.bounds = decode_bounds(path.read_bytes()) if self.is_made else {}
        self._kept: tuple[int, Broadcast[Known]] | None = None

    def make(self, settings: JobSettings, offsets: Offsets, state: ClusterState, starts: Positions, say: Progress) -> None:
        """Read both topics. ``starts``: where the job will begin to read each partition of the mutations."""
        shutil.rmtree(self._folder, ignore_errors=True)
        reader = TopicReader(self._session, settings, offsets)
        begins = first_place(offsets, settings.sink_topic, state)
        for topic, of_rows in ((settings.sink_topic, True), (settings.letters_topic, False)):
            ends, first = offsets.ends(topic), begins if of_rows else offsets.begins(topic)
            total, done = sum(ends.values()) - sum(first.values()), 0
            for begin, end in chunks(first, ends, CHUNK):
                found = reader.read(topic, begin, end)
                chosen = self._rows(found, settings) if of_rows else self._letters(found, settings)
                chosen.where(at_or_after(starts)).write.mode("append").parquet(str(self._folder))
                done += sum(end.values()) - sum(begin.values())
                say.emit("recovering", topic=topic, records=done, of=total)
        self.bounds = self._bounds()
        data = json.dumps({str(partition): bound for partition, bound in sorted(self.bounds.items())})
        create_if_absent(self._checkpoint / FILE, data.encode() + b"\n")
        self.is_made = True
        say.emit("recovered", bounds=self.bounds)

    @staticmethod
    def _rows(found: DataFrame, settings: JobSettings) -> DataFrame:
        rows = found.mapInArrow(heads, HEADS_TYPE).where(F.col("topic") == settings.source_topic)
        return rows.select("partition", "offset", "timestamp", "number", F.lit(False).alias("letter"))

    @staticmethod
    def _letters(found: DataFrame, settings: JobSettings) -> DataFrame:
        place = F.split(F.col("key").cast("string"), "/")
        return found.where(place[0] == settings.source_topic).select(
            place[1].cast("int").alias("partition"),
            place[2].cast("bigint").alias("offset"),
            F.lit(0).cast("bigint").alias("timestamp"),
            F.lit(0).alias("number"),
            F.lit(True).alias("letter"),
        )

    def _all(self) -> DataFrame | None:
        """The index; None if nothing was there to be noted."""
        if not any(self._folder.glob("*.parquet")):
            return None
        return self._session.read.schema(INDEX_TYPE).parquet(str(self._folder))

    def _bounds(self) -> dict[int, int]:
        found = self._all()
        rows = () if found is None else found.groupBy("partition").agg(F.max("offset").alias("last")).collect()
        return {row["partition"]: row["last"] + 1 for row in rows}

    def known(self, entry: PlanEntry) -> Broadcast[Known] | None:
        """What is there of a plan part; None: it lies behind all that was there."""
        if all(item.start >= self.bounds.get(item.partition, 0) for item in entry.ranges):
            return None
        if self._kept is None or self._kept[0] != entry.sequence:
            if self._kept is not None:
                self._kept[1].unpersist()
            self._kept = entry.sequence, self._session.sparkContext.broadcast(self._look(entry.ranges))
        return self._kept[1]

    def _look(self, ranges: Sequence[OffsetRange]) -> Known:
        found = self._all()
        if found is None:
            raise ChainBroken(f"{FOLDER} of the checkpoint is gone, and {FILE} says that it is needed")
        rows = found.where(within(ranges)).collect()
        return Known(
            frozenset((row[0], row[1], row[2], row[3]) for row in rows if not row[4]),
            frozenset((row[0], row[1]) for row in rows if row[4]),
        )


def first_place(offsets: Offsets, topic: str, state: ClusterState) -> dict[int, int]:
    """Where in the CDC topic rows of mutations may begin that a new checkpoint reads again."""
    oldest = next((found for found in state.generations if found.closed is None), None)
    if oldest is None or oldest is state.generations[0]:
        return offsets.begins(topic)
    return offsets.begins_at(topic, oldest.timestamp - SETTINGS["cdc_leeway_us"].maximum - CLOCK_MARGIN_US)


class TopicReader:
    """Records of topics as batches of Spark."""

    def __init__(self, session: SparkSession, settings: JobSettings, offsets: Offsets) -> None:
        self._session = session
        self._settings = settings
        self._offsets = offsets

    def read(self, topic: str, begins: Positions, ends: Positions) -> DataFrame:
        """Keys and values of the records from ``begins`` up to ``ends``."""
        reader = self._session.read.format("kafka").option("kafka.bootstrap.servers", self._settings.bootstrap_servers)
        for name, places in (("startingOffsets", begins), ("endingOffsets", ends)):
            text = json.dumps({topic: {str(partition): offset for partition, offset in places.items()}})
            reader = reader.option(name, text)
        found = reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic).load()
        return found.select("key", "value")


def chunks(begins: Positions, ends: Positions, size: int) -> Iterable[tuple[dict[int, int], dict[int, int]]]:
    """The offsets between two places in steps of about ``size``, each from and to."""
    each = max(1, size // max(1, len(ends)))
    at = {partition: begins.get(partition, 0) for partition in ends}
    while any(at[partition] < end for partition, end in ends.items()):
        to = {partition: min(end, at[partition] + each) for partition, end in ends.items()}
        yield at, to
        at = to


def at_or_after(starts: Positions) -> Any:
    """True for mutations at these offsets or behind them."""
    condition = F.lit(False)
    for partition, start in sorted(starts.items()):
        condition = condition | ((F.col("partition") == F.lit(partition)) & (F.col("offset") >= F.lit(start)))
    return condition


def within(ranges: Sequence[OffsetRange]) -> Any:
    """True for the records of these ranges."""
    condition = F.lit(False)
    for item in ranges:
        offset = F.col("offset")
        inside = (offset >= F.lit(item.start)) & (offset < F.lit(item.end))
        condition = condition | ((F.col("partition") == F.lit(item.partition)) & inside)
    return condition


def without(function: Callable[[Batches], Batches], known: Any) -> Callable[[Batches], Batches]:
    """The function of the rows, with ``KNOWN`` as the reason of those that are there. ``known``: a broadcast."""

    def outgoing(batches: Batches) -> Batches:
        there: Known = known.value
        decided = there.decided
        for batch in function(batches):
            place = batch.schema.get_field_index("reason")
            reasons = batch.column(place).to_numpy(zero_copy_only=False).copy()
            reasons[is_known(batch, reasons, there, decided)] = KNOWN
            yield batch.set_column(place, batch.schema.field(place), pa.array(reasons, pa.int32()))

    return outgoing


def is_known(batch: pa.RecordBatch, reasons: Any, there: Known, decided: frozenset[tuple[int, int]]) -> Any:
    """True for the records of a batch of ``OUT`` that must not go out."""
    found = np.zeros(len(reasons), dtype=bool)
    rows, letters = np.flatnonzero(reasons == ROUTED), np.flatnonzero(reasons > ROUTED)
    if len(rows):
        of = heads_of(batch.column("value").take(pa.array(rows)))
        places = zip(of.partitions.tolist(), of.offsets.tolist(), of.timestamps.tolist(), of.numbers.tolist(), strict=True)
        found[rows] = [name in there.rows or name[:2] in there.letters for name in places]
    for number in letters.tolist():
        _, partition, offset = batch.column("key")[number].as_py().decode().rsplit("/", 2)
        place = int(partition), int(offset)
        found[number] = place in there.letters or place in decided
    return found


def decode_bounds(data: bytes) -> dict[int, int]:
    """Source partition to the offset behind the last one of the index; raises ChainBroken for other bytes."""
    try:
        found = {int(partition): bound for partition, bound in json.loads(data).items()}
        if not all(type(bound) is int for bound in found.values()):
            raise ValueError("a bound is no whole number")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ChainBroken(f"{FILE} of the checkpoint is unreadable: {error}") from error
    return found
