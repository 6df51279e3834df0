"""Recovery with a checkpoint that replaces a lost one: it finds the existing rows and letters, and writes the missing
ones.

The plans were lost with the checkpoint, so every write is decided again. The earlier decisions are in the topics: a
write with a row in the CDC topic or with a dead letter keeps it. Before its first batch, the job reads both topics and
records the identities of all rows and letters for the mutations that it will read again (``Index``). A plan part within
the index then filters its output:

* A mutation with a letter has no further output.
* An existing row is not written again. If the last row of a write (at one timestamp) exists, no row of it is written:
  under other table options it may have had another number of rows.
* A half-written write is completed after its existing rows (``ringlog_cdc.plan.recovered_rows.RestOfWrite``).
* A mutation gets no letter if all its rows of one timestamp exist, since its generation may have closed in between.

Invariants:

* The index is built once, after all earlier incarnations have lost their right to write, and never changes. A repeated
  part filters the same output.
* Rows are matched by identity, since their position in the topic proves nothing.
* Rows keep the order of their source. Missing rows of a source in a partition of the topic are the last ones.

The index is a folder of Parquet files in the checkpoint. Only the identities of the current part are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value, replace
from ringlog.wire.records import decode_dead_letter, encode_cdc_row
from ringlog_cdc.bulk.outgoing_columns import LETTER
from ringlog_cdc.bulk.routing import crc32_rows
from ringlog_cdc.bulk.tally import Tally, counted
from ringlog_cdc.definition.reasons import KNOWN, NUMBERS, ROUTED
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.lake.heads import decoded, heads_of
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry
from ringlog_cdc.plan.recovered_rows import (
    LETTERS,
    KnownRows,
    LeftToWrite,
    Noted,
    concerns,
    known_of,
    may_have_written,
)
from ringlog_cdc.protocol.batch import BeginLookUp, EndLookUp, NoteTopic
from ringlog_cdc.report.progress import BatchProgress
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.stored_files import create_if_absent, encode_file, read_file, typed
from ringlog_cdc.topics.frames import TopicReader, at_or_after, chunks
from ringlog_cdc.topics.source import Offsets

Batches = Iterator[pa.RecordBatch]
Positions = Mapping[int, int]

FOLDER, FILE = "recovery", "recovery.json"
CHUNK = 2_000_000
"""Records of a topic per step. Each step reports its progress."""
CLOCK_MARGIN_US = 3_600_000_000
"""Distance of the first record to read from the time of the first mutation. Records of the CDC topic have the time of
their writer's clock. A clock that is slower by more hides rows, which are then written again, and readers drop them.
"""
GROUP = 100_000
"""Rows of a Parquet row group, the unit that is skipped by its bounds."""
NOTED = ("partition", "offset", "timestamp", "number", "operation", "last", "letter")
"""Columns of an identity."""
NAMED_TYPE = (
    "topic string, partition int, offset bigint, timestamp bigint, number int, operation int, last boolean, place int"
)
STREAM_BYTES = 16


class Index:
    """Identities of existing rows and letters, in a folder of the checkpoint.

    Attributes:
        is_made: The index is complete.
        bounds: See ``IndexBounds``.
        settled: See ``KnownRows``.
        lasts: See ``KnownRows``.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint / FOLDER
        self._file = checkpoint / FILE
        self.is_made = self._file.exists()
        noted = read_file("recovery", self._file, bounds_of) if self.is_made else IndexBounds({}, {}, {})
        self.bounds, self.settled, self.lasts = noted.bounds, noted.settled, noted.lasts
        self._kept: tuple[int, KnownRows] | None = None

    def is_needed(self, state: ClusterState, head: PlanEntry) -> bool:
        """Return True for a checkpoint that ``may_have_written``, until the index is complete.

        A crash does not change the answer.
        """
        if self.is_made or head.sequence >= 0:
            return False
        if may_have_written(state, head):
            self._folder.mkdir(exist_ok=True)
        return self._folder.exists()

    def begin(self, settled: Positions) -> None:
        """Discard the results of an earlier attempt.

        Args:
            settled: End offset of the decided writes in each source partition, from the metadata log.
        """
        for path in self._folder.iterdir():
            path.unlink()
        self.bounds, self.settled, self.lasts = dict(settled), dict(settled), {}

    def note(self, found: pa.Table) -> None:
        """Add identities.

        Args:
            found: Columns ``NOTED`` and ``place``, the partition of the CDC topic or ``LETTERS``.
        """
        if not found.num_rows:
            return
        ordered = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
        pq.write_table(ordered, self._folder / f"{len(list(self._folder.iterdir())):06d}.parquet", row_group_size=GROUP)
        lasts = found.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        for line in lasts:
            self.bounds[line["partition"]] = max(self.bounds.get(line["partition"], 0), line["offset_max"] + 1)
        for line in found.group_by(["partition", "place"]).aggregate([("offset", "max")]).to_pylist():
            name = line["partition"], line["place"]
            self.lasts[name] = max(self.lasts.get(name, 0), line["offset_max"])

    def finish(self) -> None:
        """Complete the index."""
        found = IndexBounds(self.bounds, self.settled, self.lasts)
        create_if_absent(self._file, encode_file("recovery", _fields(found)))
        self.is_made = True

    def concerns(self, ranges: Sequence[OffsetRange]) -> bool:
        """Return True unless these ranges follow everything that existed."""
        return concerns(self.bounds, ranges)

    def known(self, entry: PlanEntry) -> KnownRows | None:
        """Return the existing rows and letters for a plan part, or None if the part follows all of them.

        Raises:
            ChainBroken: The index is gone.
        """
        if not self.concerns(entry.ranges):
            return None
        # A part is written in several passes if it is cut.
        if self._kept is None or self._kept[0] != entry.sequence:
            self._kept = entry.sequence, self.look(entry.ranges)
        return self._kept[1]

    def look(self, ranges: Sequence[OffsetRange]) -> KnownRows:
        """Look up the existing rows and letters in these ranges.

        Raises:
            ChainBroken: The index is gone.
        """
        files = sorted(self._folder.glob("*.parquet")) if self._folder.exists() else []
        if not files:
            raise ChainBroken(f"{FOLDER}/ of the checkpoint is missing, but {FILE} requires it")
        noted: list[Noted] = []
        for item in ranges:
            at = [("partition", "=", item.partition), ("offset", ">=", item.start), ("offset", "<", item.end)]
            columns = pq.read_table([str(path) for path in files], filters=at).to_pydict()
            noted += zip(*(columns[name] for name in NOTED), strict=True)
        return replace(known_of(noted), settled=self.settled, lasts=self.lasts)


