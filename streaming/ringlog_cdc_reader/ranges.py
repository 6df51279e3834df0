"""Planning of a query on the driver: positions, and the ranges of the CDC topic between two of them.

The offset of a streaming query is the position of the protocol core. The driver runs the core over the heads of the
records to find the next position. A task gets one range of one partition and the core's position at its start, then
reads the range again. The core is a function of the records, so task and driver decide alike. The tasks therefore
return exactly the writes that the driver counted, however often a batch is repeated.

The driver has to read. Recognizing a repetition depends on everything delivered before, and only the offset carries
state from one task to the next. Spark needs that offset before the tasks run.

A position belongs to one generation, and a batch can span several. Its path then has one position at the end of each
generation that it left. Between two positions of a path the generation changes at most once, at the start. A generation
is left when its close is known and everything before the close was read.

A batch query has a known end and no successor. Each of its tasks reads a whole partition, and the driver reads nothing
(``ringlog_cdc_reader.whole``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from ringlog.client.cdc.errors import RowsLost, UnknownTable
from ringlog.client.cdc.progress import NOT_ENTERED, ConsumerProgress, PartitionProgress, begin_at
from ringlog.client.cdc.reader import EARLIEST, NOW, start_of
from ringlog.client.cdc.reading import CdcReading, RowVerdict
from ringlog.client.cdc.schema import SchemaFollower
from ringlog.client.cdc.table_versions import NamePeriod, TableVersions
from ringlog.client.cdc.topics import CdcRecord, Topics
from ringlog.kernel.changes import TableChange
from ringlog.kernel.values import Value
from ringlog.log.replicas.identity import IdentityStore
from ringlog.wire.avro.codec import HEADER_BYTES, split, writer
from ringlog.wire.errors import WireError
from ringlog_cdc_reader.heads import RowHead, decoded, head_of, heads, known_headers
from ringlog_cdc_reader.whole import OnePass, Readable, readable

POLL_S = 0.2
SILENCE_S = 30.0
"""Longest wait for the next record before a read is given up."""
RECORDS_MAX = 5_000
"""Most records per poll. The heads are parsed by columns, so large polls are cheap."""
LIVES_KEPT = 64
"""Number of (query, table) pairs whose full history a worker caches."""
ALL = 2**63 - 1
"""No limit."""


class ReadSettings(Value):
    """Options of a query.

    Attributes:
        table: ``keyspace.table``.
        start: Start of a new query, as in ``ringlog_cdc_reader.source``.
        skip_lost: Skip rows that are no longer retained, instead of failing.
        rows_max: Most records of the CDC topic in a batch of a stream.
        table_id: Id of one of the tables that have had the name. Empty: the current one, or else the last one.
    """

    bootstrap_servers: str
    cluster: str
    table: str
    start: str = EARLIEST
    skip_lost: bool = False
    rows_max: int = ALL
    table_id: str = ""


@dataclass(frozen=True)
class CdcRange(InputPartition):
    """Records [begin, end) of one partition, for a task of a stream.

    Attributes:
        place: Position of the core at ``begin``, for this partition only, as JSON.
        life: Period when the table had its name, as known now. None: unchanged since the query started.
    """

    partition: int
    begin: int
    end: int
    place: str
    life: NamePeriod | None = None


@dataclass(frozen=True)
class WholeRange(InputPartition):
    """Records [begin, end) of one partition across generations, for a task of a batch query.

    Attributes:
        start: Timestamp of the first write to deliver, microseconds.
    """

    partition: int
    begin: int
    end: int
    generations: tuple[Readable, ...]
    start: int


def ranges_along(places: Sequence[ConsumerProgress]) -> list[CdcRange]:
    """Return the ranges that deliver exactly the writes along a path of positions."""
    return [found for start, end in pairwise(places) for found in ranges_between(start, end)]


def milestone(place: ConsumerProgress) -> ConsumerProgress:
    """Reduce a position within a path to the parts that ``ranges_between`` needs: how far each partition was read, and
    where the generation was entered.
    """
    parts = tuple((number, PartitionProgress(part.read, part.read)) for number, part in place.partitions)
    return ConsumerProgress(place.generation, parts, place.start, place.entered)


def ranges_between(start: ConsumerProgress, end: ConsumerProgress) -> list[CdcRange]:
    """Return the ranges that deliver exactly the writes between two positions."""
    before = dict(start.partitions)
    entered = dict(end.entered)
    found = []
    for number, after in end.partitions:
        part = before.get(number)
        if start.generation != end.generation or part is None:
            # A new generation starts where it was entered, with no memory of the generation before.
            part = PartitionProgress(entered[number], entered[number])
        if part.position < after.read:
            place = ConsumerProgress(end.generation, ((number, part),), end.start)
            found.append(CdcRange(number, part.position, after.read, place.to_json()))
    return found


class Scan:
    """The protocol core on the driver. It connects on first use."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._topics: Topics | None = None
        self._schema: SchemaFollower | None = None
        self._reading: CdcReading[RowHead] | None = None

    @property
    def topics(self) -> Topics:
        """The topics, read up to their state at first access."""
        if self._topics is None:
            topics = Topics(self._settings.bootstrap_servers, self._settings.cluster)
            try:
                topics.start()
            except BaseException:
                topics.close()
                raise
            self._topics = topics
        return self._topics

    def table(self, memory: IdentityStore) -> tuple[TableChange, NamePeriod]:
        """Look up the table to read.

        Args:
            memory: Record of the metadata log that the checkpoint has seen. The current log is compared with it.

        Returns:
            The newest version of the table, and the period when it had its name, as far as the folded state knows.

        Raises:
            UnknownTable: No such table.
            LogForked, LogReplaced, LogTruncated, LogDamaged: The metadata log is not the one in ``memory``.
        """
        schema = SchemaFollower(self._settings.bootstrap_servers, self._settings.cluster, memory)
        try:
            return found_in(schema.start(), self._settings.table, self._settings.table_id)
        finally:
            schema.close()

    def life(self, table_id: str) -> NamePeriod:
        """Return the period when that table had its name.

        It covers every epoch named by a row that is in the topic now.

        Raises:
            ReplicaHalted, LogUnavailable, WaitTimedOut: The metadata log cannot be folded to its end.
            UnknownTable: No such table.
        """
        if self._schema is None:
            self._schema = SchemaFollower(self._settings.bootstrap_servers, self._settings.cluster).start()
        self._schema.newest()
        return found_in(self._schema, self._settings.table, table_id)[1]

    def first(self) -> ConsumerProgress:
        """Return the start position of a new query."""
        begin = start_of(self._settings.start)
        bounds = self.topics.bounds()
        if begin == NOW:
            opened = self.topics.generations.oldest_open()
            place = begin_at({number: high for number, (_, high) in bounds.items()})
            if opened is None:
                return place
            # ``now`` starts in the oldest generation that still takes rows, since writers may use it until it closes.
            return ConsumerProgress(
                opened.timestamp, place.partitions, entered=tuple((n, p.read) for n, p in place.partitions)
            )
        return begin_at({number: low for number, (low, _) in bounds.items()}, 0 if begin == EARLIEST else int(begin))

    def whole(self) -> list[WholeRange]:
        """Return ranges with everything from the start to the current end of the topic.

        Raises:
            GenerationExpired: A generation to read is no longer retained.
        """
        begin = start_of(self._settings.start)
        if begin == NOW:
            return []
        start = 0 if begin == EARLIEST else int(begin)
        bounds = self.topics.bounds()
        highs = {number: high for number, (_, high) in bounds.items()}
        generations = readable(self.topics.generations, highs, start, skip_expired=self._settings.skip_lost)
        return [
            WholeRange(number, low, high, generations, start)
            for number, (low, high) in bounds.items()
            if low < high and generations
        ]

    def go_to(self, place: ConsumerProgress) -> None:
        """Continue at a position.

        Raises:
            RowsLost: Rows after it are no longer retained, and the query does not skip lost rows.
        """
        self._reading = CdcReading(place, frozenset({self._settings.table}))
        self._read_on()

    def place(self) -> ConsumerProgress:
        """Return the current position."""
        return self._at().progress()

    def advance(self) -> list[ConsumerProgress]:
        """Read to the current end of the topic, or as many records as a batch may have.

        Later records belong to the next batch.

        Returns:
            The position at the end of each generation that was left.
        """
        reading = self._at()
        ends = {number: high for number, (_, high) in self.topics.bounds().items()}
        left: list[ConsumerProgress] = []
        rows, rows_max = 0, self._settings.rows_max
        if reading.generation == NOT_ENTERED:
            self._enter_next()
        while True:
            rows += self._look(ends, rows_max - rows)
            place = reading.progress()
            if rows >= rows_max or not self._enter_next():
                return left
            left.append(milestone(place))

    def _enter_next(self) -> bool:
        """Enter the next generation if the current one is closed and fully read. Return False otherwise."""
        moved = self._at().move_on(self.topics.generations, skip_expired=self._settings.skip_lost)
        if moved:
            self._read_on()
        return moved

    def _look(self, ends: Mapping[int, int], rows_max: int) -> int:
        """Read within the current generation, up to ``ends`` or ``rows_max`` records. Return the number of records."""
        reading = self._at()
        heard = time.monotonic()
        rows, at_end = 0, False
        while not at_end and rows < rows_max and time.monotonic() - heard < SILENCE_S:
            for place, offset, head in headed(self.topics.poll(POLL_S, RECORDS_MAX)):
                heard = time.monotonic()
                if head is None:
                    reading.passed(place, offset)
                else:
                    rows += 1
                    reading.take(place, offset, head)
            at_end = all(read >= ends.get(number, 0) for number, read in reading.positions().items())
        return rows

    def _at(self) -> CdcReading[RowHead]:
        assert self._reading is not None, "go_to was called"
        return self._reading

    def close(self) -> None:
        """Close the connections."""
        if self._topics is not None:
            self._topics.close()
            self._topics = None
        if self._schema is not None:
            self._schema.close()
            self._schema = None

    def _read_on(self) -> None:
        """Point the consumer at the core's position in each partition."""
        reading, bounds = self._at(), self.topics.bounds()
        for number, position in reading.positions().items():
            reading.passed(number, kept_from(self._settings, number, position, bounds[number][0]))
        self.topics.read_from(reading.positions())


