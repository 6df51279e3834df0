"""A CDC consumer in plain Python.

    for change in CdcReader("127.0.0.1:9092", "shop", progress="orders.progress"):
        ...

The loop returns complete writes with typed values, in the order that the protocol guarantees (``reading``). A change
counts as processed when the loop asks for the next one. Processed changes are committed every ``commit_every`` changes,
every 5 s, and at the end. ``commit()`` also commits the current change. After a restart the first change is the one
after the last commit. A loop that ends by ``break`` or an exception does not commit.

Memory is bounded by a queue of fetched records, the incomplete writes, and ``ConsumerProgress``. Rows of later
generations are read again instead of stored.

Two readers cannot share one progress. To divide the work, give each reader a ``share``. The order of the writes to one
base partition is then guaranteed within a generation only, because its stream moves between generations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from ringlog.client.cdc.errors import BadProgress, BadStart, RowsLost, UnknownColumn, UnknownTable, UnreadableRecord
from ringlog.client.cdc.progress import ConsumerProgress, PartitionProgress, begin_at
from ringlog.client.cdc.reading import CdcReading, HiddenRows, RowVerdict
from ringlog.client.cdc.rows import CdcChange, TableTypes, change_of, decided_by, only_columns
from ringlog.client.cdc.schema import SchemaFollower
from ringlog.client.cdc.stores import FileProgress, MemoryProgress, ProgressStore, log_record_of
from ringlog.client.cdc.topics import CDC, CdcRecord, Topics
from ringlog.kernel.changes import TableChange
from ringlog.kernel.values import Micros
from ringlog.log.kafka.lag import Lag, LagReader
from ringlog.log.kafka.topics import topic_name
from ringlog.log.replicas.replay import ProgressCallback, log_progress
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, decode_cdc_row

EARLIEST, NOW = "earliest", "now"
Start = str | int | datetime
Lost = Literal["error", "skip"]

POLL_S = 0.2
COMMIT_S = 5.0
WHOLE = (0, 1)
UNKNOWN = TableTypes(None)
"""The types for rows whose table did not exist."""


class CdcReader:
    """A consumer of the CDC log; see the module description. Not thread-safe. Call ``close``, or use it as a context
    manager.

    A value has the type of the table version at the decision on its write. The reader gets these versions from the
    metadata log. It starts from the newest snapshot and reads earlier entries once if it finds an older row.
    ``CdcChange.table_id`` distinguishes recreated tables of the same name.

    Args:
        tables: Names as ``keyspace.table``. None or empty: all tables.
        columns: Names as ``keyspace.table.column``. Changes of these tables have only these columns and the key;
            ``CdcChange.raw`` is complete. Other tables have all columns. A renamed column needs both names.
        start: Start point of a reader without progress: ``earliest``, ``now``, or a time (microseconds since 1970, ISO
            8601, datetime). Earlier writes are skipped.
        progress: A file or a store. None: reading is not resumed.
        commit_every: Number of changes between commits. None: only ``commit()`` commits.
        lost: Reaction to rows that are no longer kept. ``error``: raise. ``skip``: continue and count in ``lost_rows``.
        until_end: Stop at the end that the topic had at the start. ``hidden_rows`` then describes rows before that end
            that cannot be delivered yet.
        share: (i, n): read the i-th of n parts of the partitions.
        log_record: File that records the seen metadata log, to detect another history. Default: next to a progress
            file.
        on_progress: Callback for progress messages of long reads of the metadata log.

    Raises CdcReadError (see ``errors``), LogUnavailable, TopicMissing, other LogErrors, on creation or in the loop.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        *,
        tables: Iterable[str] | None = None,
        columns: Iterable[str] = (),
        start: Start = EARLIEST,
        progress: str | Path | ProgressStore | None = None,
        commit_every: int | None = 1_000,
        lost: Lost = "error",
        until_end: bool = False,
        share: tuple[int, int] = WHOLE,
        log_record: Path | None = None,
        on_progress: ProgressCallback = log_progress,
    ) -> None:
        self.lost_rows = 0
        self._bootstrap = bootstrap_servers
        self._lag: LagReader | None = None
        self._cluster = cluster
        self._share = share
        self._commit_every = commit_every
        self._skip = lost == "skip"
        self._wanted = frozenset(tables or ())
        self._columns = columns_by_table(columns)
        self._uncommitted, self._moved = 0, False
        self._fetched: set[int] = set()
        self._types: dict[str, TableTypes] = {}
        begin = start_of(start)
        self._store = _store(progress)
        try:
            if log_record is None and isinstance(progress, str | Path):
                log_record = log_record_of(Path(progress))
            self._schema = SchemaFollower(bootstrap_servers, cluster, log_record, on_progress=on_progress)
            self._topics = Topics(bootstrap_servers, cluster)
            try:
                self._schema.start()
                self._topics.start()
                self._topic_id = self._topics.topic_id()
                self._check_tables()
                bounds = {number: found for number, found in self._topics.bounds().items() if self._is_assigned(number)}
                place = self._begin(begin, bounds)
                self._reading: CdcReading[CdcRow] = CdcReading(place, self._wanted or None)
                self._ends = {number: high for number, (_, high) in bounds.items()} if until_end else None
                self._check_kept(bounds)
                if not self._move_on():
                    self._read_on()
            except BaseException:
                self._topics.close()
                self._schema.close()
                raise
        except BaseException:
            self._store.close()
            raise

    # ------------------------------------------------------------------------------------------------ use

    def __iter__(self) -> Iterator[CdcChange]:
        """Return every change after the stored position. Without ``until_end``, the iteration waits for new changes
        forever.
        """
        committed = time.monotonic()
        while True:
            for change in self.poll():
                yield change
                self._uncommitted += 1
                if self._commit_every is not None and self._uncommitted >= self._commit_every:
                    self.commit()
                    committed = time.monotonic()
            if self._commit_every is not None and self._uncommitted and time.monotonic() - committed >= COMMIT_S:
                self.commit()
                committed = time.monotonic()
            if self.is_at_end:
                if self._commit_every is not None:
                    self.commit()
                return

    def poll(self, timeout_s: float = POLL_S) -> Iterator[CdcChange]:
        """Return the changes that arrive within ``timeout_s``. Never commits. Iterate to the end before the next call.

        For programs that also work while no change arrives.
        """
        for record in self._poll(timeout_s):
            change = self._take(record)
            if change is not None:
                yield change
        self._moved = self._move_on()

    @property
    def is_at_end(self) -> bool:
        """Whether every change before the end that the topic had at the start is delivered; see ``until_end``."""
        if self._ends is None or self._moved:
            return False
        return all(read >= self._ends.get(number, 0) for number, read in self._reading.positions().items())

    def commit(self) -> None:
        """Store the position after the last returned change."""
        self._store.save(self.place())
        self._uncommitted = 0

    def place(self) -> str:
        """Return the position after the last returned change, for callers that store it themselves."""
        progress = self._reading.progress()
        head = {"cluster": self._cluster, "topic": self._topic_id, "share": list(self._share)}
        return json.dumps(head | {"tables": sorted(self._wanted), "progress": progress.to_json()})

    @property
    def schema(self) -> Mapping[str, TableChange]:
        """The current tables by ``keyspace.table``, as far as the metadata log is applied."""
        return self._schema.table_versions.current()

    @property
    def generation(self) -> Micros:
        """Timestamp of the generation that is being read; -1 before the first."""
        return self._reading.generation

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of read rows by verdict; see ``reading``."""
        return {verdict.value: count for verdict, count in self._reading.counts.items()}

    @property
    def hidden_rows(self) -> HiddenRows | None:
        """The rows before the end that cannot be delivered yet; None if there are none, or without ``until_end``."""
        return None if self._ends is None else self._reading.hidden_rows(self._ends)

    @property
    def unread(self) -> Mapping[int, int]:
        """Partition to the first offset that is not delivered. Any thread may ask."""
        return self._reading.unread()

    def lag(self) -> Lag:
        """Return the undelivered rows up to the present end of the topic, and the age of the oldest. Asks the broker.

        Rows of other tables count. Raises LogUnavailable, TopicMissing.
        """
        if self._lag is None:
            self._lag = self.lag_reader()
        return self._lag.measure(self.unread, is_whole=False)

    def lag_reader(self) -> LagReader:
        """Return another client that measures lags, for another thread. The caller closes it."""
        return LagReader(self._bootstrap, topic_name(self._cluster, CDC))

    def close(self) -> None:
        """Close connections and progress store. Does not commit."""
        if self._lag is not None:
            self._lag.close()
        self._topics.close()
        self._schema.close()
        self._store.close()

    def __enter__(self) -> CdcReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------- start

    def _is_assigned(self, partition: int) -> bool:
        index, count = self._share
        return partition % count == index

    def _check_tables(self) -> None:
        """Check that each requested table has or had a CDC log. Dropped tables are allowed: their rows may still be
        kept.
        """
        for name in sorted(self._wanted):
            versions = self._schema.table_versions.all_of(name)
            if not any(table.cdc.enabled for table in versions):
                versions = self._schema.whole().all_of(name)
            if not versions:
                raise UnknownTable(name, "the schema does not contain it")
            if not any(table.cdc.enabled for table in versions):
                raise UnknownTable(name, "the table has no CDC log")
        for name, columns in sorted(self._columns.items()):
            missing = columns - _columns_of(self._schema.table_versions.all_of(name))
            if missing and (missing := columns - _columns_of(self._schema.whole().all_of(name))):
                raise UnknownColumn(f"{name}.{min(missing)}", "no version of the table has this column")

    def _begin(self, begin: str | Micros, bounds: Mapping[int, tuple[int, int]]) -> ConsumerProgress:
        stored = self._store.load()
        if stored is not None:
            return self._resumed(stored, bounds)
        if begin == NOW:
            first = self._topics.generations.oldest_open()
            ends = {number: high for number, (_, high) in bounds.items()}
            place = begin_at(ends)
            return ConsumerProgress(place.generation if first is None else first.timestamp, place.partitions)
        lows = {number: low for number, (low, _) in bounds.items()}
        return begin_at(lows, 0 if begin == EARLIEST else int(begin))

    def _resumed(self, stored: str, bounds: Mapping[int, tuple[int, int]]) -> ConsumerProgress:
        try:
            found = json.loads(stored)
            place = {name: found[name] for name in ("cluster", "topic", "share", "tables", "progress")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadProgress(f"{type(error).__name__}: {error}") from error
        wanted = {"cluster": self._cluster, "topic": self._topic_id, "share": list(self._share)}
        for name, value in (wanted | {"tables": sorted(self._wanted)}).items():
            if place[name] != value:
                raise BadProgress(f"it belongs to another reader: {name} {place[name]!r}, not {value!r}")
        progress = ConsumerProgress.from_json(str(place["progress"]))
        resumed = {number for number, _ in progress.partitions}
        fresh = [(number, PartitionProgress(low, low)) for number, (low, _) in bounds.items() if number not in resumed]
        return ConsumerProgress(
            progress.generation, tuple(sorted([*progress.partitions, *fresh])), progress.start, progress.entered
        )

    def _check_kept(self, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Raise RowsLost, or count the rows, if unread rows are no longer kept."""
        for number, position in self._reading.positions().items():
            self._lost(number, position, bounds[number][0])

    def _lost(self, partition: int, position: int, begin: int) -> None:
        if position < begin:
            if not self._skip:
                raise RowsLost(partition, position, begin)
            self.lost_rows += begin - position
            self._reading.passed(partition, begin)

    # --------------------------------------------------------------------------------------------- reading

    def _poll(self, timeout_s: float) -> list[CdcRecord]:
        try:
            return self._topics.poll(timeout_s)
        except RowsLost as lost:
            position = self._reading.positions().get(lost.partition, lost.begin)
            self._lost(lost.partition, position, lost.begin)
            self._read_on()
            return []

    def _take(self, record: CdcRecord) -> CdcChange | None:
        if record.value is None:
            self._reading.passed(record.partition, record.offset)
            return None
        try:
            row = decode_cdc_row(record.value)
        except WireError as error:
            raise UnreadableRecord(record.partition, record.offset, str(error)) from error
        verdict, rows = self._reading.take(record.partition, record.offset, row)
        if verdict is not RowVerdict.DELIVERED:
            return None
        types = self._types_of(f"{row.keyspace}.{row.table}", decided_by(rows))
        change = change_of(rows, types, (record.partition, record.offset))
        columns = self._columns.get(change.name)
        return change if columns is None else only_columns(change, columns)

    def _types_of(self, name: str, epoch: int) -> TableTypes:
        table = self._schema.at(name, epoch)
        if table is None:
            return UNKNOWN
        resumed = self._types.get(name)
        if resumed is None or resumed.table is not table:
            resumed = self._types[name] = TableTypes(table)
        return resumed

    def _move_on(self) -> bool:
        """Enter the next generation while that is possible. Return whether one was entered."""
        moved = False
        while self._reading.move_on(self._topics.generations, skip_expired=self._skip):
            moved = True
        if moved:
            self._check_kept(self._topics.bounds())
            self._read_on()
        else:
            done = [number for number in sorted(self._fetched) if not self._reading.wants(number)]
            self._topics.pause(done)
            self._fetched.difference_update(done)
        return moved

    def _read_on(self) -> None:
        positions = self._reading.positions()
        self._topics.read_from(positions)
        self._fetched = set(positions)


