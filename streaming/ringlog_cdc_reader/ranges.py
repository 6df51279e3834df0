"""The driver's side of a reading: places, and the ranges of the CDC topic that lie between two of them.

Places of a stream are those of the protocol core, which runs on the driver and reads the topic to decide; a task gets a
range of one partition and the core's place at its beginning, reads the range again and, being the same function of the
same records, decides alike. So exactly the writes that the driver counted as delivered come out of the tasks, however
often a batch is repeated, and the place alone is the whole offset of the query. The driver cannot do without reading:
what a repetition is depends on all that was delivered before, and a task has nobody to tell it to the next one but
the offset, which the driver makes before the tasks run. It reads the heads of the records only.

A place lies in one generation. A batch may hold several: then its path has a place at the end of each generation that
it left, and between two places of a path the generation changes once, at the beginning. A generation is left as ever,
when its close is known and everything up to it was read.

A batch query has no next one, and its end is known: each task reads a partition whole, and the driver reads nothing
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
from ringlog.log.replicas.identity import Memory
from ringlog.wire.avro.codec import HEADER_BYTES, split, writer
from ringlog.wire.errors import WireError
from ringlog_cdc_reader.heads import RowHead, decoded, head_of, heads, known_headers
from ringlog_cdc_reader.whole import OnePass, Readable, readable

POLL_S = 0.2
SILENCE_S = 30.0
RECORDS_MAX = 5_000
"""Records of a poll at most: many, as their heads are read by columns."""
LIVES_KEPT = 64
"""Of how many tables and queries a worker remembers what it has looked up of the past."""
ALL = 2**63 - 1
"""Stands for no bound."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a query asks for: one table, from ``start`` on; ``rows_max``: records of the topic in a batch of a stream.
    ``table_id``: of the tables that have had that name; empty: the one that has it, or else had it last.
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
    """Records [begin, end) of one partition; ``place``: the core's place at ``begin``, of this partition only;
    ``life``: when the table had its name, as that is known now; None: it is as it was when the query began.
    """

    partition: int
    begin: int
    end: int
    place: str
    life: NamePeriod | None = None


@dataclass(frozen=True)
class WholeRange(InputPartition):
    """Records [begin, end) of one partition, of several generations, with writes from ``start`` on."""

    partition: int
    begin: int
    end: int
    generations: tuple[Readable, ...]
    start: int


def ranges_along(places: Sequence[ConsumerProgress]) -> list[CdcRange]:
    """The ranges whose delivered writes are those along a path, which begins at the first of these places."""
    return [found for start, end in pairwise(places) for found in ranges_between(start, end)]


def milestone(place: ConsumerProgress) -> ConsumerProgress:
    """A place within a path, with what is wanted there: where it is, and where its generation was entered."""
    parts = tuple((number, PartitionProgress(part.read, part.read)) for number, part in place.partitions)
    return ConsumerProgress(place.generation, parts, place.start, place.entered)


def ranges_between(start: ConsumerProgress, end: ConsumerProgress) -> list[CdcRange]:
    """The ranges whose delivered writes are those between two places."""
    before = dict(start.partitions)
    entered = dict(end.entered)
    found = []
    for number, after in end.partitions:
        part = before.get(number)
        if start.generation != end.generation or part is None:
            part = PartitionProgress(entered[number], entered[number])
        if part.position < after.read:
            place = ConsumerProgress(end.generation, ((number, part),), end.start)
            found.append(CdcRange(number, part.position, after.read, place.to_json()))
    return found


