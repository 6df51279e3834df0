"""The driver's side of a reading: places, and the ranges of the CDC topic that lie between two of them.

Places of a stream are those of the protocol core, which runs on the driver and reads the topic to decide; a task gets a
range of one partition and the core's place at its beginning, reads the range again and, being the same function of the
same records, decides alike. So exactly the writes that the driver counted as delivered come out of the tasks, however
often a batch is repeated, and the place alone is the whole offset of the query. The driver cannot do without reading:
what a repetition is depends on all that was delivered before, and a task has nobody to tell it to the next one but
the offset, which the driver makes before the tasks run. It reads the heads of the records only.

A place lies in one generation. Between two places the generation changes at most once, at the beginning.

A batch query has no next one, and its end is known: each task reads a partition whole, and the driver reads nothing
(``ringlog_cdc.reading.whole``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from ringlog.client.cdc.errors import RowsLost, UnknownTable
from ringlog.client.cdc.progress import PartitionProgress, Progress, begin_at
from ringlog.client.cdc.reader import EARLIEST, NOW, start_of
from ringlog.client.cdc.reading import Reading, Verdict
from ringlog.client.cdc.topics import Record, Topics
from ringlog.kernel.changes import TableChange
from ringlog.wire.codec import writer
from ringlog.wire.errors import WireError
from ringlog.wire.single_object import HEADER_BYTES, split
from ringlog_cdc.reading.heads import Head, decoded, head_of, heads, known_headers
from ringlog_cdc.reading.whole import OnePass, Readable, readable

POLL_S = 0.2
SILENCE_S = 30.0
RECORDS_MAX = 5_000
"""Records of a poll at most: many, as their heads are read by columns."""
SCAN_S = 10.0
"""How long one look at the topic lasts at most; a batch is what it found."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a query asks for: one table, from ``start`` on; ``rows_max``: records of the topic in a batch."""

    bootstrap_servers: str
    cluster: str
    table: str
    start: str = EARLIEST
    skip_lost: bool = False
    rows_max: int = 100_000


@dataclass(frozen=True)
class CdcRange(InputPartition):
    """Records [begin, end) of one partition; ``place``: the core's place at ``begin``, of this partition only."""

    partition: int
    begin: int
    end: int
    place: str


@dataclass(frozen=True)
class WholeRange(InputPartition):
    """Records [begin, end) of one partition, of several generations, with writes from ``start`` on."""

    partition: int
    begin: int
    end: int
    generations: tuple[Readable, ...]
    start: int


def ranges_between(start: Progress, end: Progress) -> list[CdcRange]:
    """The ranges whose delivered writes are those between two places."""
    before = dict(start.partitions)
    entered = dict(end.entered)
    found = []
    for number, after in end.partitions:
        part = before.get(number)
        if start.generation != end.generation or part is None:
            part = PartitionProgress(entered[number], entered[number])
        if part.position < after.read:
            place = Progress(end.generation, ((number, part),), end.start)
            found.append(CdcRange(number, part.position, after.read, place.to_json()))
    return found


class Scan:
    """The core on the driver. ``place`` is where it is; connections are made when first needed."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._topics: Topics | None = None
        self._reading: Reading[Head] | None = None

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

    def table(self) -> TableChange:
        """The table that is read; raises UnknownTable."""
        found = self.topics.tables.get(self._settings.table)
        if found is None:
            raise UnknownTable(self._settings.table, "not in the schema")
        return found

    def first(self) -> Progress:
        """Where a new query begins."""
        begin = start_of(self._settings.start)
        bounds = self.topics.bounds()
        if begin == NOW:
            opened = self.topics.generations.oldest_open()
            place = begin_at({number: high for number, (_, high) in bounds.items()})
            if opened is None:
                return place
            return Progress(opened.timestamp, place.partitions, entered=tuple((n, p.read) for n, p in place.partitions))
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

    def go_to(self, place: Progress) -> None:
        """Be at a place. Raises RowsLost unless what is lost is to be skipped."""
        self._reading = Reading(place, frozenset({self._settings.table}))
        self._read_on()

    def place(self) -> Progress:
        """The place."""
        assert self._reading is not None, "go_to comes first"
        return self._reading.progress()

    def enter_next(self) -> bool:
        """Enter the next generation if the present one is closed and read; False if not."""
        assert self._reading is not None, "go_to comes first"
        moved = self._reading.move_on(self.topics.generations, skip_expired=self._settings.skip_lost)
        if moved:
            self._read_on()
        return moved

    def look(self, rows_max: int, seconds: float = SCAN_S) -> int:
        """Read on in this generation, to the present end or ``rows_max`` records; how many there were."""
        assert self._reading is not None, "go_to comes first"
        deadline = time.monotonic() + seconds
        rows, at_end = 0, False
        bounds = self.topics.bounds()
        while not at_end and rows < rows_max and time.monotonic() < deadline:
            for place, offset, head in headed(self.topics.poll(POLL_S, RECORDS_MAX)):
                if head is None:
                    self._reading.passed(place, offset)
                else:
                    rows += 1
                    self._reading.take(place, offset, head)
            positions = self._reading.positions()
            at_end = all(read >= bounds[number][1] for number, read in positions.items())
        return rows

    def close(self) -> None:
        """Let go of the connections."""
        if self._topics is not None:
            self._topics.close()
            self._topics = None

    def _read_on(self) -> None:
        assert self._reading is not None, "go_to comes first"
        bounds = self.topics.bounds()
        for number, position in self._reading.positions().items():
            self._reading.passed(number, kept_from(self._settings, number, position, bounds[number][0]))
        self.topics.read_from(self._reading.positions())


def headed(records: Sequence[Record]) -> Iterator[tuple[int, int, Head | None]]:
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


def is_known(record: Record) -> bool:
    """Is its schema one that is known here?"""
    if record.value is None or record.value[:HEADER_BYTES] in known_headers():
        return True
    try:
        writer(split(record.value)[0])
    except WireError:
        return False
    return True


def rows_of(settings: ReadSettings, found: CdcRange | WholeRange) -> Iterator[tuple[Head, ...]]:
    """A task: the rows of the writes of a range, those of each poll together.

    Raises LogUnavailable, RowsLost, Unreadable.
    """
    tables = frozenset({settings.table})
    if isinstance(found, WholeRange):
        whole: OnePass[Head] = OnePass(found.partition, found.begin, found.generations, found.start, tables)
        yield from _read(settings, found, whole.take)
        whole.finish()
        return
    reading: Reading[Head] = Reading(Progress.from_json(found.place), tables)

    def take(offset: int, head: Head) -> tuple[Head, ...]:
        verdict, rows = reading.take(found.partition, offset, head)
        return rows if verdict is Verdict.DELIVERED else ()

    yield from _read(settings, found, take)


def _read(
    settings: ReadSettings, found: CdcRange | WholeRange, take: Callable[[int, Head], tuple[Head, ...]]
) -> Iterator[tuple[Head, ...]]:
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
            rows: list[Head] = []
            for _, offset, head in headed(records):
                position = offset if head is None else offset + 1
                if head is not None and offset < found.end:
                    rows += take(offset, head)
            if rows:
                yield tuple(rows)
    finally:
        topics.close()