def _columns_of(versions: Iterable[TableChange]) -> set[str]:
    return {column.name for table in versions for column in table.columns}


def columns_by_table(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Group ``keyspace.table.column`` names by table. Raises UnknownColumn for any other name."""
    found: dict[str, set[str]] = {}
    for name in names:
        keyspace, _, rest = name.partition(".")
        table, _, column = rest.partition(".")
        if not column:
            raise UnknownColumn(name, "expected keyspace.table.column")
        found.setdefault(f"{keyspace}.{table}", set()).add(column)
    return {table: frozenset(columns) for table, columns in found.items()}


def start_of(given: Start) -> str | Micros:
    """Parse a start point to ``earliest``, ``now`` or microseconds. Raises BadStart."""
    if isinstance(given, str):
        if given in (EARLIEST, NOW):
            return given
        try:
            given = int(given) if given.isdecimal() else datetime.fromisoformat(given)
        except ValueError:
            raise BadStart(given) from None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise BadStart(f"{given.isoformat()} (without time zone)")
        given = int(given.timestamp()) * 1_000_000 + given.microsecond
    if type(given) is not int or given < 0:
        raise BadStart(given)
    return given


def _store(given: str | Path | ProgressStore | None) -> ProgressStore:
    if given is None:
        return MemoryProgress()
    return FileProgress(Path(given)) if isinstance(given, str | Path) else given
