"""Reading a partition of the CDC topic from its beginning to its end in one pass, all generations at once.

Following the log, a reader is in one generation at a time, since it must not go on before it has everything of that
one. When a batch query is planned it is known what there is: which generations are closed, where, and where the topic
ends. So the generations that following would come to are a matter of the plan, and what is delivered of each is a
function of its own rows in one partition. One pass that keeps the protocol's state for each generation apart gives
the same writes, those of a stream in the same order; nobody has to read before it to find out where ranges end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from ringlog.client.cdc.generations import Generations
from ringlog.client.cdc.progress import ConsumerProgress, PartitionProgress, begin_at
from ringlog.client.cdc.reading import CdcReading, R, RowVerdict
from ringlog.kernel.values import Micros
from ringlog.wire.records import CdcRow


@dataclass(frozen=True, slots=True)
class Readable:
    """A generation that a batch query reads; ``ends``: as of its close, None while it is open."""

    timestamp: Micros
    ends: tuple[tuple[int, int], ...] | None


def readable(
    generations: Generations, highs: Mapping[int, int], start: Micros, *, skip_expired: bool
) -> tuple[Readable, ...]:
    """The generations that a reader comes to who begins at the beginning of the topic and reads it up to ``highs``.

    Raises GenerationExpired unless ``skip_expired``.
    """
    reading: CdcReading[CdcRow] = CdcReading(begin_at(dict.fromkeys(highs, 0), start))
    found: list[Readable] = []
    while reading.move_on(generations, skip_expired=skip_expired):
        known = generations.at(reading.generation)
        assert known is not None, "it was entered"
        is_whole = known.ends is not None and all(highs[number] >= end for number, end in known.ends)
        found.append(Readable(known.timestamp, known.ends if is_whole else None))
        for number, high in highs.items():
            reading.passed(number, high)
    return tuple(found)


class OnePass(Generic[R]):
    """The protocol for one partition from ``begin`` on, for each of ``generations`` apart."""

    def __init__(
        self,
        partition: int,
        begin: int,
        generations: tuple[Readable, ...],
        start: Micros = 0,
        tables: frozenset[str] | None = None,
    ) -> None:
        self._partition = partition
        self._ends: dict[Micros, int | None] = {
            found.timestamp: None if found.ends is None else dict(found.ends).get(partition, 0) for found in generations
        }
        place = ((partition, PartitionProgress(begin, begin)),)
        self._readings: dict[Micros, CdcReading[R]] = {
            found.timestamp: CdcReading(ConsumerProgress(found.timestamp, place, start), tables)
            for found in generations
        }

    def take(self, offset: int, row: R) -> tuple[R, ...]:
        """The record at ``offset``, in ascending order; the rows of the write that it completes."""
        reading = self._readings.get(row.generation)
        if reading is None:
            return ()
        end = self._ends[row.generation]
        if end is not None and offset >= end:
            return ()  # behind its close: a repetition
        verdict, rows = reading.take(self._partition, offset, row)
        return rows if verdict is RowVerdict.DELIVERED else ()
