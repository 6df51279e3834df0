"""How many: counted by the Python workers an Arrow batch at a time, added up by the driver.

A Spark accumulator takes the counts of a task once, when the task is done, however often it was tried; the counts of a
write are complete when the write returns. To count in Spark instead costs an expression a reason and a generation for
every single row, and a round through the listeners' queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from pyspark import AccumulatorParam

Key = tuple[str, int]
Tally = dict[Key, int]
"""What is counted to how many: ``RECORDS`` of the source, ``(REASON, number)``, ``(GENERATION, timestamp)`` of rows;
``(WITH_STATES, source partition)``: records of a part that makes images.
"""

RECORDS: Key = ("records", 0)
REASON, GENERATION, WITH_STATES = "reason", "generation", "with states"


class TallyParam(AccumulatorParam[Tally]):
    """Adds tallies up."""

    def zero(self, value: Tally) -> Tally:
        """The same with nothing counted."""
        return dict.fromkeys(value, 0)

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:
        """The sum, in the first of the two."""
        for key, count in value2.items():
            value1[key] = value1.get(key, 0) + count
        return value1


def counted(name: str, values: NDArray[np.int64] | NDArray[np.int32]) -> Iterable[tuple[Key, int]]:
    """How often each of ``values`` is there."""
    if len(values) and (values == values[0]).all():
        return [((name, int(values[0])), len(values))]
    found, counts = np.unique(values, return_counts=True)
    return [((name, value), count) for value, count in zip(found.tolist(), counts.tolist(), strict=True)]


def of_kind(tally: Mapping[Key, int], name: str) -> dict[int, int]:
    """The counts of one kind, by ascending number."""
    return {number: count for (kind, number), count in sorted(tally.items()) if kind == name and count}
