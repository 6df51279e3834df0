"""Batch plans: the driver's decisions as a chain of values, and the size of the next part.

A *plan part* assigns input offsets to a context (generations, tables, limits) and to the metadata epoch of that
context. A part is stored before its first row is written. A replay carries out the stored parts and decides nothing
again, so its rows are the same bytes, even if the log has changed since. Closing a generation is an entry of the same
chain.

Invariants, checked when a chain is loaded and when an entry is added:

* Sequence numbers have no gap, and each entry has the digest of its predecessor.
* ``positions``, ``closed``, ``used`` and ``low_watermark`` are cumulative and never decrease.
* The ranges of an entry start where the previous positions end: no offset is skipped or planned twice.

Rule of held writes: a write may be routed if its append time is below the writer's horizon, and also its timestamp,
unless that is outside the acceptance window anyway. In each source partition, a part ends before the first write that
may not be routed.

A job that crashes often must still make progress. A crash loses one part, since a started part is repeated as a whole.
The first part of a run is therefore small. Each later one may be as large as all before it, up to about ``PART_S`` of
work. So a part takes no longer than all earlier ones of its run together, and a driver that lives as long as its
predecessor finishes the part that the predecessor started. If parts are fast, one part soon covers a whole batch.
Durations influence sizes only: the outcome of a write follows from its plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from ringlog.kernel.values import Value, replace
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.stored_files import decode_file, encode_file, typed

Positions = tuple[tuple[int, int], ...]
"""(source partition, first offset that is not planned), by ascending partition."""


class OffsetRange(Value):
    """Offsets ``start <= offset < end`` of one source partition."""

    partition: int
    start: int
    end: int


class PlanEntry(Value):
    """One entry of the chain.

    Attributes:
        sequence: Number of the entry, from 0.
        kind: ``route`` for a plan part, or ``close``: everything below ``low_watermark`` is durable.
        batch: Spark's number of the batch.
        part: Number of the part in its batch, from 0.
        last: True if the part completes its batch.
        ranges: Offsets of the part.
        epoch: Metadata epoch of the context.
        context: Name of the stored context.
        horizon: Folded horizon when the part was made, microseconds.
        used: Largest timestamp or append time that this entry or an earlier one routes, microseconds.
        closed: Ids of generations that accept no more rows.
        low_watermark: Everything below is durable, microseconds.
        positions: End of this entry in every source partition.
        incarnation: Incarnation of the writer.
        previous: Digest of the previous entry.
    """

    sequence: int
    kind: str
    batch: int
    part: int
    last: bool
    ranges: tuple[OffsetRange, ...]
    epoch: int
    context: str
    horizon: int
    used: int
    closed: tuple[str, ...]
    low_watermark: int
    positions: Positions
    incarnation: str
    previous: str


GENESIS = PlanEntry(-1, "close", -1, 0, True, (), 0, "", 0, 0, (), 0, (), "", "")
"""Predecessor of the first entry. Never stored."""


def encode(entry: PlanEntry) -> bytes:
    """Encode an entry. These bytes are stored and hashed."""
    return encode_file("plan", _fields(entry))


def decode(data: bytes, path: Path | str = "a stored plan") -> PlanEntry:
    """Decode the bytes of ``encode``.

    Raises:
        CdcError: ``checkpoint_version``.
        ChainBroken: The bytes are not exactly the encoding of an entry.
    """
    return decode_file("plan", data, path, _entry)


def _fields(entry: PlanEntry) -> dict[str, Any]:
    """Return the content of a file."""
    return {name: getattr(entry, name) for name in PlanEntry.__struct_fields__} | {
        "ranges": [[item.partition, item.start, item.end] for item in entry.ranges],
        "closed": list(entry.closed),
        "positions": [list(position) for position in entry.positions],
    }


def _entry(content: Any) -> PlanEntry:
    """Return the entry of a file. Raises TypeError, ValueError or KeyError."""
    ranges = tuple(OffsetRange(*(typed(number, int) for number in item)) for item in content["ranges"])
    positions = tuple((typed(partition, int), typed(offset, int)) for partition, offset in content["positions"])
    closed = tuple(typed(name, str) for name in content["closed"])
    entry = PlanEntry(**content | {"ranges": ranges, "closed": closed, "positions": positions})
    for name, kind in _PLAIN.items():
        typed(getattr(entry, name), kind)
    if _fields(entry) != content:
        raise ValueError("a list has another form")
    return entry


_PLAIN = {name: kind for name, kind in get_type_hints(PlanEntry).items() if kind in (int, str, bool)}
"""Field name to its type, for fields that JSON represents directly."""


def digest(entry: PlanEntry) -> str:
    """Return the SHA-256 of the stored bytes in hex, or the empty text for GENESIS."""
    return "" if entry.sequence < 0 else hashlib.sha256(encode(entry)).hexdigest()


def check_link(before: PlanEntry, entry: PlanEntry) -> None:
    """Raise ChainBroken unless ``entry`` may follow ``before``."""
    faults = []
    if entry.sequence != before.sequence + 1:
        faults.append(f"sequence {entry.sequence} follows {before.sequence}")
    if entry.previous != digest(before):
        faults.append("the digest of the previous entry differs")
    if entry.used < before.used or entry.low_watermark < before.low_watermark:
        faults.append("a cumulative value decreases")
    if not set(before.closed) <= set(entry.closed):
        faults.append("a sealed generation is active again")
    positions = dict(before.positions)
    for item in entry.ranges:
        if item.end <= item.start or positions.get(item.partition, item.start) != item.start:
            faults.append(f"range {item.start}..{item.end} of partition {item.partition} leaves a gap or overlaps")
        positions[item.partition] = item.end
    if dict(entry.positions) != dict(entry.positions) | positions:
        faults.append("its positions do not match the previous positions and its ranges")
    if faults:
        raise ChainBroken(f"plan {entry.sequence}: " + "; ".join(faults))


def route_entry(
    before: PlanEntry,
    *,
    batch: int,
    part: int,
    last: bool,
    ranges: Sequence[OffsetRange],
    epoch: int,
    context: str,
    horizon: int,
    used: int,
    incarnation: str,
    starts: Mapping[int, int] | None = None,
    closed: Sequence[str] = (),
) -> PlanEntry:
    """Return the next plan part of the chain.

    Args:
        before: Newest entry.
        used: Largest time that the part's own rows use. 0 if it has none.
        starts: Position of each source partition that has none yet.
        closed: Ids of generations that are closed in the log, by this writer or another.

    Raises:
        ChainBroken: The part does not fit the chain.
    """
    ordered = tuple(sorted(ranges, key=lambda item: item.partition))
    positions = dict(starts or {}) | dict(before.positions) | {item.partition: item.end for item in ordered}
    entry = PlanEntry(
        sequence=before.sequence + 1,
        kind="route",
        batch=batch,
        part=part,
        last=last,
        ranges=ordered,
        epoch=epoch,
        context=context,
        horizon=horizon,
        used=max(before.used, used),
        closed=tuple(sorted({*before.closed, *closed})),
        low_watermark=before.low_watermark,
        positions=tuple(sorted(positions.items())),
        incarnation=incarnation,
        previous=digest(before),
    )
    check_link(before, entry)
    return entry


def close_entry(
    before: PlanEntry, *, generations: Sequence[str], low_watermark: int, epoch: int, incarnation: str
) -> PlanEntry:
    """Return the next closing of the chain.

    Args:
        before: Newest entry.
        generations: Ids of the generations that accept no more rows.
        low_watermark: Everything below is durable, microseconds.
    """
    entry = replace(
        before,
        sequence=before.sequence + 1,
        kind="close",
        last=True,
        ranges=(),
        epoch=epoch,
        closed=tuple(sorted(set(before.closed) | set(generations))),
        low_watermark=low_watermark,
        incarnation=incarnation,
        previous=digest(before),
    )
    check_link(before, entry)
    return entry


# ------------------------------------------------------------------------------------------------ held writes


def append_limits(now: int, horizon: int, leeway: int) -> tuple[int, ...]:
    """Return append times (milliseconds, as brokers count) to ask the broker for before reading any row.

    If nothing of a batch was appended at that time or later, the batch uses at most ``most_used``, which is below the
    horizon, and no row is held. The lower limit comes first: the horizon cannot be lowered below the recorded use.
    ``now`` is only a guess at the newest append time, and the broker's answer decides.

    Args:
        now: Clock, microseconds.
        horizon: Horizon, microseconds.
        leeway: Allowed lateness, microseconds.
    """
    allowed = (horizon - leeway) // 1000
    likely = now // 1000 + 1
    return (likely, allowed) if likely < allowed else (allowed,)


def most_used(limit: int, leeway: int) -> int:
    """Return the largest time (microseconds) that routing uses for writes appended before ``limit`` (milliseconds)."""
    return (limit - 1) * 1000 + leeway


def is_before(later: Mapping[int, int | None], ends: Mapping[int, int]) -> bool:
    """Return True if the batch ends before all later records.

    Args:
        later: Source partition to the first later record. None: there are none.
        ends: Source partition to the end of the batch.
    """
    firsts = [(later[partition], end) for partition, end in ends.items()]
    return all(first is None or first >= end for first, end in firsts)


class PartitionFacts(Value):
    """Result of reading the rows of one source partition, from the end of the plans on.

    Attributes:
        partition: Source partition.
        held: Offset of the first row that may not be routed yet, or None.
        used: Largest timestamp or append time of the rows that may be routed, microseconds.
    """

    partition: int
    held: int | None
    used: int


def next_ranges(
    facts: Sequence[PartitionFacts], positions: Mapping[int, int], ends: Mapping[int, int]
) -> tuple[tuple[OffsetRange, ...], bool]:
    """Return the ranges of the next part, and True if they complete the batch.

    Offsets without a row are control records and belong to the part.

    Args:
        facts: Facts of the source partitions with rows.
        positions: End of the plans in every source partition.
        ends: End of the batch in every source partition.
    """
    held = {item.partition: item.held for item in facts if item.held is not None}
    ranges = []
    for partition, end in sorted(ends.items()):
        start, stop = positions[partition], held.get(partition, end)
        if stop > start:
            ranges.append(OffsetRange(partition, start, stop))
    return tuple(ranges), not held


def at_most(ranges: tuple[OffsetRange, ...], complete: bool, limit: int) -> tuple[tuple[OffsetRange, ...], bool]:
    """Limit the result of ``next_ranges`` to about ``limit`` offsets, with equal shares for the ranges."""
    share = max(1, limit // max(1, len(ranges)))
    if sum(item.end - item.start for item in ranges) <= limit:
        return ranges, complete
    taken = tuple(replace(item, end=min(item.end, item.start + share)) for item in ranges)
    return taken, complete and taken == ranges


def used_by(facts: Sequence[PartitionFacts], horizon: int) -> int:
    """Return an upper bound of the time that a part uses.

    It is exact if nothing is held, else the most that the horizon allows.
    """
    if any(item.held is not None for item in facts):
        return horizon - 1
    return max((item.used for item in facts), default=0)


FIRST = 20_000
"""Most offsets in the first part of a run."""
LEAST = 1_000
"""Lower bound for the limit of a part."""
PART_S = 20.0
"""Intended upper bound for the duration of a part, seconds."""
QUICK_S = PART_S / 4
"""A part faster than this says little about the duration of a large one."""


def next_limit(limit: int, offsets: int, seconds: float, done: int) -> int:
    """Return the most offsets for the next part.

    Args:
        limit: Limit of the part that was just done.
        offsets: Its offsets.
        seconds: Its duration.
        done: All offsets of this run so far, including that part.
    """
    grown = max(limit, min(2 * limit, done))
    if seconds <= QUICK_S:
        # A fast part far below its limit is no evidence that a larger limit is safe.
        return grown if 2 * offsets >= limit else limit
    return max(LEAST, min(grown, int(offsets / seconds * PART_S)))
