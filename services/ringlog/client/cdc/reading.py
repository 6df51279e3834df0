"""The reading protocol of the CDC log: rows in, whole writes out; no input or output, no clock.

A consumer is in one generation at a time. It delivers that generation's rows partition by partition, in the order of
their offsets, and moves on when the generation is *closed* and every partition has been read up to the position that
the close names. Then it reads the next one from where its first row was passed, so nothing is kept meanwhile.

==================================  =================================================================================
row of                              verdict
==================================  =================================================================================
another table than asked for        ``FILTERED``
an earlier generation               ``REPEATED`` behind what was read of it, else ``PASSED``
a later generation                  ``AHEAD``: it is read again, later
this generation, a write delivered  ``REPEATED``: a writer that was killed writes the batch in hand again
a write before the start point      ``PASSED``
a write of several rows, not whole  ``HELD`` until the row with ``end_of_batch``; dropped if the generation closes first
this generation                     ``DELIVERED``, with all rows of the write
a partition that is read to its end ``BEYOND``: left for the next generation
==================================  =================================================================================

Invariants: every row of every generation entered is delivered once or lies before the start; two writes of one base
partition key are delivered in the order in which they were produced; ``progress`` taken at any time and given to a
new ``CdcReading`` goes on with exactly the writes that were not delivered.

Source: section "Consumers" of the guide; the close replaces ScyllaDB's confidence window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from ringlog.kernel.values import Micros


class RowSeen(Protocol):
    """What the protocol looks at; see the schema ``ringlog.cdc.CdcRow``."""

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


@dataclass(frozen=True, slots=True)
class NotShown:
    """What a reader that stopped at an end did not deliver of what lies before it.

    ``generation``: the one that it reads, which it cannot leave; -1: none is known. ``is_closed``: that one is, and the
    next one is not known yet. ``places``: partition, and the offset of its first row that is of a later one or may be;
    ``records``: from there on, of all partitions; repetitions, and rows of tables that nobody asked for, count.
    ``writes``: of which some rows have come, and the last one has not.
    """

    generation: Micros
    is_closed: bool
    places: tuple[tuple[int, int], ...]
    records: int
    writes: int


class RowVerdict(Enum):
    """What became of a row."""

    DELIVERED = "delivered"
    HELD = "held"
    AHEAD = "ahead"
    REPEATED = "repeated"
    PASSED = "passed"
    FILTERED = "filtered"
    BEYOND = "beyond"


class _Pending(Generic[R]):
    """A write whose last row has not come."""

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
        """True when the generation is closed and this partition has been read up to its end."""
        return self.end is not None and self.read >= self.end

    def progress(self) -> PartitionProgress:
        position = min((found.first for found in self.pending.values()), default=self.read)
        marks = tuple(sorted(self.marks.items()))
        return PartitionProgress(position, self.read, self.ahead, self.left, marks, tuple(self.recent))

    def enter_next(self) -> None:
        """Begin the next generation: from its first row that was passed, without anything delivered."""
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
        """Note that the whole write of ``row`` is out."""
        mark = self.marks.get(source)
        if mark is None or row.source_offset > mark.offset:
            self.marks[source] = Mark(row.source_offset, (row.timestamp,))
        else:
            self.marks[source] = Mark(mark.offset, (*mark.timestamps, row.timestamp))
        self.recent[name] = None
        if len(self.recent) > RECENT_MAX:
            del self.recent[next(iter(self.recent))]


class CdcReading(Generic[R]):
    """A consumer's place in the CDC log. For one thread.

    ``tables``: ``keyspace.table`` names whose rows are wanted; None: all.
    """

    def __init__(self, progress: ConsumerProgress, tables: frozenset[str] | None = None) -> None:
        self.generation: Micros = progress.generation
        self.counts: dict[RowVerdict, int] = dict.fromkeys(RowVerdict, 0)
        self._start = progress.start
        self._tables = tables
        self._entered = progress.entered
        self._parts: dict[int, _Partition[R]] = {number: _Partition(part) for number, part in progress.partitions}

    def progress(self) -> ConsumerProgress:
        """The place, all writes delivered so far done with."""
        parts = tuple((number, part.progress()) for number, part in self._parts.items())
        return ConsumerProgress(self.generation, parts, self._start, self._entered)

    def positions(self) -> Mapping[int, int]:
        """Partition to the offset that is to be read next, of those that are not done."""
        return {number: part.read for number, part in self._parts.items() if not part.done}

    def wants(self, partition: int) -> bool:
        """False for a partition that is read to the end of this generation."""
        return not self._parts[partition].done

    def passed(self, partition: int, offset: int) -> None:
        """The next record of the partition has ``offset`` or a later one: what lies before it are no records."""
        part = self._parts[partition]
        if not part.done:
            part.read = max(part.read, offset)

    def not_shown(self, ends: Mapping[int, int]) -> NotShown | None:
        """``ends``: partition to where the topic ended; None if everything before that was delivered."""
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
        return NotShown(self.generation, is_closed, tuple(places), records, writes)

    def take(self, partition: int, offset: int, row: R) -> tuple[RowVerdict, tuple[R, ...]]:
        """The record at ``offset``, in ascending order; with ``DELIVERED`` the rows of the write, by number."""
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
            # Of any table: a generation's first row is where the next one is read from, whatever is asked for.
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
        """Take what is known of the generations; True if the reading entered another one, and reads on elsewhere.

        Call it until it is False. A write whose last row is not there by the close is not delivered: its writer was
        fenced in the middle of it, and it has a dead letter. Raises GenerationExpired unless ``skip_expired``.
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
            # An expired one, too, as long as the topic has its rows: a reader of the topic notices if it has not.
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
        # Rows were only passed so far; none of them was done with.
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