def table_in(lives: TableVersions, name: str, table_id: str) -> tuple[TableChange, NamePeriod]:
    """Look up a table by a name that it has or had.

    Args:
        lives: Versions of all tables.
        name: ``keyspace.table``.
        table_id: Empty selects the last table with the name.

    Returns:
        Its newest version, and the period when it had the name.

    Raises:
        UnknownTable: No such table.
    """
    found = [table for table in lives.all_of(name) if table_id in ("", table.id)]
    if not found:
        raise UnknownTable(
            name, "no table with this id had this name" if table_id else "the schema does not contain it"
        )
    return found[-1], lives.period(name, found[-1].id)


def found_in(schema: SchemaFollower, name: str, table_id: str) -> tuple[TableChange, NamePeriod]:
    """Look up a table in the folded state, then in the whole log: the newest snapshot may have pruned the table.

    Raises:
        UnknownTable: No such table.
        LogForked, LogTruncated, LogUnavailable: The metadata log cannot be read.
    """
    try:
        return table_in(schema.table_versions, name, table_id)
    except UnknownTable:
        return table_in(schema.whole(), name, table_id)


@lru_cache(LIVES_KEPT)
def whole_life(settings: ReadSettings, table_id: str) -> NamePeriod:
    """Return the period when that table had its name, from the whole metadata log. A worker folds the log once.

    Raises:
        LogDamaged, LogUnavailable: The metadata log cannot be read.
        UnknownTable: No such table.
    """
    schema = SchemaFollower(settings.bootstrap_servers, settings.cluster)
    try:
        schema.start()
        return table_in(schema.whole(), settings.table, table_id)[1]
    finally:
        schema.close()


