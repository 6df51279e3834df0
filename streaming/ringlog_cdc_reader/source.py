"""``spark.read`` and ``spark.readStream.format("ringlog-cdc")``: a table's CDC log as a data source.

    spark.dataSource.register(RinglogCdc)
    spark.readStream.format("ringlog-cdc").options(bootstrap="…", cluster="shop", table="ks.orders").load()

================  =================================================================================================
option            meaning
================  =================================================================================================
``bootstrap``     the brokers
``cluster``       name of the cluster
``table``         keyspace.table: the one that has the name now, or else had it last
``tableid``       id of one that had the name before it: its rows are another table's
``start``         of a new query: earliest (default), now, microseconds since 1970, or an ISO 8601 time with zone
``lost``          error (default) or skip: what to do where rows are no longer kept
``rowsmax``       records of the CDC topic in a batch of a stream, about (default: all that there are)
================  =================================================================================================

The offset of a stream is the protocol's place, as text in Spark's own log, and beside it what was seen of the
metadata log, which says what rows mean: a query that is started again goes on exactly there, and not with another
history. A batch goes to where the topic ended when it began, through as many generations as are closed by then; a
generation that was left is never looked at again. So a run with the trigger ``availableNow``, which asks a source in
Python for one batch and no more, has everything that was there. The rows of one stream come in the order of their
writes; across generations, and in a batch query, rows have no order but the one that is asked for.
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
from ringlog.log.replicas.identity import CarriedRecord, Recorded, record_of, record_to_json
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
CHECKPOINT = "the query's checkpoint"
OPTIONS = ("bootstrap", "cluster", "table", "tableid", "start", "lost", "rowsmax")


def settings_of(options: Mapping[str, str]) -> ReadSettings:
    """Options as Spark hands them on, names in any case. Raises CdcError ``bad_option``."""
    given = {name.lower(): value for name, value in options.items()}
    for name in ("bootstrap", "cluster", "table"):
        if not given.get(name):
            raise CdcError("bad_option", f"option {name} is missing", f"the options are {', '.join(OPTIONS)}")
    lost, rows_max = given.get("lost", "error"), given.get("rowsmax", str(ALL))
    if lost not in ("error", "skip"):
        raise CdcError("bad_option", f"lost is {lost!r}", "error or skip")
    if not rows_max.isdecimal() or int(rows_max) < 1:
        raise CdcError("bad_option", f"rowsmax is {rows_max!r}", "a number from 1 on")
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
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the table's log, as the schema is now."""
        return self._columns(CarriedRecord(CHECKPOINT)).spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Of a batch query."""
        return CdcBatchReader(settings_of(self.options), self._columns(CarriedRecord(CHECKPOINT)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002
        """Of a streaming query."""
        memory = CarriedRecord(CHECKPOINT)
        columns = self._columns(memory)
        return CdcStreamReader(settings_of(self.options), columns, memory.recorded)

    def _columns(self, memory: CarriedRecord) -> LogColumns:
        return LogColumns(*Scan(settings_of(self.options)).table(memory))


def batches(settings: ReadSettings, columns: LogColumns, found: CdcRange | WholeRange) -> Iterator[pa.RecordBatch]:
    """A task. Rows from before what the driver knows of the table have it fold the metadata log from its beginning.

    Raises TablesForgotten where that does not tell whose they are; TableReplaced.
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
    """Everything up to the end that the topic has when the query is planned."""

    def __init__(self, settings: ReadSettings, columns: LogColumns) -> None:
        self._settings = settings
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """A range for each partition, with all generations that can be read."""
        scan = Scan(self._settings)
        try:
            return scan.whole()
        finally:
            scan.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task."""
        assert isinstance(partition, WholeRange)
        return batches(self._settings, self._columns, partition)


class CdcStreamReader(DataSourceStreamReader):
    """On the driver it lives as long as the query; Spark gives it the place it had, when the query is started again,
    by asking for the ranges between that place and itself.
    """

    def __init__(self, settings: ReadSettings, columns: LogColumns, log: Recorded | None) -> None:
        self._settings = settings
        self._columns = columns
        self._log = log
        self._scan: Scan | None = None
        self._initial: str | None = None
        self._at: str | None = None

    def initialOffset(self) -> dict[str, str]:
        """Where a new query begins."""
        if self._initial is None:
            self._initial = self._driver().first().to_json()
        return {"place": self._initial}

    def latestOffset(self) -> dict[str, Any]:
        """The place at the end of what there is, and the path to it."""
        found: dict[str, Any] = {}
        if self._at is None:
            # The first batch says itself where it began: ``now`` would be another place when it is repeated.
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
        """Ranges along the path between two places.

        Raises LogForked, LogReplaced, LogTruncated, LogDamaged: the metadata log is not that of the checkpoint.
        """
        if self._at is None and "log" in end:
            Scan(self._settings).table(CarriedRecord(CHECKPOINT, record_of(end["log"], CHECKPOINT)))
        if self._at != end["place"]:
            self._go_to(end["place"])
        if start == end:
            return []
        path = [end.get("from", start["place"]), *end.get("left", ()), end["place"]]
        ranges = ranges_along([ConsumerProgress.from_json(place) for place in path])
        life = self._life() if ranges else None
        return [replace(one, life=life) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task."""
        assert isinstance(partition, CdcRange)
        return batches(self._settings, self._columns, partition)

    def stop(self) -> None:
        """The query has ended."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _life(self) -> NamePeriod | None:
        """When the table had its name, if no other one had got it when the query began."""
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
        """Tasks get the settings, no connections."""
        return {**self.__dict__, "_scan": None}