class Indexing:
    """Builds the index (``ringlog_cdc.protocol.batch.look_up``), reading each topic in chunks.

    Attributes:
        handlers: Functions that perform the look-up's effects, by type.
    """

    def __init__(
        self,
        index: Index,
        session: SparkSession,
        settings: JobSettings,
        offsets: Offsets,
        starts: Positions,
        say: BatchProgress,
    ) -> None:
        self._index = index
        self._reader = TopicReader(session, settings)
        self._settings = settings
        self._offsets = offsets
        self._starts = starts
        self._say = say
        self.handlers: dict[type, Callable[[Any], None]] = {
            BeginLookUp: self._begin,
            NoteTopic: self._note,
            EndLookUp: lambda _: self._end(),
        }

    def _begin(self, effect: BeginLookUp) -> None:
        """Start the index. Raises CdcError ``source_cut``."""
        check_source(effect.settled, self._offsets.ends(self._settings.source_topic))
        self._index.begin(effect.settled)

    def _note(self, effect: NoteTopic) -> None:
        """Add the identities in a topic to the index, chunk by chunk."""
        settings, offsets = self._settings, self._offsets
        topic = settings.letters_topic if effect.letters else settings.sink_topic
        partitions = offsets.partitions(settings.sink_topic)
        first = offsets.begins(topic) if effect.letters else first_place(offsets, topic, effect.state)
        ends = offsets.ends(topic)
        total, done = sum(ends.values()) - sum(first.values()), 0
        for begin, end in chunks(first, ends, CHUNK):
            found = self._reader.read(topic, begin, end)
            chosen = _letters(found, settings) if effect.letters else _rows(found, settings, partitions)
            self._index.note(chosen.where(at_or_after(self._starts)).toArrow())
            done += sum(end.values()) - sum(begin.values())
            self._say.emit("recovering", topic=topic, records=done, of=total)

    def _end(self) -> None:
        self._index.finish()
        self._say.emit("recovered", bounds=self._index.bounds)


