"""How far a consumer of the CDC log is: a value, small, and enough to go on exactly where it stopped.

For each partition of the CDC topic:

* ``position``: the offset to go on from. Rows below it are done with in this generation.
* ``ahead``: where the first row of a later generation was passed; the next generation is read from there, so no row
  has to be kept. None: no such row was seen.
* ``left``: rows of earlier generations below this offset were read in their time; those behind it are repetitions.
* ``marks``: for each partition of the mutations that rows came from, the greatest source offset delivered, and which
  timestamps of it. A writer adds the rows of one source partition to a partition of the CDC topic in the order of
  their source offsets, from the beginning of the batch when it has to repeat one; so whatever is at or below the mark
  has been delivered, however long ago, and one number stands for all of them.
* ``recent``: names of the last writes delivered, for a mutation that its *producer* sent twice under one id: its two
  rows have two source offsets and one name.

The JSON form is stable: a later release reads what this one wrote.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringlog.client.cdc.errors import BadProgress
from ringlog.kernel.values import Micros

RECENT_MAX = 512
"""Names of delivered writes that are remembered for each partition."""

NAME_BYTES = 8
FORM = 1
NOT_ENTERED = -1

Source = tuple[str, int]
"""Topic and partition of the mutations."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The greatest source offset delivered, and the timestamps of its writes that were."""

    offset: int
    timestamps: tuple[Micros, ...]


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """See the module; ``read``: up to where it was read, at or behind ``position`` (a write of several rows may be
    incomplete there).
    """

    position: int
    read: int
    ahead: int | None = None
    left: int | None = None
    marks: tuple[tuple[Source, Mark], ...] = ()
    recent: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """``generation``: timestamp of the one that is being read, -1 before the first; ``start``: earlier writes are left
    out; ``entered``: (partition, offset) pairs at which reading this generation began.
    """

    generation: Micros
    partitions: tuple[tuple[int, PartitionProgress], ...]
    start: Micros = 0
    entered: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(
            {
                "form": FORM,
                "generation": self.generation,
                "start": self.start,
                "entered": {str(number): offset for number, offset in self.entered},
                "partitions": {str(number): _part_json(part) for number, part in self.partitions},
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str | bytes) -> ConsumerProgress:
        """Raises BadProgress for anything that ``to_json`` never gives."""
        try:
            found = json.loads(text)
            if found["form"] != FORM:
                raise BadProgress(f"form {found['form']!r}; this release reads form {FORM}")
            return ConsumerProgress(
                _whole(found["generation"]),
                _pairs(found["partitions"], _part),
                _whole(found["start"]),
                _pairs(found["entered"], _whole),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadProgress(f"{type(error).__name__}: {error}") from error


def begin_at(positions: Mapping[int, int], start: Micros = 0) -> ConsumerProgress:
    """A consumer that has read nothing: partition to first offset; writes before ``start`` are left out."""
    parts = tuple((number, PartitionProgress(offset, offset)) for number, offset in sorted(positions.items()))
    return ConsumerProgress(NOT_ENTERED, parts, start)


def _part_json(part: PartitionProgress) -> dict[str, Any]:
    return {
        "position": part.position,
        "read": part.read,
        "ahead": part.ahead,
        "left": part.left,
        "marks": [[topic, number, mark.offset, list(mark.timestamps)] for (topic, number), mark in part.marks],
        "recent": base64.b64encode(b"".join(part.recent)).decode(),
    }


def _part(found: Any) -> PartitionProgress:
    names = base64.b64decode(found["recent"], validate=True)
    if len(names) % NAME_BYTES:
        raise ValueError(f"recent has {len(names)} bytes")
    marks = tuple(
        ((str(topic), _whole(number)), Mark(_whole(offset), tuple(_whole(time) for time in times)))
        for topic, number, offset, times in found["marks"]
    )
    position, read = _whole(found["position"]), _whole(found["read"])
    if not 0 <= position <= read:
        raise ValueError(f"position {position}, read {read}")
    recent = tuple(names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES))
    return PartitionProgress(position, read, _maybe(found["ahead"]), _maybe(found["left"]), marks, recent)


def _pairs(found: Any, value: Any) -> tuple[tuple[int, Any], ...]:
    pairs = {int(number): value(item) for number, item in found.items()}
    if len(pairs) != len(found):
        raise ValueError("a number is there twice")
    return tuple(sorted(pairs.items()))


def _whole(found: Any) -> int:
    if type(found) is not int:
        raise ValueError(f"{found!r} is no whole number")
    return found


def _maybe(found: Any) -> int | None:
    return None if found is None else _whole(found)
