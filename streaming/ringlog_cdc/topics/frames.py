"""Kafka records as Spark frames: selections of a batch, and ranges of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ringlog.runtime.kafka.config import spark_options
from ringlog_cdc.plan.plan import OffsetRange
from ringlog_cdc.settings import JobSettings

Positions = Mapping[int, int]
"""Partition to offset."""


def columns_of_source() -> list[Column]:
    """Return the columns of Spark's Kafka source that the Arrow functions read.

    Select them from a batch in ``foreachBatch``. Spark copies the rows of such a batch anyway, and selects while
    copying.
    """
    names = ("partition", "offset", "key", "value")
    partition, offset, key, value = map(F.col, names)
    return [partition, offset, F.unix_micros("timestamp").alias("appended"), key, value]


def before(ends: Positions) -> Column:
    """Return a condition for records before these offsets. Partitions without an offset have none."""
    condition = F.lit(False)
    for partition, end in sorted(ends.items()):
        condition = condition | ((F.col("partition") == F.lit(partition)) & (F.col("offset") < F.lit(end)))
    return condition


def within(ranges: Sequence[OffsetRange]) -> Column:
    """Return a condition for the records of these ranges."""
    condition = F.lit(False)
    for item in ranges:
        offset = F.col("offset")
        inside = (offset >= F.lit(item.start)) & (offset < F.lit(item.end))
        condition = condition | ((F.col("partition") == F.lit(item.partition)) & inside)
    return condition


class TopicReader:
    """Reader of topic ranges as batch frames."""

    def __init__(self, session: SparkSession, settings: JobSettings) -> None:
        self._session = session
        self._settings = settings

    def read(self, topic: str, begins: Positions, ends: Positions) -> DataFrame:
        """Return keys and values of the records from ``begins`` up to ``ends``."""
        reader = self._session.read.format("kafka").options(**spark_options(self._settings.bootstrap_servers))
        for name, places in (("startingOffsets", begins), ("endingOffsets", ends)):
            text = json.dumps({topic: {str(partition): offset for partition, offset in places.items()}})
            reader = reader.option(name, text)
        found = reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic).load()
        return found.select("key", "value")


def chunks(begins: Positions, ends: Positions, size: int) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
    """Yield (start, end) offsets that cut a range of a topic into steps of about ``size`` records."""
    each = max(1, size // max(1, len(ends)))
    at = {partition: begins.get(partition, 0) for partition in ends}
    while any(at[partition] < end for partition, end in ends.items()):
        to = {partition: min(end, at[partition] + each) for partition, end in ends.items()}
        yield at, to
        at = to


def at_or_after(starts: Positions) -> Column:
    """Return a condition for mutations at these source offsets or later."""
    condition = F.lit(False)
    for partition, start in sorted(starts.items()):
        condition = condition | ((F.col("partition") == F.lit(partition)) & (F.col("offset") >= F.lit(start)))
    return condition
