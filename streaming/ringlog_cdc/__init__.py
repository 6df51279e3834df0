"""Spark side of CDC: the job that writes the log, and access to the data source that reads it."""

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
    """Return a table's CDC log as a frame. ``ringlog_cdc_reader.source`` describes the options and columns.

    Args:
        spark: Spark session.
        bootstrap: The brokers.
        cluster: Name of the cluster.
        table: ``keyspace.table``.
        start: Start of the query.
        lost: ``error`` or ``skip``.
        stream: Follow the log, instead of reading to its current end.
        table_id: Id of a table that had the name before.
    """
    from ringlog_cdc_reader.source import NAME, RinglogCdc

    spark.dataSource.register(RinglogCdc)
    options = {"bootstrap": bootstrap, "cluster": cluster, "table": table, "start": start, "lost": lost}
    options |= {"tableId": table_id} if table_id else {}
    if stream:
        return spark.readStream.format(NAME).options(**options).load()
    return spark.read.format(NAME).options(**options).load()
