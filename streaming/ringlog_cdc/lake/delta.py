"""All that is asked of Delta: where tables lie, idempotent appends, overwrites, and closing an author out.

A commit carries the identity of its author and a number that rises (``txnAppId``, ``txnVersion``): Delta skips one
whose number is not above the last of that author, whatever became of the driver in between. An author that must never
commit again is *closed out* by a commit in its name with the highest number there is.

Only DataFrames by path: no catalogue is needed, and no Python package of Delta's.
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
LAST = 2**63 - 1
"""The number after which an author has no further one."""
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # of a table's list of files: 50 tasks are for lakes of millions
}
_MISSING = ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND")


def log_path(root: str, table: str) -> str:
    """Where the CDC log of the table with that full name lies."""
    keyspace, _, name = table.partition(".")
    return f"{root.rstrip('/')}/{keyspace}/{name}{SUFFIX}"


def description_path(root: str, name: str) -> str:
    """Where a table of descriptions lies; no keyspace has such a name, for a hyphen is no part of one."""
    return f"{root.rstrip('/')}/{name}"


class DeltaTables:
    """Tables of one session, as one author."""

    def __init__(self, session: SparkSession, author: str) -> None:
        self.session = session
        self.author = author

    def load(self, path: str) -> DataFrame | None:
        """The table as it is now; None if there is none. Raises CdcError ``lake_unreadable``."""
        try:
            return self.session.read.format("delta").load(path)
        except (PySparkException, Py4JJavaError) as error:
            if isinstance(error, PySparkException) and (error.getCondition() or "").startswith(_MISSING):
                return None
            raise CdcError(
                "lake_unreadable", str(error).splitlines()[0], "is Delta among Spark's jars, and PATH a lake?"
            ) from error

    def is_there(self, path: str) -> bool:
        """Is there a table, by its log alone? One question to the file system. Raises CdcError ``lake_unreadable``."""
        context: Any = self.session.sparkContext
        try:
            log = context._jvm.org.apache.hadoop.fs.Path(f"{path}/_delta_log")
            return bool(log.getFileSystem(context._jsc.hadoopConfiguration()).exists(log))
        except Py4JJavaError as error:
            why = str(error.java_exception).splitlines()[0]
            raise CdcError("lake_unreadable", why, "does the lake's store answer?") from error

    def columns(self, path: str) -> dict[str, str] | None:
        """Column to Spark type of a table; None if there is none."""
        found = self.load(path)
        return None if found is None else types_of(found.schema)

    def append(
        self, path: str, rows: DataFrame, version: int | None, told: Mapping[str, Any], author: str | None = None
    ) -> None:
        """Add rows in one commit, unless its number was committed (None: it has none); ``told`` is kept with it."""
        write = self._write(rows, version, told, author).mode("append").option("mergeSchema", "true")
        if GENERATION in rows.columns:
            write = write.partitionBy(GENERATION)
        write.save(path)

    def overwrite(self, path: str, rows: DataFrame, version: int, author: str, generation: int | None = None) -> None:
        """Put rows in the place of all that is there, or of a generation's; again if somebody else did so just now."""
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
        """Nothing can be added to a table in that author's name any more."""
        there = self.load(path)
        if there is not None:
            self.append(path, there.limit(0), LAST, {"closed_out": author}, author)

    def told(self, path: str) -> tuple[dict[str, Any], ...]:
        """What was kept with the newest commits of a table, the newest first."""
        if self.load(path) is None:
            return ()
        history = self.session.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT {COMMITS}").select("userMetadata").collect()
        return tuple(decode_told(row["userMetadata"].encode()) for row in history if row["userMetadata"])

    def _write(self, rows: DataFrame, version: int | None, told: Mapping[str, Any], author: str | None) -> Any:
        write = rows.write.format("delta").option("userMetadata", json.dumps(told, sort_keys=True))
        if version is not None:
            write = write.option("txnAppId", author or self.author).option("txnVersion", version)
        return write


TRIES = 5
CONFLICT = "DELTA_CONCURRENT"
"""Begins the code of an error where another driver of the cluster committed at the same moment."""
COMMITS = 200
"""How many commits of a table are looked through for one of the job's: others compact it now and then."""


def decode_told(data: bytes) -> dict[str, Any]:
    """What was kept with a commit of the job; nothing for a commit by another author."""
    try:
        found = json.loads(data)
        places = {int(partition): offset for partition, offset in found.get("cdc_from", {}).items()}
        is_ours = isinstance(found.get("writer", ""), str) and all(type(offset) is int for offset in places.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(found) if is_ours else {}


def types_of(schema: StructType) -> dict[str, str]:
    """Column to its type, as text."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}