class Scan:
    """The core on the driver. ``place`` is where it is; connections are made when first needed."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._topics: Topics | None = None
        self._schema: SchemaFollower | None = None
        self._reading: CdcReading[RowHead] | None = None

    @property
    def topics(self) -> Topics:
        """The topics, read to what they had when this was first asked for."""
        if self._topics is None:
            topics = Topics(self._settings.bootstrap_servers, self._settings.cluster)
            try:
                topics.start()
            except BaseException:
                topics.close()
                raise
            self._topics = topics
        return self._topics

    def table(self, memory: Memory) -> tuple[TableChange, NamePeriod]:
        """The table that is read, in its newest version, and when it had its name, as far as the state tells which the
        metadata log folds to. That is compared with what ``memory`` has of it.

        Raises UnknownTable; LogForked, LogReplaced, LogTruncated, LogDamaged.
        """
        schema = SchemaFollower(self._settings.bootstrap_servers, self._settings.cluster, memory)
        try:
            return found_in(schema.start(), self._settings.table, self._settings.table_id)
        finally:
            schema.close()

    def life(self, table_id: str) -> NamePeriod:
        """When that table had its name. This knows of all epochs by which rows that are in the topic by now were
        decided.

        Raises ReplicaHalted, LogUnavailable, WaitTimedOut, UnknownTable.
        """
        if self._schema is None:
            self._schema = SchemaFollower(self._settings.bootstrap_servers, self._settings.cluster).start()
        self._schema.newest()
        return found_in(self._schema, self._settings.table, table_id)[1]

    def first(self) -> ConsumerProgress:
        """Where a new query begins."""
        begin = start_of(self._settings.start)
        bounds = self.topics.bounds()
        if begin == NOW:
            opened = self.topics.generations.oldest_open()
            place = begin_at({number: high for number, (_, high) in bounds.items()})
            if opened is None:
                return place
            return ConsumerProgress(
                opened.timestamp, place.partitions, entered=tuple((n, p.read) for n, p in place.partitions)
            )
        return begin_at({number: low for number, (low, _) in bounds.items()}, 0 if begin == EARLIEST else int(begin))

    def whole(self) -> list[WholeRange]:
        """Everything from the start on that the topic has now. Raises GenerationExpired."""
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
        """Be at a place. Raises RowsLost unless what is lost is to be skipped."""
        self._reading = CdcReading(place, frozenset({self._settings.table}))
        self._read_on()

    def place(self) -> ConsumerProgress:
        """The place."""
        return self._at().progress()

    def advance(self) -> list[ConsumerProgress]:
        """Go on to where the topic ends now, or for as many records as a batch may have; the places at which a
        generation was left. What comes meanwhile is for the next time.
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
        """Enter the next generation if the present one is closed and read; False if not."""
        moved = self._at().move_on(self.topics.generations, skip_expired=self._settings.skip_lost)
        if moved:
            self._read_on()
        return moved

    def _look(self, ends: Mapping[int, int], rows_max: int) -> int:
        """Read on in this generation, to the ``ends`` or for ``rows_max`` records; how many there were."""
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
        assert self._reading is not None, "go_to comes first"
        return self._reading

    def close(self) -> None:
        """Let go of the connections."""
        if self._topics is not None:
            self._topics.close()
            self._topics = None
        if self._schema is not None:
            self._schema.close()
            self._schema = None

    def _read_on(self) -> None:
        reading, bounds = self._at(), self.topics.bounds()
        for number, position in reading.positions().items():
            reading.passed(number, kept_from(self._settings, number, position, bounds[number][0]))
        self.topics.read_from(reading.positions())


def table_in(lives: TableVersions, name: str, table_id: str) -> tuple[TableChange, NamePeriod]:
    """The newest version of a table that has or had that name, and when it had it; ``table_id`` empty: the last one.

    Raises UnknownTable.
    """
    found = [table for table in lives.all_of(name) if table_id in ("", table.id)]
    if not found:
        raise UnknownTable(name, "no table of that id has had the name" if table_id else "not in the schema")
    return found[-1], lives.period(name, found[-1].id)


def found_in(schema: SchemaFollower, name: str, table_id: str) -> tuple[TableChange, NamePeriod]:
    """``table_in`` all that is folded; where the newest snapshot has forgotten the table, all that there is of the log.

    Raises UnknownTable; LogForked, LogTruncated, LogUnavailable.
    """
    try:
        return table_in(schema.table_versions, name, table_id)
    except UnknownTable:
        return table_in(schema.whole(), name, table_id)


@lru_cache(LIVES_KEPT)
def whole_life(settings: ReadSettings, table_id: str) -> NamePeriod:
    """When that table had its name, by all that there is of the metadata log; a worker folds it once.

    Raises LogDamaged, LogUnavailable, UnknownTable.
    """
    schema = SchemaFollower(settings.bootstrap_servers, settings.cluster)
    try:
        schema.start()
        return table_in(schema.whole(), settings.table, table_id)[1]
    finally:
        schema.close()


def headed(records: Sequence[CdcRecord]) -> Iterator[tuple[int, int, RowHead | None]]:
    """Partition, offset and head of each record; a head of None: the place up to which there are no records.

    Raises Unreadable.
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
    """Where to go on if the topic begins at ``low``. Raises RowsLost unless what is lost is to be skipped."""
    if position < low and not settings.skip_lost:
        raise RowsLost(partition, position, low)
    return max(position, low)


def is_known(record: CdcRecord) -> bool:
    """Is its schema one that is known here?"""
    if record.value is None or record.value[:HEADER_BYTES] in known_headers():
        return True
    try:
        writer(split(record.value)[0])
    except WireError:
        return False
    return True


def rows_of(settings: ReadSettings, found: CdcRange | WholeRange) -> Iterator[tuple[RowHead, ...]]:
    """A task: the rows of the writes of a range, those of each poll together.

    Raises LogUnavailable, RowsLost, Unreadable.
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
                topics.start()  # a later release writes the log: its schemas are in a topic
                learned = True
            rows: list[RowHead] = []
            for _, offset, head in headed(records):
                position = offset if head is None else offset + 1
                if head is not None and offset < found.end:
                    rows += take(offset, head)
            if rows:
                yield tuple(rows)
    finally:
        topics.close()
