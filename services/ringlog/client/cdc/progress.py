"""Progress of a CDC consumer: a small value that is sufficient to continue exactly after the last delivered write.

Each partition of the CDC topic has these fields:

- ``position``: the offset to continue from. All rows of this generation below it are processed.

- ``ahead``: the offset of the first skipped row of a later generation, or None. The next generation is read from there,
  so no row has to be stored.

- ``left``: rows of earlier generations below this offset were processed. Those at or above it are repetitions.

- ``marks``: for each source partition of mutations, the greatest delivered source offset, and which of its timestamps
  were delivered. A writer adds the rows of one source partition in the order of their source offsets. It repeats a
  batch from the beginning if necessary. So every row at or below the mark has been delivered, and one number covers all
  of them.

- ``recent``: names of the last delivered writes. They detect a mutation that its *producer* sent twice under one id.
  Its two rows have different source offsets and the same name.

Invariant: the JSON form is stable. A later release reads the progress of this one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from ringlog.client.cdc.errors import BadProgress
from ringlog.kernel.values import Micros, Value

RECENT_MAX = 512
"""The number of write names that are kept for each partition."""

NAME_BYTES = 8
FORM = 1
NOT_ENTERED = -1

Source = tuple[str, int]
"""Topic and partition of the mutations."""


class Mark(Value):
    """The greatest delivered source offset, and the timestamps of its delivered writes."""

    offset: int
    timestamps: tuple[Micros, ...]


class PartitionProgress(Value):
    """The progress in one partition; fields as in the module description.

    ``read``: the next offset to read. It exceeds ``position`` while a write of several rows is incomplete.
    """

    position: int
    read: int
    ahead: int | None = None
    left: int | None = None
    marks: tuple[tuple[Source, Mark], ...] = ()
    recent: tuple[bytes, ...] = ()


class ConsumerProgress(Value):
    """The progress of a consumer.

    ``generation``: timestamp of the generation that is being read, -1 before the first. ``start``: earlier writes are
    skipped. ``entered``: (partition, offset) pairs where the reading of this generation began.
    """

    generation: Micros
    partitions: tuple[tuple[int, PartitionProgress], ...]
    start: Micros = 0
    entered: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> str:
        """Return the progress as one line of JSON."""
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
        """Parse the output of ``to_json``. Raises BadProgress for any other text."""
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
    """Return initial progress. ``positions``: partition to first offset. Writes before ``start`` are skipped."""
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
        raise ValueError("a number occurs twice")
    return tuple(sorted(pairs.items()))


def _whole(found: Any) -> int:
    if type(found) is not int:
        raise ValueError(f"{found!r} is not an integer")
    return found


def _maybe(found: Any) -> int | None:
    return None if found is None else _whole(found)
