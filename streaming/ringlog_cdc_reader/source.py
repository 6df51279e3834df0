"""The Spark data source ``ringlog-cdc``: the CDC log of a table, for batch and streaming queries.

    spark.dataSource.register(RinglogCdc)
    spark.readStream.format("ringlog-cdc").options(bootstrap="…", cluster="shop", table="ks.orders").load()

================  =================================================================================================
option            meaning
================  =================================================================================================
``bootstrap``     the brokers
``cluster``       name of the cluster
``table``         keyspace.table: the table with this name, or else the last one that had it
``tableid``       id of a table that had the name before, to read its rows instead
``start``         start of a new query: earliest (default), now, microseconds since 1970, or ISO 8601 with zone
``lost``          error (default) or skip: reaction to rows that are no longer retained
``rowsmax``       approximate records of the CDC topic per batch of a stream (default: no limit)
================  =================================================================================================

The offset of a stream is the protocol core's position, stored as text in Spark's checkpoint. The checkpoint also
records which metadata log was seen, because that log gives the rows their meaning. A restarted query continues at
exactly that position, and fails if the metadata log is another one.

A batch reads to the end that the topic had when the batch started, through all generations that are closed by then. A
generation that was left is never read again. With the trigger ``availableNow``, Spark asks a Python source for one
batch, and that batch has everything that was in the topic.

Rows of one stream arrive in the order of their writes. Across generations, and in a batch query, rows have no order
unless the query sorts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ringlog.client.cdc.errors import TablesForgotten
from ringlog.client.cdc.progress import ConsumerProgress
from ringlog.client.cdc.table_versions import NamePeriod
from ringlog.log.replicas.identity import IdentityRecord, MemoryIdentityStore, record_from_json, record_to_json
from ringlog_cdc.errors import CdcError
from ringlog_cdc_reader.columns import LogColumns
from ringlog_cdc_reader.ranges import (
    ALL,
    CdcRange,
    ReadSettings,
    Scan,
    WholeRange,
    ranges_along,
    rows_of,
    whole_life,
)
from ringlog_cdc_reader.vectors import batch_of

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "ringlog-cdc"
"""Name of the data source."""
CHECKPOINT = "the query's checkpoint"
"""How errors refer to the place where the metadata log was recorded."""
OPTIONS = ("bootstrap", "cluster", "table", "tableid", "start", "lost", "rowsmax")


def settings_of(options: Mapping[str, str]) -> ReadSettings:
    """Parse the options of a query. Option names are case-insensitive.

    Raises:
        CdcError: ``bad_option``.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name in ("bootstrap", "cluster", "table"):
        if not given.get(name):
            raise CdcError("bad_option", f"option {name} is missing", f"pass it; the options are {', '.join(OPTIONS)}")
    lost, rows_max = given.get("lost", "error"), given.get("rowsmax", str(ALL))
    if lost not in ("error", "skip"):
        raise CdcError("bad_option", f"option lost is {lost!r}", "pass error or skip")
    if not rows_max.isdecimal() or int(rows_max) < 1:
        raise CdcError("bad_option", f"option rowsmax is {rows_max!r}", "pass an integer of 1 or more")
    return ReadSettings(
        given["bootstrap"],
        given["cluster"],
        given["table"],
        given.get("start", "earliest"),
        lost == "skip",
        int(rows_max),
        given.get("tableid", ""),
    )


class RinglogCdc(DataSource):
    """The data source. See the module for options and guarantees."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the table's log under the current schema."""
        return self._columns(MemoryIdentityStore(CHECKPOINT)).spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the reader of a batch query."""
        return CdcBatchReader(settings_of(self.options), self._columns(MemoryIdentityStore(CHECKPOINT)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Return the reader of a streaming query."""
        memory = MemoryIdentityStore(CHECKPOINT)
        columns = self._columns(memory)
        return CdcStreamReader(settings_of(self.options), columns, memory.recorded)

    def _columns(self, memory: MemoryIdentityStore) -> LogColumns:
        return LogColumns(*Scan(settings_of(self.options)).table(memory))


