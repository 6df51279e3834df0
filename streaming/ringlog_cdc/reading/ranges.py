"""The driver's side of a reading: places, and the ranges of the CDC topic that lie between two of them.

Places are those of the protocol core, which runs on the driver and reads the topic to decide; a task gets a range of
one partition and the core's place at its beginning, reads the range again and, being the same function of the same
records, decides alike. So exactly the writes that the driver counted as delivered come out of the tasks, however often
a batch is repeated, and the place alone is the whole offset of the query.

A place lies in one generation. Between two places the generation changes at most once, at the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from ringlog.client.cdc.errors import RowsLost, UnknownTable, Unreadable
from ringlog.client.cdc.progress import PartitionProgress, Progress, begin_at
from ringlog.client.cdc.reader import EARLIEST, NOW, start_of
from ringlog.client.cdc.reading import Reading, Verdict
from ringlog.client.cdc.topics import Record, Topics
from ringlog.kernel.changes import TableChange
from ringlog.wire.codec import writer
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, decode_cdc_row
from ringlog.wire.single_object import split

POLL_S = 0.2
SILENCE_S = 30.0
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
        self._reading: Reading[CdcRow] | None = None
        self._ends: dict[int, int] = {}

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
            for record in self.topics.poll(POLL_S):
                rows += record.value is not None
                take(self._reading, record)
            positions = self._reading.positions()
            at_end = all(read >= bounds[number][1] for number, read in positions.items())
        return rows

    def at_end(self) -> bool:
        """Has everything been read that the topic held just now?"""
        assert self._reading is not None, "go_to comes first"
        bounds = self.topics.bounds()
        return all(read >= bounds[number][1] for number, read in self._reading.positions().items())

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


def take(reading: Reading[CdcRow], record: Record) -> tuple[CdcRow, ...]:
    """Give a record to the core; the rows of the write that it completes. Raises Unreadable."""
    if record.value is None:
        reading.passed(record.partition, record.offset)
        return ()
    try:
        row = decode_cdc_row(record.value)
    except WireError as error:
        raise Unreadable(record.partition, record.offset, str(error)) from error
    verdict, rows = reading.take(record.partition, record.offset, row)
    return rows if verdict is Verdict.DELIVERED else ()


def kept_from(settings: ReadSettings, partition: int, position: int, low: int) -> int:
    """Where to go on if the topic begins at ``low``. Raises RowsLost unless what is lost is to be skipped."""
    if position < low and not settings.skip_lost:
        raise RowsLost(partition, position, low)
    return max(position, low)


def is_known(value: bytes) -> bool:
    """Is the schema of the record one that is known here?"""
    try:
        writer(split(value)[0])
    except WireError:
        return False
    return True


def rows_of(settings: ReadSettings, found: CdcRange) -> Iterator[tuple[CdcRow, ...]]:
    """A task: the writes of a range, those of each poll together. Raises LogUnavailable, RowsLost."""
    reading: Reading[CdcRow] = Reading(Progress.from_json(found.place), frozenset({settings.table}))
    topics = Topics(settings.bootstrap_servers, settings.cluster)
    try:
        position = kept_from(settings, found.partition, found.begin, topics.bounds()[found.partition][0])
        reading.passed(found.partition, position)
        topics.read_from({found.partition: position})
        learned = False
        heard = time.monotonic()
        while position < found.end:
            records = topics.poll(POLL_S)
            heard = time.monotonic() if records else heard
            if time.monotonic() - heard > SILENCE_S:
                raise RowsLost(found.partition, position, found.end)
            rows: list[CdcRow] = []
            for record in records:
                position = record.offset if record.value is None else record.offset + 1
                if record.value is None or record.offset >= found.end:
                    continue
                if not learned and not is_known(record.value):
                    topics.start()  # a later release writes the log: its schemas are in a topic
                    learned = True
                rows += take(reading, record)
            if rows:
                yield tuple(rows)
    finally:
        topics.close()