def check_source(settled: Positions, ends: Positions) -> None:
    """Check that the source still has all decided writes. New writes at the same offsets would be skipped.

    Raises:
        CdcError: ``source_cut``.
    """
    gone = [partition for partition, offset in sorted(settled.items()) if offset > ends.get(partition, 0)]
    if gone:
        raise CdcError(
            "source_cut",
            f"the mutations topic ends before offsets that this job has processed, in partitions {gone}",
            "the topic was truncated or created again: create a cluster under another name",
        )


def _rows(found: DataFrame, settings: JobSettings, partitions: int) -> DataFrame:
    """Return the identities of rows from records of the CDC topic."""
    rows = found.mapInArrow(named(partitions), NAMED_TYPE).where(F.col("topic") == settings.source_topic)
    return rows.select(*NOTED[:-1], F.lit(False).alias("letter"), "place")


def named(partitions: int) -> Callable[[Batches], Batches]:
    """Return a function from records of the CDC topic to identities of their rows (``NAMED_TYPE``).

    Args:
        partitions: Number of partitions of the CDC topic.
    """

    def identities(batches: Batches) -> Batches:
        for batch in batches:
            of = heads_of(batch.column("value"))
            # The record key is the stream id, and its hash is the partition.
            streams = np.frombuffer(b"".join(batch.column("key").to_pylist()), dtype=np.uint8).reshape(-1, STREAM_BYTES)
            columns = [
                of.topics,
                pa.array(of.partitions.astype("int32")),
                pa.array(of.offsets),
                pa.array(of.timestamps),
                pa.array(of.numbers.astype("int32")),
                pa.array(of.operations.astype("int32")),
                pa.array(of.lasts),
                pa.array((crc32_rows(streams) % np.uint32(partitions)).astype("int32")),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["topic", *NOTED[:-1], "place"])

    return identities


def _letters(found: DataFrame, settings: JobSettings) -> DataFrame:
    """Return the identities of letters from records of the dead-letter topic.

    The key is topic, partition and offset.
    """
    place = F.split(F.col("key").cast("string"), "/")
    return found.where(place[0] == settings.source_topic).select(
        place[1].cast("int").alias("partition"),
        place[2].cast("bigint").alias("offset"),
        F.lit(0).cast("bigint").alias("timestamp"),
        F.lit(0).alias("number"),
        F.lit(0).alias("operation"),
        F.lit(False).alias("last"),
        F.lit(True).alias("letter"),
        F.lit(LETTERS).alias("place"),
    )


def first_place(offsets: Offsets, topic: str, state: ClusterState) -> dict[int, int]:
    """Return the first offsets of the CDC topic that may have rows of mutations that a new checkpoint reads again."""
    oldest = next((found for found in state.generations if found.closed is None), None)
    if oldest is None or oldest is state.generations[0]:
        return offsets.begins(topic)
    return offsets.begins_at(topic, oldest.timestamp - SETTINGS["cdc_leeway_us"].maximum - CLOCK_MARGIN_US)


def without(function: Callable[[Batches], Batches], known: Any, counts: Any) -> Callable[[Batches], Batches]:
    """Wrap the rows function to remove existing rows and letters.

    Args:
        function: Function of ``OUT`` batches.
        known: Broadcast ``KnownRows``.
        counts: Accumulator of tallies.
    """

    def outgoing(batches: Batches) -> Batches:
        left = LeftToWrite(known.value)
        for batch in function(batches):
            found, renumbered = report_basis(batch, left)
            counts.add(correction(batch.filter(pa.array(found))))
            if renumbered:
                values = batch.column("value").to_pylist()
                at, column = batch.schema.get_field_index("value"), batch.schema.field("value")
                values = [renumbered.get(place, value) for place, value in enumerate(values)]
                batch = batch.set_column(at, column, pa.array(values, column.type))
            yield batch.filter(pa.array(~found))

    return outgoing