def headed(records: Sequence[CdcRecord]) -> Iterator[tuple[int, int, RowHead | None]]:
    """Yield partition, offset and head of each record.

    A record without a value is the consumer's notice that no records precede its offset. Its head is None.

    Raises:
        UnreadableRecord: A record is not a CDC row.
    """
    given = [(record.value, record.offset) for record in records if record.value is not None]
    found = iter(heads([value for value, _ in given], [offset for _, offset in given]))
    for record in records:
        if record.value is None:
            yield record.partition, record.offset, None
        else:
            head = next(found)
            if head is None:
                row = decoded(record.value, record.partition, record.offset)
                head = head_of(row, record.offset, record.value)
            yield record.partition, record.offset, head


def kept_from(settings: ReadSettings, partition: int, position: int, low: int) -> int:
    """Return the offset to continue at, if the topic now begins at ``low``.

    Raises:
        RowsLost: ``position`` is no longer retained, and the query does not skip lost rows.
    """
    if position < low and not settings.skip_lost:
        raise RowsLost(partition, position, low)
    return max(position, low)


def is_known(record: CdcRecord) -> bool:
    """Return True if this process knows the schema of the record."""
    if record.value is None or record.value[:HEADER_BYTES] in known_headers():
        return True
    try:
        writer(split(record.value)[0])
    except WireError:
        return False
    return True


