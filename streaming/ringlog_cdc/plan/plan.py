"""Batch plans: the driver's decisions, as a chain of values that a replay follows; and the size of the next part.

A plan part says which input offsets go out under which context (generations, tables, limits) and at which epoch that
was known. It is stored before the first of its rows goes out. A replayed batch carries out its stored parts and
decides nothing again, so the rows are the same bytes, whatever the log has learned since. Closing a generation is an
entry of the same chain.

Invariants, checked when a chain is loaded and when an entry is added:

- sequence numbers have no gap, and each entry carries the digest of the one before it;
- ``positions``, ``closed``, ``used`` and ``low_watermark`` are cumulative and never go back;
- the ranges of an entry begin where the positions before it end: no offset is skipped, none is planned twice.

The rule of held writes: a write may be routed when its append time, and its timestamp unless that lies beyond the
acceptance window anyway, are below the writer's horizon. A part ends, for each source partition, before the first
write that may not.

A job that dies often must still make progress. A part that was begun is carried out again as a whole, so a driver that
dies loses one part. The first part of a run is small. Each later one may be as large as all before it, and takes about
``PART_S`` at most. So a part takes no longer than the earlier ones of its run together, and a driver that lives as long
as the previous one finishes what that one began. If parts are fast, a whole batch soon is one part. Durations decide
sizes only: the outcome of a write follows from its plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields

from ringlog_cdc.errors import ChainBroken

Positions = tuple[tuple[int, int], ...]
"""(source partition, first offset that is not planned), by ascending partition."""

FORMAT = 1


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``start <= offset < end`` of one source partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One link of the chain. ``kind``: ``route`` (a plan part) or ``close`` (everything below ``low_watermark`` is
    durable).

    ``part`` counts the parts of a batch from 0; ``last`` marks the one that completes it. ``epoch``: the metadata
    epoch whose knowledge the context holds. ``horizon``: the folded horizon it was made under. ``used``: the greatest
    timestamp or append time (microseconds) that this entry or one before it routes. ``closed``: ids of generations
    that take no more rows.
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
"""What precedes the first entry; it is never stored."""


def encode(entry: PlanEntry) -> bytes:
    """Canonical JSON of an entry: the bytes that are stored and digested."""
    fields = {name: getattr(entry, name) for name in PlanEntry.__dataclass_fields__}
    fields["ranges"] = [[item.partition, item.start, item.end] for item in entry.ranges]
    fields["format"] = FORMAT
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes) -> PlanEntry:
    """The entry that ``encode`` gave, of the very same bytes; raises ChainBroken for anything else."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict) or fields.pop("format") != FORMAT:
            raise ChainBroken("a stored plan has a format that this release does not know")
        fields["ranges"] = tuple(OffsetRange(*map(_whole, item)) for item in fields["ranges"])
        fields["closed"] = tuple(fields["closed"])
        fields["positions"] = tuple((_whole(partition), _whole(offset)) for partition, offset in fields["positions"])
        entry = PlanEntry(**fields)
        if not all(type(getattr(entry, name)) is kind for name, kind in _PLAIN.items()):
            raise TypeError("a field has another type")
        if not all(isinstance(name, str) for name in entry.closed):
            raise TypeError("an id is no text")
        if encode(entry) != data:
            raise ValueError("it is not written as plans are")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChainBroken(f"a stored plan is unreadable: {error}") from error
    return entry


_PLAIN = {
    field.name: {"int": int, "str": str, "bool": bool}[str(field.type)]
    for field in dataclass_fields(PlanEntry)
    if str(field.type) in ("int", "str", "bool")
}
"""Field name to its one class, for the fields that JSON holds as they are."""


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def digest(entry: PlanEntry) -> str:
    """Hex SHA-256 of the stored bytes; the empty text for GENESIS."""
    return "" if entry.sequence < 0 else hashlib.sha256(encode(entry)).hexdigest()