def report_basis(batch: pa.RecordBatch, left: LeftToWrite) -> tuple[NDArray[np.bool_], dict[int, bytes]]:
    """Find the records of an ``OUT`` batch that must not be written.

    Args:
        batch: The batch. ``left`` must see all batches, in order.
        left: The filter.

    Returns:
        Flags of the records to remove, and record index to the encoded row for rows with another number.
    """
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    found, renumbered = np.zeros(len(partitions), dtype=bool), dict[int, bytes]()
    rows, letters = np.flatnonzero(partitions != LETTER), np.flatnonzero(partitions == LETTER)
    if len(rows):
        of = heads_of(batch.column("value").take(pa.array(rows)))
        columns = of.partitions, of.offsets, of.timestamps, of.numbers
        names = [*zip(*(column.tolist() for column in columns), strict=True)]
        asked = zip(names, partitions[rows].tolist(), of.operations.tolist(), of.lasts.tolist(), strict=True)
        numbers = [left.number(*one) for one in asked]
        found[rows] = [number is None for number in numbers]
        for place, name, number in zip(rows.tolist(), names, numbers, strict=True):
            if number is not None and number != name[3]:
                row = decoded(batch.column("value")[place].as_py())
                renumbered[place] = encode_cdc_row(replace(row, batch_seq_no=number))
    for place in letters.tolist():
        _, partition, offset = batch.column("key")[place].as_py().decode().rsplit("/", 2)
        found[place] = left.has_letter((int(partition), int(offset)))
    return found, renumbered


def correction(batch: pa.RecordBatch) -> Tally:
    """Return a tally that undoes the counts of removed records, and counts their mutations as ``KNOWN``."""
    is_row = pa.array(batch.column("partition").to_numpy(zero_copy_only=False) != LETTER)
    rows = heads_of(batch.filter(is_row).column("value"))
    letters = batch.filter(pc.invert(is_row)).column("value").to_pylist()
    places = set(zip(rows.partitions.tolist(), rows.offsets.tolist(), strict=True))
    tally = Tally(generations=Counter({start: -count for start, count in counted(rows.generations).items()}))
    tally.reasons.update({KNOWN: len(places) + len(letters), ROUTED: -len(rows.offsets)})
    tally.reasons.subtract(NUMBERS[decode_dead_letter(letter).reason] for letter in letters)
    return tally


class IndexBounds(Value):
    """Summary of an index.

    Attributes:
        bounds: Source partition to the offset after the last existing row or letter.
        settled: See ``KnownRows``.
        lasts: See ``KnownRows``.
    """

    bounds: dict[int, int]
    settled: dict[int, int]
    lasts: dict[tuple[int, int], int]


def bounds_of(content: Any) -> IndexBounds:
    """Return the summary in the content of a file. Raises TypeError, ValueError, KeyError or AttributeError."""
    bounds, settled = (
        {int(key): typed(value, int) for key, value in content[name].items()} for name in ("bounds", "settled")
    )
    lines = [tuple(typed(number, int) for number in line) for line in content["lasts"]]
    lasts = {(partition, place): offset for partition, place, offset in lines}
    found = IndexBounds(bounds, settled, lasts)
    if _fields(found) != content:
        raise ValueError("a field has another form")
    return found


def _fields(found: IndexBounds) -> dict[str, Any]:
    """Return the content of a file."""
    lasts = [[*name, offset] for name, offset in sorted(found.lasts.items())]
    return {"bounds": _named(found.bounds), "settled": _named(found.settled), "lasts": lasts}


def _named(bounds: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): bound for partition, bound in sorted(bounds.items())}
