"""Reading one partition of the CDC topic in one pass, for all generations at once. Used by batch queries.

A reader that follows the log is in one generation at a time, and may leave it only after reading all of it. When a
batch query is planned, the generations, their closes and the end of the topic are known. The plan can thus tell which
generations a follower would visit.

Invariant: the rows delivered for a generation are a function of that generation's rows in one partition. One pass that
keeps the protocol's state per generation therefore delivers the same writes, each stream in the same order, and the
driver has to read nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic

from ringlog.client.cdc.generations import Generations
from ringlog.client.cdc.progress import ConsumerProgress, PartitionProgress, begin_at
from ringlog.client.cdc.reading import CdcReading, R, RowVerdict
from ringlog.kernel.values import Micros, Value
from ringlog.wire.records import CdcRow


class Readable(Value):
    """A generation that a batch query reads.

    Attributes:
        ends: (partition, offset) of its close. None while it is open.
    """

    timestamp: Micros
    ends: tuple[tuple[int, int], ...] | None


def readable(
    generations: Generations, highs: Mapping[int, int], start: Micros, *, skip_expired: bool
) -> tuple[Readable, ...]:
    """Return the generations that a follower would visit from the start of the topic up to ``highs``.

    Args:
        generations: Known generations.
        highs: Partition to end offset.
        start: Timestamp of the first write to deliver, microseconds.
        skip_expired: Skip generations that are no longer retained.

    Raises:
        GenerationExpired: A generation is no longer retained.
    """
    reading: CdcReading[CdcRow] = CdcReading(begin_at(dict.fromkeys(highs, 0), start))
    found: list[Readable] = []
    while reading.move_on(generations, skip_expired=skip_expired):
        known = generations.at(reading.generation)
        assert known is not None, "the context manager was entered"
        # A close after the end of the topic is not reached: the query reads such a generation as an open one.
        is_whole = known.ends is not None and all(highs[number] >= end for number, end in known.ends)
        found.append(Readable(known.timestamp, known.ends if is_whole else None))
        for number, high in highs.items():
            reading.passed(number, high)
    return tuple(found)


class OnePass(Generic[R]):
    """The protocol for one partition from ``begin`` on, with separate state for each generation."""

    def __init__(
        self,
        partition: int,
        begin: int,
        generations: tuple[Readable, ...],
        start: Micros = 0,
        tables: frozenset[str] | None = None,
    ) -> None:
        self._partition = partition
        # A closed generation without an end for this partition has no rows here: its end is 0.
        self._ends: dict[Micros, int | None] = {
            found.timestamp: None if found.ends is None else dict(found.ends).get(partition, 0) for found in generations
        }
        place = ((partition, PartitionProgress(begin, begin)),)
        self._readings: dict[Micros, CdcReading[R]] = {
            found.timestamp: CdcReading(ConsumerProgress(found.timestamp, place, start), tables)
            for found in generations
        }

    def take(self, offset: int, row: R) -> tuple[R, ...]:
        """Process the next record, in ascending order of offsets. Return the rows of the write that it completes."""
        reading = self._readings.get(row.generation)
        if reading is None:
            return ()
        end = self._ends[row.generation]
        if end is not None and offset >= end:
            return ()  # after the close of its generation: a repetition
        verdict, rows = reading.take(self._partition, offset, row)
        return rows if verdict is RowVerdict.DELIVERED else ()
