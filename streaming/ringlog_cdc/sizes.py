"""How Spark cuts Arrow batches: by records alone while all records are small, else by their bytes too.

To cut by bytes, Spark adds up the buffers of all columns before each and every record, which takes a tenth of what an
executor does for the job. As long as no record is larger than ``SMALL_BYTES`` there is nothing to be cut: that many
records of that size are less than the bytes at which Spark would cut. So records are *small* until one is not: then the
expression that looks fails the write, the part is carried out again, as after any failure of a task, and from then on
Spark cuts by bytes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SMALL_BYTES = 16 * 1024
MARK = "ringlog: a record is not small"
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
CUT_BYTES = 128 * 1024 * 1024
NEVER_CUT = 2**31 - 1
"""Spark looks at no bytes if this is the limit."""


class ArrowBatches:
    """Of one run of the job."""

    def __init__(self) -> None:
        self._all_small = True

    def of(self, records: DataFrame) -> DataFrame:
        """The records, for a function that takes Arrow batches of them."""
        records.sparkSession.conf.set(BYTES_SETTING, str(NEVER_CUT if self._all_small else CUT_BYTES))
        if not self._all_small:
            return records
        size = F.length("value") + F.coalesce(F.length("key"), F.lit(0))
        value = F.when(size > SMALL_BYTES, F.raise_error(F.lit(MARK)).cast("binary")).otherwise(F.col("value"))
        return records.withColumn("value", value)

    def is_to_repeat(self, error: Exception) -> bool:
        """Has a write failed because a record is not small? Then the next one looks at their bytes."""
        if not self._all_small or MARK not in str(error):
            return False
        self._all_small = False
        return True
