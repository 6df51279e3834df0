"""Fair shares of a batch: a source partition with a great backlog does not hold up the others.

Spark's Kafka source divides what a trigger may take in proportion to what lies in each partition, so all of them are
late by the same time: one hot key makes every other key wait as long as itself. So the job reads its partitions as a
few sources, each with an equal share of ``max_offsets_per_trigger`` for itself; within a source Spark divides. A
source whose writes come more slowly than its share goes through is up to date after each batch, whatever lies in
another. A share that is not used is not given to others: a batch is then smaller, and the next one begins earlier.

A source costs some milliseconds a trigger, so there are at most ``SOURCES_MAX``: beyond as many partitions, some share.
Spark keeps the number of sources with the checkpoint: it stays what it was when the checkpoint began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringlog_cdc.errors import ChainBroken

SOURCES_MAX = 8
FORM = "v1"
LEAD_LINES = 2
"""Lines of a file of Spark's offset log before those of the sources: its format, and the query's settings."""
NO_OFFSETS = "-"
"""The line of a source that has no offsets yet."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one source reads: partitions of the mutations topic, and how many records a trigger at most."""

    partitions: tuple[int, ...]
    limit: int


def shares_of(partitions: int, limit: int, sources: int | None) -> tuple[Share, ...]:
    """The shares of a topic with this number of partitions. ``sources``: as many as the checkpoint has; None: it is
    new.
    """
    count = min(sources or SOURCES_MAX, partitions)
    return tuple(Share(tuple(range(first, partitions, count)), -(-limit // count)) for first in range(count))


def sources_of(checkpoint: Path) -> int | None:
    """How many sources Spark's offset log of a checkpoint knows; None if there is none yet. Raises ChainBroken."""
    folder = checkpoint / "spark" / "offsets"
    batches = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return len(_lines((folder / str(max(batches))).read_bytes())) if batches else None


def batch_ends(checkpoint: Path, batch: int, topic: str) -> dict[int, int]:
    """Source partition to the end of a batch, from Spark's own offset log, which is written before the batch begins."""
    path = checkpoint / "spark" / "offsets" / str(batch)
    if not path.exists():
        raise ChainBroken(f"Spark's offset log has no batch {batch}")
    return decode_offsets(path.read_bytes(), topic)


def decode_offsets(data: bytes, topic: str) -> dict[int, int]:
    """Source partition to offset in a file of Spark's offset log; raises ChainBroken."""
    found: dict[int, int] = {}
    try:
        for line in _lines(data):
            if line != NO_OFFSETS:
                _add(found, json.loads(line)[topic])
        if not found:
            raise ValueError("it has no offsets")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(error) from error
    return found


def _add(found: dict[int, int], offsets: Mapping[str, object]) -> None:
    for name, offset in offsets.items():
        partition = int(name)
        if type(offset) is not int or partition in found:
            raise ValueError("an offset is no whole number, or a partition is there twice")
        found[partition] = offset


def _lines(data: bytes) -> list[str]:
    """The lines of the sources in a file of Spark's offset log; raises ChainBroken."""
    try:
        form, *lines = data.decode("utf-8").split("\n")
    except ValueError as error:
        raise _unreadable(error) from error
    if form != FORM:
        raise _unreadable(ValueError(f"format {form!r}, not {FORM!r}"))
    return [line for line in lines[LEAD_LINES - 1 :] if line]


def _unreadable(error: Exception) -> ChainBroken:
    return ChainBroken(f"Spark's offset log is unreadable: {type(error).__name__}: {error}")