def batches(settings: ReadSettings, columns: LogColumns, found: CdcRange | WholeRange) -> Iterator[pa.RecordBatch]:
    """Run a task: yield one Arrow batch for each poll.

    Rows may be older than the history that the driver knows of the table's name. The task then folds the metadata log
    from its beginning.

    Raises:
        TablesForgotten: The log does not tell either which table the rows belong to.
        TableReplaced: Another table has the name now.
    """
    if isinstance(found, CdcRange):
        columns = columns.until(found.life, by_id=bool(settings.table_id))
    for rows in rows_of(settings, found):
        try:
            batch = batch_of(columns, rows, found.partition)
        except TablesForgotten:
            columns = columns.with_past(whole_life(settings, columns.table.id))
            batch = batch_of(columns, rows, found.partition)
        yield batch


class CdcBatchReader(DataSourceReader):
    """Reader of a batch query: everything up to the end of the topic when the query is planned."""

    def __init__(self, settings: ReadSettings, columns: LogColumns) -> None:
        self._settings = settings
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return a range for each partition, with all readable generations."""
        scan = Scan(self._settings)
        try:
            return scan.whole()
        finally:
            scan.close()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Run a task.

        If ``partitions`` returned nothing, because the log has no rows, Spark 4.0 passes None and Spark 4.2 a partition
        without a value.
        """
        if partition is None or (type(partition) is InputPartition and partition.value is None):
            return iter(())
        assert isinstance(partition, WholeRange)
        return batches(self._settings, self._columns, partition)


class CdcStreamReader(DataSourceStreamReader):
    """Reader of a streaming query. On the driver it lives as long as the query.

    Spark does not pass the last offset to a restarted reader. The reader learns it from the first call of
    ``partitions``.
    """

    def __init__(self, settings: ReadSettings, columns: LogColumns, log: IdentityRecord | None) -> None:
        self._settings = settings
        self._columns = columns
        self._log = log
        self._scan: Scan | None = None
        self._initial: str | None = None
        self._at: str | None = None

    def initialOffset(self) -> dict[str, str]:
        """Return the offset of a new query."""
        if self._initial is None:
            self._initial = self._driver().first().to_json()
        return {"place": self._initial}

    # Spark 4.0 calls this method without arguments. Later releases look at its parameters first.
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Read on, and return the offset at the current end.

        The offset has the position (``place``), the positions of the generations left on the way (``left``), and for
        the first batch its start (``from``).
        """
        found: dict[str, Any] = {}
        if self._at is None:
            # The first batch records its own start: with ``now``, a repeated batch would start elsewhere.
            found["from"] = self.initialOffset()["place"]
            self._go_to(found["from"])
        scan = self._driver()
        left = scan.advance()
        if left:
            found["left"] = [place.to_json() for place in left]
        self._at = found["place"] = scan.place().to_json()
        if self._log is not None:
            found["log"] = record_to_json(self._log)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges along the path between two offsets.

        Raises:
            LogForked, LogReplaced, LogTruncated, LogDamaged: The metadata log is not the one of the checkpoint.
        """
        if self._at is None and "log" in end:
            Scan(self._settings).table(MemoryIdentityStore(CHECKPOINT, record_from_json(end["log"], CHECKPOINT)))
        if self._at != end["place"]:
            self._go_to(end["place"])
        if start == end:
            return []
        path = [end.get("from", start["place"]), *end.get("left", ()), end["place"]]
        ranges = ranges_along([ConsumerProgress.from_json(place) for place in path])
        life = self._life() if ranges else None
        return [replace(one, life=life) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run a task."""
        assert isinstance(partition, CdcRange)
        return batches(self._settings, self._columns, partition)

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _life(self) -> NamePeriod | None:
        """Return the table's current period, or None if another table had the name already when the query started."""
        life = self._columns.life
        return self._driver().life(self._columns.table.id) if life is not None and life.is_last else None

    def _driver(self) -> Scan:
        if self._scan is None:
            self._scan = Scan(self._settings)
        return self._scan

    def _go_to(self, place: str) -> None:
        self._driver().go_to(ConsumerProgress.from_json(place))
        self._at = place

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the settings without connections, for the tasks."""
        return {**self.__dict__, "_scan": None}
