"""Size of Arrow batches: Spark cuts by number of records while all records are small, else by bytes too.

To cut by bytes, Spark adds up the buffers of all columns before each record, a tenth of an executor's time for the job.
While no record exceeds ``SMALL_BYTES`` that is wasted: a full batch of such records stays below the limit.

So records are assumed to be small. If one is not, Spark passes a mark in its place. The task stops before the mark and
reports its offset. The driver writes the rest of that partition in a second pass, and from then on Spark cuts by bytes.

Invariant: nothing is written twice, and the order of a partition is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ringlog_cdc.bulk.tally import Tally
from ringlog_cdc.plan.plan import OffsetRange
from ringlog_cdc.topics.frames import columns_of_source

ARROW_RECORDS = 32_000
"""Most records of an Arrow batch. Large batches suit numpy."""
CUT_BYTES = 128 * 1024 * 1024
"""Size limit of an Arrow batch when Spark cuts by bytes."""
SMALL_BYTES = CUT_BYTES // ARROW_RECORDS
"""Largest size of a small record, key and value together."""
MARK = -(2**63)
"""Append time that marks a large record, which is passed without key and value."""
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
"""Spark's limit of bytes per Arrow batch."""
NEVER_CUT = 2**31 - 1
"""The limit that makes Spark skip counting bytes."""


class RecordColumns:
    """The columns that the Arrow functions read (``ringlog_cdc.bulk.arrow.read``).

    Expressions are built once, since each costs a few calls into the JVM.
    """

    def __init__(self) -> None:
        self._columns: dict[bool, list[Column]] = {}

    def of(self, frame: DataFrame, *, only_small: bool = False) -> DataFrame:
        """Select the columns, and set Spark's limit to match.

        Args:
            frame: Records from Spark's Kafka source.
            only_small: Replace each large record by a mark.
        """
        frame.sparkSession.conf.set(BYTES_SETTING, str(NEVER_CUT if only_small else CUT_BYTES))
        if only_small not in self._columns:
            self._columns[only_small] = _if_small() if only_small else columns_of_source()
        return frame.select(*self._columns[only_small])


def _if_small() -> list[Column]:
    """Return the columns with marks in place of large records."""
    partition, offset, appended, *data = columns_of_source()
    sizes = (F.coalesce(F.length(column), F.lit(0)) for column in data)
    large = sum(sizes, F.lit(0)) > SMALL_BYTES
    content = (F.when(~large, column).alias(name) for column, name in zip(data, ("key", "value"), strict=True))
    return [partition, offset, F.when(large, F.lit(MARK)).otherwise(appended).alias("appended"), *content]


def before_mark(batches: Iterable[pa.RecordBatch], counts: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task up to the first mark. Add its offset to ``counts`` and skip the rest."""
    left = iter(batches)
    for batch in left:
        marked = np.flatnonzero(batch.column("appended").to_numpy() == MARK)
        if not len(marked):
            yield batch
            continue
        first = int(marked[0])
        yield batch.slice(0, first)
        counts.add(Tally(cuts={batch.column("partition")[first].as_py(): batch.column("offset")[first].as_py()}))
        # Drain the task's input. The second pass writes these records.
        for _ in left:
            pass


def left_of(ranges: Sequence[OffsetRange], cuts: Mapping[int, int]) -> list[OffsetRange]:
    """Return the rest of the ranges that were cut.

    Args:
        ranges: Ranges of the write.
        cuts: Source partition to the offset where its task stopped.
    """
    return [OffsetRange(item.partition, cuts[item.partition], item.end) for item in ranges if item.partition in cuts]
