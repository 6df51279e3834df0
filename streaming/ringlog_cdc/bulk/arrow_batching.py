"""How Spark cuts Arrow batches: by records alone while all records are small, else by their bytes too.

To cut by bytes, Spark adds up the buffers of all columns before each and every record, which takes a tenth of what an
executor does for the job. As long as no record is larger than ``SMALL_BYTES`` there is nothing to be cut: that many
records of that size are less than the bytes at which Spark would cut. So records are *small* until one is not. In its
place Spark then hands over a mark; the task stops before it, and says where. The driver writes the rest of that
partition in a second pass, and from then on Spark cuts by bytes. Nothing is written twice, and the order stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ringlog_cdc.plan.plan import OffsetRange
from ringlog_cdc.topics.frames import columns_of_source

ARROW_RECORDS = 32_000
"""Of an Arrow batch, at most: numpy wants many at once."""
CUT_BYTES = 128 * 1024 * 1024
SMALL_BYTES = CUT_BYTES // ARROW_RECORDS
MARK = -(2**63)
"""The append time of a record that is not small; neither key nor value comes with it."""
CUT = "cut before"
"""With a source partition, in a tally: the offset of the first record that is not small, and 1."""
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
NEVER_CUT = 2**31 - 1
"""Spark looks at no bytes if this is the limit."""


class RecordColumns:
    """Records of batches as the Arrow functions want them (``ringlog_cdc.bulk.arrow.read``). Expressions are made once,
    for each is a few calls into the JVM.
    """

    def __init__(self) -> None:
        self._columns: dict[bool, list[Column]] = {}

    def of(self, frame: DataFrame, *, only_small: bool = False) -> DataFrame:
        """Of what Spark hands over; ``only_small``: with a mark in the place of each that is not."""
        frame.sparkSession.conf.set(BYTES_SETTING, str(NEVER_CUT if only_small else CUT_BYTES))
        if only_small not in self._columns:
            self._columns[only_small] = _if_small() if only_small else columns_of_source()
        return frame.select(*self._columns[only_small])


def _if_small() -> list[Column]:
    partition, offset, appended, *data = columns_of_source()
    sizes = (F.coalesce(F.length(column), F.lit(0)) for column in data)
    large = sum(sizes, F.lit(0)) > SMALL_BYTES
    content = (F.when(~large, column).alias(name) for column, name in zip(data, ("key", "value"), strict=True))
    return [partition, offset, F.when(large, F.lit(MARK)).otherwise(appended).alias("appended"), *content]


def before_mark(batches: Iterable[pa.RecordBatch], counts: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a task up to the first mark, whose place is added to ``counts``; the rest is passed over."""
    left = iter(batches)
    for batch in left:
        marked = np.flatnonzero(batch.column("appended").to_numpy() == MARK)
        if not len(marked):
            yield batch
            continue
        first = int(marked[0])
        yield batch.slice(0, first)
        counts.add({(CUT, batch.column("partition")[first].as_py()): batch.column("offset")[first].as_py() + 1})
        for _ in left:
            pass


def left_of(ranges: Sequence[OffsetRange], cut: Mapping[int, int]) -> list[OffsetRange]:
    """What is left of the ranges that were cut; ``cut``: the tally's numbers of ``CUT``, by source partition."""
    return [OffsetRange(item.partition, cut[item.partition] - 1, item.end) for item in ranges if item.partition in cut]