def rows_of(settings: ReadSettings, found: CdcRange | WholeRange) -> Iterator[tuple[RowHead, ...]]:
    """Read a range in a task. Yield the rows of complete writes, one tuple for each poll.

    Raises:
        LogUnavailable: The broker does not answer.
        RowsLost: Records of the range are no longer retained.
        UnreadableRecord: A record is not a CDC row.
    """
    tables = frozenset({settings.table})
    if isinstance(found, WholeRange):
        whole: OnePass[RowHead] = OnePass(found.partition, found.begin, found.generations, found.start, tables)
        yield from _read(settings, found, whole.take)
        return
    reading: CdcReading[RowHead] = CdcReading(ConsumerProgress.from_json(found.place), tables)

    def take(offset: int, head: RowHead) -> tuple[RowHead, ...]:
        verdict, rows = reading.take(found.partition, offset, head)
        return rows if verdict is RowVerdict.DELIVERED else ()

    yield from _read(settings, found, take)


def _read(
    settings: ReadSettings, found: CdcRange | WholeRange, take: Callable[[int, RowHead], tuple[RowHead, ...]]
) -> Iterator[tuple[RowHead, ...]]:
    """Read the records of a range and pass each to ``take``, which returns the rows to deliver."""
    topics = Topics(settings.bootstrap_servers, settings.cluster)
    try:
        position = kept_from(settings, found.partition, found.begin, topics.bounds_of(found.partition)[0])
        topics.read_from({found.partition: position})
        learned = False
        heard = time.monotonic()
        while position < found.end:
            records = topics.poll(POLL_S, RECORDS_MAX)
            heard = time.monotonic() if records else heard
            if time.monotonic() - heard > SILENCE_S:
                raise RowsLost(found.partition, position, found.end)
            if not learned and not all(map(is_known, records)):
                topics.start()  # a newer release writes the log: load its schemas from their topic
                learned = True
            rows: list[RowHead] = []
            for _, offset, head in headed(records):
                # A poll may return records after the end of the range. They advance the position but are not delivered.
                position = offset if head is None else offset + 1
                if head is not None and offset < found.end:
                    rows += take(offset, head)
            if rows:
                yield tuple(rows)
    finally:
        topics.close()
