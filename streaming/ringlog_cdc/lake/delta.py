"""Access to Delta: locations of tables, idempotent appends, overwrites, and closing out an author.

A commit has the identity of its author and an increasing number (``txnAppId``, ``txnVersion``). Delta skips a commit
whose number is not above the author's last one, so a repetition after a crash changes nothing. An author that must
never commit again is *closed out* by a commit in its name with the highest number.

Tables are accessed as DataFrames by path. Neither a catalogue nor Delta's Python package is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ringlog_cdc.errors import CdcError
from ringlog_cdc.lake.columns import GENERATION

GENERATIONS, STREAMS, WRITERS = "cdc-generations", "cdc-streams", "cdc-writers"
SUFFIX = "_scylla_cdc_log"
"""Suffix of a log table, as in ScyllaDB."""
LAST = 2**63 - 1
"""The highest number of an author."""
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Partitions of a table's file list. The default of 50 suits tables with millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Files of this many generations at once. Otherwise Spark sorts the rows of a task by generation, although they are
    # sorted, and not stably.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
}
"""Spark settings for Delta."""
_MISSING = ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND")
"""Error conditions of a missing table."""


def log_path(root: str, table: str) -> str:
    """Return the location of a table's CDC log."""
    keyspace, _, name = table.partition(".")
    return f"{root.rstrip('/')}/{keyspace}/{name}{SUFFIX}"


def description_path(root: str, name: str) -> str:
    """Return the location of a description table. No keyspace can have its name, which contains a hyphen."""
    return f"{root.rstrip('/')}/{name}"


class DeltaTables:
    """Delta tables of one session, written as one author."""

    def __init__(self, session: SparkSession, author: str) -> None:
        self.session = session
        self.author = author

    def load(self, path: str) -> DataFrame | None:
        """Return the current table, or None if it does not exist. Raises CdcError ``lake_unreadable``."""
        try:
            return self.session.read.format("delta").load(path)
        except (PySparkException, Py4JJavaError) as error:
            if isinstance(error, PySparkException) and (error.getCondition() or "").startswith(_MISSING):
                return None
            raise CdcError(
                "lake_unreadable",
                str(error).splitlines()[0],
                "check that Delta is among Spark's jars and that the path of --lake is a lake",
            ) from error

    def is_there(self, path: str) -> bool:
        """Return True if the table has a log. One request to the file system. Raises CdcError ``lake_unreadable``."""
        context: Any = self.session.sparkContext
        try:
            log = context._jvm.org.apache.hadoop.fs.Path(f"{path}/_delta_log")
            return bool(log.getFileSystem(context._jsc.hadoopConfiguration()).exists(log))
        except Py4JJavaError as error:
            why = str(error.java_exception).splitlines()[0]
            raise CdcError("lake_unreadable", why, "check that the object store of the lake answers") from error

    def columns(self, path: str) -> dict[str, str] | None:
        """Return column to Spark type of a table, or None if it does not exist."""
        found = self.load(path)
        return None if found is None else types_of(found.schema)

    def append(
        self, path: str, rows: DataFrame, version: int | None, told: Mapping[str, Any], author: str | None = None
    ) -> None:
        """Add rows in one commit, unless its number was committed before.

        Args:
            path: Location of the table.
            rows: The rows.
            version: Number of the commit. None: not numbered.
            ``told``: Metadata of the commit.
            author: Author of the commit. None: this one.
        """
        write = self._write(rows, version, told, author).mode("append").option("mergeSchema", "true")
        if GENERATION in rows.columns:
            write = write.partitionBy(GENERATION)
        write.save(path)

    def overwrite(self, path: str, rows: DataFrame, version: int, author: str, generation: int | None = None) -> None:
        """Replace all rows, or those of one generation. Retried after a concurrent commit.

        Args:
            path: Location of the table.
            rows: The rows.
            version: Number of the commit.
            author: Author of the commit.
            generation: Start of the generation to replace. None: all rows.
        """
        write = self._write(rows, version, {}, author).mode("overwrite")
        if generation is not None:
            where = f"`{GENERATION}` = {generation}"
            write = write.option("replaceWhere", where).option("mergeSchema", "true").partitionBy(GENERATION)
        for left in reversed(range(TRIES)):
            try:
                write.save(path)
                return
            except (PySparkException, Py4JJavaError) as error:
                if CONFLICT not in str(error) or not left:
                    raise

    def close_out(self, path: str, author: str) -> None:
        """Prevent all further commits of an author to a table."""
        there = self.load(path)
        if there is not None:
            self.append(path, there.limit(0), LAST, {"closed_out": author}, author)

    def told(self, path: str) -> tuple[dict[str, Any], ...]:
        """Return the metadata of the newest commits of a table, newest first."""
        if self.load(path) is None:
            return ()
        history = self.session.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT {COMMITS}").select("userMetadata").collect()
        return tuple(decode_told(row["userMetadata"].encode()) for row in history if row["userMetadata"])

    def _write(self, rows: DataFrame, version: int | None, told: Mapping[str, Any], author: str | None) -> Any:
        """Return a writer with the commit's metadata and number."""
        write = rows.write.format("delta").option("userMetadata", json.dumps(told, sort_keys=True))
        if version is not None:
            write = write.option("txnAppId", author or self.author).option("txnVersion", version)
        return write


TRIES = 5
"""Attempts of an overwrite."""
CONFLICT = "DELTA_CONCURRENT"
"""Start of the error code for a concurrent commit of another driver."""
COMMITS = 200
"""Commits of a table that are searched for one of the job's. Other tools compact the table now and then."""


def decode_told(data: bytes) -> dict[str, Any]:
    """Return the metadata of a commit of the job, or nothing for a commit of another author."""
    try:
        found = json.loads(data)
        places = {int(partition): offset for partition, offset in found.get("cdc_from", {}).items()}
        is_ours = isinstance(found.get("writer", ""), str) and all(type(offset) is int for offset in places.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(found) if is_ours else {}


def types_of(schema: StructType) -> dict[str, str]:
    """Return column to its type as text."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