def check_link(before: PlanEntry, entry: PlanEntry) -> None:
    """Raise ChainBroken unless ``entry`` may follow ``before``."""
    faults = []
    if entry.sequence != before.sequence + 1:
        faults.append(f"sequence {entry.sequence} follows {before.sequence}")
    if entry.previous != digest(before):
        faults.append("the digest of the entry before it differs")
    if entry.used < before.used or entry.low_watermark < before.low_watermark:
        faults.append("a cumulative value went back")
    if not set(before.closed) <= set(entry.closed):
        faults.append("a closed generation is open again")
    positions = dict(before.positions)
    for item in entry.ranges:
        if item.end <= item.start or positions.get(item.partition, item.start) != item.start:
            faults.append(f"range {item.start}..{item.end} of partition {item.partition} leaves a gap or overlaps")
        positions[item.partition] = item.end
    if dict(entry.positions) != dict(entry.positions) | positions:
        faults.append("its positions are not those before it and its ranges")
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
    """The chain's next plan part.

    ``used`` is the greatest of its own rows (0 if it has none); ``starts`` gives a position to partitions that
    have none yet; ``closed``: generations that the log says are closed, by this writer or another.
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
    """The chain's next closing: ``generations`` take no more rows, everything below ``low_watermark`` is durable."""
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


def use_of(timestamp: int, appended: int, leeway: int) -> int:
    """The greatest time that routing a write uses: a horizon above it lets the write pass. All in microseconds.

    A timestamp beyond ``appended + leeway`` is refused under every set of generations, so it does not count.
    """
    return max(appended, timestamp) if timestamp <= appended + leeway else appended


def append_limits(now: int, horizon: int, leeway: int) -> tuple[int, ...]:
    """Append times (milliseconds, as brokers count) worth asking for before any row is looked at.

    If nothing of a batch was appended at such a time or later, it can use no more than ``most_used``, which lies below
    the horizon: nothing is held. The tighter one comes first: what a plan may use, the horizon cannot be lowered below.
    ``now`` is only a guess of the newest append time; the broker's answer decides.
    """
    allowed = (horizon - leeway) // 1000
    likely = now // 1000 + 1
    return (likely, allowed) if likely < allowed else (allowed,)


def most_used(limit: int, leeway: int) -> int:
    """The greatest time that routing uses of writes appended before ``limit`` (milliseconds); in microseconds."""
    return (limit - 1) * 1000 + leeway


def is_before(later: Mapping[int, int | None], ends: Mapping[int, int]) -> bool:
    """True if a batch that ends at ``ends`` has none of the records that begin at ``later`` (None: there are none)."""
    firsts = [(later[partition], end) for partition, end in ends.items()]
    return all(first is None or first >= end for first, end in firsts)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What a pass over the rows of one source partition found, from the position of the plans on.

    ``held`` is the offset of the first one that may not be routed yet, or None; ``used`` is the greatest timestamp or
    append time of the rows that may be routed.
    """

    partition: int
    held: int | None
    used: int


def next_ranges(
    facts: Sequence[PartitionFacts], positions: Mapping[int, int], ends: Mapping[int, int]
) -> tuple[tuple[OffsetRange, ...], bool]:
    """(ranges of the next part, whether they complete the batch).

    ``positions``: where the plans before it end, of every partition; ``ends``: where the batch ends. Offsets without a
    row are control records; a part takes them along.
    """
    held = {item.partition: item.held for item in facts if item.held is not None}
    ranges = []
    for partition, end in sorted(ends.items()):
        start, stop = positions[partition], held.get(partition, end)
        if stop > start:
            ranges.append(OffsetRange(partition, start, stop))
    return tuple(ranges), not held


def at_most(ranges: tuple[OffsetRange, ...], complete: bool, limit: int) -> tuple[tuple[OffsetRange, ...], bool]:
    """The same answer for a part of about ``limit`` offsets: every range from its begin on, by equal shares."""
    share = max(1, limit // max(1, len(ranges)))
    if sum(item.end - item.start for item in ranges) <= limit:
        return ranges, complete
    taken = tuple(replace(item, end=min(item.end, item.start + share)) for item in ranges)
    return taken, complete and taken == ranges


def used_by(facts: Sequence[PartitionFacts], horizon: int) -> int:
    """An upper bound of what a part uses: exact when nothing is held, else the most that the horizon allows."""
    if any(item.held is not None for item in facts):
        return horizon - 1
    return max((item.used for item in facts), default=0)


FIRST = 20_000
"""Offsets of the first part of a run, at most."""
LEAST = 1_000
PART_S = 20.0
QUICK_S = PART_S / 4
"""What is done so soon says little of how long a large part would take."""


def next_limit(limit: int, offsets: int, seconds: float, done: int) -> int:
    """Offsets of the next part at most, after one of ``offsets`` took ``seconds`` under ``limit``.

    ``done``: all offsets of this run so far, that part's among them.
    """
    grown = max(limit, min(2 * limit, done))
    if seconds <= QUICK_S:
        return grown if 2 * offsets >= limit else limit
    return max(LEAST, min(grown, int(offsets / seconds * PART_S)))
