"""The Spark side of CDC: the job that writes the log, and the data source that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_cdc(
    spark: SparkSession,
    bootstrap: str,
    cluster: str,
    table: str,
    *,
    start: str = "earliest",
    lost: str = "error",
    stream: bool = False,
    table_id: str = "",
) -> DataFrame:
    """A table's CDC log; ``stream``: followed, else up to its present end. ``table_id``: of a table that had the name
    before. Options and columns: ``reading``.
    """
    from ringlog_cdc_reader.source import NAME, RinglogCdc

    spark.dataSource.register(RinglogCdc)
    options = {"bootstrap": bootstrap, "cluster": cluster, "table": table, "start": start, "lost": lost}
    options |= {"tableId": table_id} if table_id else {}
    if stream:
        return spark.readStream.format(NAME).options(**options).load()
    return spark.read.format(NAME).options(**options).load()
