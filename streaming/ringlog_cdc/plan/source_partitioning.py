"""Fair shares of a batch: a source partition with a large backlog does not delay the others.

Spark's Kafka source divides a trigger's limit in proportion to the backlog of each partition, so all partitions lag by
the same time. One hot key would then delay every other key as long as itself. The job therefore reads the partitions as
several sources. Each has an equal share of ``max_offsets_per_trigger``, and Spark divides within it. A source whose
writes arrive more slowly than its share allows is up to date after each batch, regardless of the others. Unused shares
are not redistributed: the batch is smaller, and the next one starts earlier.

A source costs some milliseconds per trigger, so there are at most ``SOURCES_MAX``. With more partitions, several share
a source. Spark stores the number of sources in the checkpoint, so it never changes for a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ringlog.kernel.values import Value
from ringlog_cdc.errors import ChainBroken

SOURCES_MAX = 8
"""Most sources of a new checkpoint."""
FORM = "v1"
"""Version of Spark's offset log."""
LEAD_LINES = 2
"""Lines of an offset log file before those of the sources: its version, and the query's settings."""
NO_OFFSETS = "-"
"""The line of a source without offsets."""


class Share(Value):
    """Partitions of the mutations topic that one source reads, and its most records per trigger."""

    partitions: tuple[int, ...]
    limit: int


def shares_of(partitions: int, limit: int, sources: int | None) -> tuple[Share, ...]:
    """Divide a topic into shares.

    Args:
        partitions: Partitions of the topic.
        limit: Most records per trigger, for all sources together.
        sources: Number of sources in the checkpoint. None: it is new.
    """
    count = min(sources or SOURCES_MAX, partitions)
    return tuple(Share(tuple(range(first, partitions, count)), -(-limit // count)) for first in range(count))


def sources_of(checkpoint: Path) -> int | None:
    """Return the number of sources in Spark's offset log, or None for a new checkpoint.

    Raises:
        ChainBroken: The log is unreadable.
    """
    folder = checkpoint / "spark" / "offsets"
    batches = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return len(_lines((folder / str(max(batches))).read_bytes())) if batches else None


def batch_ends(checkpoint: Path, batch: int, topic: str) -> dict[int, int]:
    """Return source partition to the end of a batch, from Spark's offset log. Spark writes it before the batch starts.

    Raises:
        ChainBroken: The log has no such batch or is unreadable.
    """
    path = checkpoint / "spark" / "offsets" / str(batch)
    if not path.exists():
        raise ChainBroken(f"Spark's offset log does not contain batch {batch}")
    return decode_offsets(path.read_bytes(), topic)


def decode_offsets(data: bytes, topic: str) -> dict[int, int]:
    """Return source partition to offset from a file of Spark's offset log.

    Raises:
        ChainBroken: The file is unreadable.
    """
    found: dict[int, int] = {}
    try:
        for line in _lines(data):
            if line != NO_OFFSETS:
                _add(found, json.loads(line)[topic])
        if not found:
            raise ValueError("the batch has no offsets")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(error) from error
    return found


def _add(found: dict[int, int], offsets: Mapping[str, object]) -> None:
    """Add the offsets of one source. Raises ValueError for a partition that another source has."""
    for name, offset in offsets.items():
        partition = int(name)
        if type(offset) is not int or partition in found:
            raise ValueError("an offset is not an integer, or a partition occurs twice")
        found[partition] = offset


def _lines(data: bytes) -> list[str]:
    """Return the lines of the sources in an offset log file. Raises ChainBroken."""
    try:
        form, *lines = data.decode("utf-8").split("\n")
    except ValueError as error:
        raise _unreadable(error) from error
    if form != FORM:
        raise _unreadable(ValueError(f"format {form!r}; this release reads format {FORM!r}"))
    return [line for line in lines[LEAD_LINES - 1 :] if line]


def _unreadable(error: Exception) -> ChainBroken:
    return ChainBroken(f"Spark's offset log is unreadable: {type(error).__name__}: {error}")
