"""The reading protocol of the CDC log: rows in, complete writes out. No input or output, no clock.

A consumer reads one generation at a time. It delivers the rows of each partition in the order of their offsets. It
enters the next generation when the current one is *sealed* and every partition is read up to the offset in the seal. It
then reads each partition again from the first skipped row of a later generation. So no row has to be stored.

==================================  =================================================================================
Row                                 Verdict
==================================  =================================================================================
Table was not requested             ``FILTERED``.
Earlier generation                  ``PASSED`` if it was read in its time (below ``left``), otherwise ``REPEATED``.
Later generation                    ``AHEAD``: it is read again later.
This generation, delivered before   ``REPEATED``: a restarted writer repeats its last batch.
Write before the start point        ``PASSED``.
Incomplete write                    ``HELD`` until the row with ``end_of_batch``. Dropped at the generation's end.
This generation                     ``DELIVERED``, with all rows of the write.
Partition is read to its end        ``BEYOND``: left for the next generation.
==================================  =================================================================================

Invariants:

- Every row of every entered generation is delivered once or lies before the start point.

- Two writes of one base partition key are delivered in the order of their production.

- ``progress`` may be taken at any time. A new ``CdcReading`` with it continues with exactly the undelivered writes.

Source: section "Consumers" of the guide. The seal replaces ScyllaDB's confidence window.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from typing import Generic, Protocol, TypeVar

from ringlog.client.cdc.errors import GenerationExpired
from ringlog.client.cdc.generations import Generations
from ringlog.client.cdc.progress import (
    NAME_BYTES,
    NOT_ENTERED,
    RECENT_MAX,
    ConsumerProgress,
    Mark,
    PartitionProgress,
    Source,
)
from ringlog.kernel.values import Micros, Value


class RowSeen(Protocol):
    """The fields that the protocol uses; see the schema ``ringlog.cdc.CdcRow``."""

    @property
    def stream_id(self) -> bytes: ...
    @property
    def generation(self) -> int: ...
    @property
    def time(self) -> bytes: ...
    @property
    def batch_seq_no(self) -> int: ...
    @property
    def end_of_batch(self) -> bool: ...
    @property
    def keyspace(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def source_topic(self) -> str: ...
    @property
    def source_partition(self) -> int: ...
    @property
    def source_offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...


R = TypeVar("R", bound=RowSeen)


class HiddenRows(Value):
    """The rows before an end that a stopped reader did not deliver.

    ``generation``: the generation that it reads and cannot leave; -1: none is known. ``is_closed``: it is sealed, but
    the next one is not known yet. ``places``: partition and offset of its first row that may belong to a later
    generation. ``records``: number of records from these offsets to the end, including repetitions and rows of other
    tables. ``writes``: number of incomplete writes.
    """

    generation: Micros
    is_closed: bool
    places: tuple[tuple[int, int], ...]
    records: int
    writes: int


class RowVerdict(Enum):
    """The verdict on a row."""

    DELIVERED = "delivered"
    HELD = "held"
    AHEAD = "ahead"
    REPEATED = "repeated"
    PASSED = "passed"
    FILTERED = "filtered"
    BEYOND = "beyond"


class _Pending(Generic[R]):
    """A write whose last row has not arrived."""

    __slots__ = ("first", "rows", "seen")

    def __init__(self, first: int) -> None:
        self.first = first
        self.rows: list[R] = []
        self.seen: set[int] = set()


class _Partition(Generic[R]):
    """One partition of the CDC topic, in the generation that is being read."""

    __slots__ = ("ahead", "end", "left", "marks", "pending", "read", "recent")

    def __init__(self, found: PartitionProgress) -> None:
        self.read = found.position
        self.ahead = found.ahead
        self.left = found.left
        self.marks: dict[Source, Mark] = dict(found.marks)
        self.recent: dict[bytes, None] = dict.fromkeys(found.recent)
        self.pending: dict[tuple[str, int, int, int], _Pending[R]] = {}
        self.end: int | None = None

    @property
    def done(self) -> bool:
        """Whether the generation is sealed and this partition is read up to its end."""
        return self.end is not None and self.read >= self.end

    def progress(self) -> PartitionProgress:
        # Incomplete writes must be read again from their first row.
        position = min((found.first for found in self.pending.values()), default=self.read)
        marks = tuple(sorted(self.marks.items()))
        return PartitionProgress(position, self.read, self.ahead, self.left, marks, tuple(self.recent))

    def enter_next(self) -> None:
        """Begin the next generation at its first skipped row."""
        self.left = max(self.read, self.left or 0)
        self.read = self.read if self.ahead is None else self.ahead
        self.ahead, self.end = None, None
        self.marks, self.recent, self.pending = {}, {}, {}

    def was_delivered(self, row: R, source: Source) -> bool:
        mark = self.marks.get(source)
        if mark is None or row.source_offset > mark.offset:
            return False
        return row.source_offset < mark.offset or row.timestamp in mark.timestamps

    def deliver(self, row: R, source: Source, name: bytes) -> None:
        """Record that the write of ``row`` was delivered."""
        mark = self.marks.get(source)
        if mark is None or row.source_offset > mark.offset:
            self.marks[source] = Mark(row.source_offset, (row.timestamp,))
        else:
            self.marks[source] = Mark(mark.offset, (*mark.timestamps, row.timestamp))
        self.recent[name] = None
        if len(self.recent) > RECENT_MAX:
            del self.recent[next(iter(self.recent))]


class CdcReading(Generic[R]):
    """The position of a consumer in the CDC log. Not thread-safe.

    ``tables``: requested tables as ``keyspace.table``; None: all.
    """

    def __init__(self, progress: ConsumerProgress, tables: frozenset[str] | None = None) -> None:
        self.generation: Micros = progress.generation
        self.counts: dict[RowVerdict, int] = dict.fromkeys(RowVerdict, 0)
        self._start = progress.start
        self._tables = tables
        self._entered = progress.entered
        self._parts: dict[int, _Partition[R]] = {number: _Partition(part) for number, part in progress.partitions}

    def progress(self) -> ConsumerProgress:
        """Return the position after all writes delivered so far."""
        parts = tuple((number, part.progress()) for number, part in self._parts.items())
        return ConsumerProgress(self.generation, parts, self._start, self._entered)

    def positions(self) -> Mapping[int, int]:
        """Return the next offset of each partition that is not read to its end."""
        return {number: part.read for number, part in self._parts.items() if not part.done}

    def unread(self) -> Mapping[int, int]:
        """Return the first offset of each partition that is not delivered. Any thread may ask.

        Skipped rows of later generations count as not delivered, and incomplete writes as delivered.
        """
        parts = self._parts.items()
        return {number: part.read if (ahead := part.ahead) is None else ahead for number, part in parts}

    def wants(self, partition: int) -> bool:
        """Return whether the partition has more rows of this generation."""
        return not self._parts[partition].done

    def passed(self, partition: int, offset: int) -> None:
        """Skip a gap: the partition has no records between the last one and ``offset``."""
        part = self._parts[partition]
        if not part.done:
            part.read = max(part.read, offset)

    def hidden_rows(self, ends: Mapping[int, int]) -> HiddenRows | None:
        """Describe the undelivered rows before ``ends`` (partition to end of the topic); None if there are none."""
        places = []
        for number, part in self._parts.items():
            first = part.ahead if part.ahead is not None else part.read if part.done else None
            if first is not None and first < ends.get(number, 0):
                places.append((number, first))
        writes = sum(len(part.pending) for part in self._parts.values())
        if not places and not writes:
            return None
        is_closed = bool(self._parts) and all(part.end is not None for part in self._parts.values())
        records = sum(ends[number] - first for number, first in places)
        return HiddenRows(self.generation, is_closed, tuple(places), records, writes)

    def take(self, partition: int, offset: int, row: R) -> tuple[RowVerdict, tuple[R, ...]]:
        """Process the record at ``offset``, in ascending order. ``DELIVERED`` comes with the rows of the write, by
        number.
        """
        part = self._parts[partition]
        verdict, rows = self._judge(part, offset, row)
        if verdict is not RowVerdict.BEYOND:
            assert offset >= part.read, f"{partition}/{offset} comes after {part.read}"
            part.read = offset + 1
        self.counts[verdict] += 1
        return verdict, rows

    def _judge(self, part: _Partition[R], offset: int, row: R) -> tuple[RowVerdict, tuple[R, ...]]:
        if part.done:
            if part.ahead is None:
                part.ahead = offset
            return RowVerdict.BEYOND, ()
        if row.generation > self.generation:
            # Before the table filter: the next generation is read from its first row, whatever its table.
            if part.ahead is None:
                part.ahead = offset
            return RowVerdict.AHEAD, ()
        if self._tables is not None and f"{row.keyspace}.{row.table}" not in self._tables:
            return RowVerdict.FILTERED, ()
        if row.generation < self.generation:
            is_old = part.left is None or offset < part.left
            return (RowVerdict.PASSED if is_old else RowVerdict.REPEATED), ()
        if row.timestamp < self._start:
            return RowVerdict.PASSED, ()
        return self._collect(part, offset, row)

    def _collect(self, part: _Partition[R], offset: int, row: R) -> tuple[RowVerdict, tuple[R, ...]]:
        source = (row.source_topic, row.source_partition)
        if part.was_delivered(row, source):
            return RowVerdict.REPEATED, ()
        # A producer that sends a mutation twice creates two source offsets, so the marks do not detect the second one.
        name = blake2b(row.stream_id + row.time, digest_size=NAME_BYTES).digest()
        if name in part.recent:
            if row.end_of_batch:
                part.deliver(row, source, name)
            return RowVerdict.REPEATED, ()
        key = (*source, row.source_offset, row.timestamp)
        pending = part.pending.get(key)
        if pending is None:
            pending = part.pending[key] = _Pending(offset)
        if row.batch_seq_no in pending.seen:
            return RowVerdict.REPEATED, ()
        pending.seen.add(row.batch_seq_no)
        pending.rows.append(row)
        if not row.end_of_batch:
            return RowVerdict.HELD, ()
        del part.pending[key]
        part.deliver(row, source, name)
        return RowVerdict.DELIVERED, tuple(sorted(pending.rows, key=lambda found: found.batch_seq_no))

    # ------------------------------------------------------------------------------------------ generations

    def move_on(self, generations: Generations, *, skip_expired: bool = False) -> bool:
        """Apply the known generations. Return True if the reading entered another one, at other positions.

        Call it until it returns False. A write that is incomplete at the end of its generation is not delivered: its
        writer was fenced during the write, and the write has a dead letter. Raises GenerationExpired unless
        ``skip_expired``.
        """
        if self.generation == NOT_ENTERED:
            return self._enter_first(generations, skip_expired)
        current = generations.at(self.generation)
        if current is None:
            if not generations.all():
                return False
            if not skip_expired:
                raise GenerationExpired(self.generation)
        elif current.ends is None:
            return False
        else:
            # An expired generation is still read to its end. If rows are already deleted, the reader of the topic
            # detects it.
            ends = dict(current.ends)
            for number, part in self._parts.items():
                part.end = ends.get(number, 0)
            if not all(part.done for part in self._parts.values()):
                return False
        following = generations.after(self.generation)
        if following is None:
            return False
        self._enter(following.timestamp)
        return True

    def _enter_first(self, generations: Generations, skip_expired: bool) -> bool:
        first = generations.operating(self._start) if self._start else None
        if first is not None and first.expired and not skip_expired:
            raise GenerationExpired(first.timestamp)
        if first is None or first.expired:
            first = generations.first_kept()
        if first is None:
            return False
        self.generation = first.timestamp
        # No generation was entered yet, so no skipped row was processed. Read from the first skipped row.
        for part in self._parts.values():
            part.read = part.read if part.ahead is None else part.ahead
            part.ahead = None
        self._entered = self._places()
        return True

    def _enter(self, timestamp: Micros) -> None:
        self.generation = timestamp
        for part in self._parts.values():
            part.enter_next()
        self._entered = self._places()

    def _places(self) -> tuple[tuple[int, int], ...]:
        return tuple((number, part.read) for number, part in self._parts.items())
