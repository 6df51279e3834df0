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
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ringlog_cdc.plan import OffsetRange

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


def by_bytes(records: DataFrame) -> DataFrame:
    """The records, in Arrow batches of so many bytes at most."""
    records.sparkSession.conf.set(BYTES_SETTING, str(CUT_BYTES))
    return records


def if_small(records: DataFrame) -> DataFrame:
    """The small ones of the records (``ringlog_cdc.arrow.IN``), a mark for each of the others."""
    records.sparkSession.conf.set(BYTES_SETTING, str(NEVER_CUT))
    sizes = (F.coalesce(F.length(name), F.lit(0)) for name in ("key", "value"))
    large = sum(sizes, F.lit(0)) > SMALL_BYTES
    return records.select(
        "partition",
        "offset",
        F.when(large, F.lit(MARK)).otherwise(F.col("appended")).alias("appended"),
        *(F.when(~large, F.col(name)).alias(name) for name in ("key", "value")),
    )


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
