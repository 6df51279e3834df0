"""Counts of the workers, which a Spark accumulator adds up on the driver.

The accumulator takes the counts of a task once, when the task succeeds, however often it was tried. The counts of a
write are complete when the write returns. Counting in Spark itself would cost an expression for every reason,
generation and row, and a pass through the listeners' queue.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyspark import AccumulatorParam


@dataclass(slots=True)
class Tally:
    """Counts of a write.

    Attributes:
        records: Source records.
        reasons: Source records and rows by verdict (``ringlog_cdc.definition.reasons``).
        generations: Rows by start of their generation, microseconds.
        paths: Source records by path (``ringlog_cdc.bulk.choice``).
        with_states: Source records by partition, in a part that makes images.
        cuts: Source partition to the offset of the first large record, where its task stopped.
    """

    records: int = 0
    reasons: Counter[int] = field(default_factory=Counter)
    generations: Counter[int] = field(default_factory=Counter)
    paths: Counter[int] = field(default_factory=Counter)
    with_states: Counter[int] = field(default_factory=Counter)
    cuts: dict[int, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add the counts of another tally. They may be negative: a correction takes records back."""
        self.records += other.records
        self.reasons.update(other.reasons)
        self.generations.update(other.generations)
        self.paths.update(other.paths)
        self.with_states.update(other.with_states)
        self.cuts |= other.cuts


class TallyParam(AccumulatorParam[Tally]):
    """Spark's rule to add up tallies."""

    def zero(self, value: Tally) -> Tally:  # noqa: ARG002
        """Return a tally with nothing counted."""
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:
        """Add the second tally to the first, and return it."""
        value1.add(value2)
        return value1


def counted(values: NDArray[np.integer]) -> Counter[int]:
    """Return how often each distinct value occurs."""
    # The usual case, without the sort of ``np.unique``.
    if len(values) and (values == values[0]).all():
        return Counter({int(values[0]): len(values)})
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))
