"""Invariants of CDC: generations follow each other and cover the ring; writers keep their promises."""

from __future__ import annotations

from itertools import pairwise

from ringlog.kernel.generations.check import broken_part, broken_whole
from ringlog.kernel.generations.requests import IN_PROGRESS, NOTHING_TO_DO, OUTCOMES
from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.state import CdcWriter, ClusterState, Generation, in_order
from ringlog.kernel.values import TOKEN_MAX, Epoch, Position


@invariant("ids of generations are unique; timestamps and commit epochs ascend", "generations")
def generations(state: ClusterState, known: ClusterState) -> Details:
    """Check each generation against the next one."""
    if len({found.id for found in state.generations}) < len(state.generations):
        yield "two generations have the same id"
    for before, after in pairwise(state.generations):
        if before.timestamp >= after.timestamp or before.committed >= after.committed:
            yield f"{after.id} does not follow {before.id}"
        if before.published is None or before.published >= after.committed:
            yield f"{before.id} was not published when {after.id} was committed"
        if before.closed is None and after.closed is not None:
            yield f"{after.id} is closed, but the earlier {before.id} is open"
    if state.generations and state.generations[-1].closed is not None:
        yield f"{state.generations[-1].id} is the last generation, but it is closed"


@invariant("the status of a generation matches the epochs of its changes", "generations")
def lifecycle(state: ClusterState, known: ClusterState) -> Details:
    """Check each generation separately."""
    seen = set(map(id, known.generations))
    for found in state.generations:
        if id(found) in seen:
            continue
        passed: list[Epoch | None] = [found.committed, found.published, found.closed, found.expired]
        epochs = [epoch for epoch in passed if epoch is not None]
        status = ("committed", "published", "closed", "expired")[max(len(epochs), 1) - 1]
        if passed[: len(epochs)] != epochs or found.status != status:
            yield f"{found.id} is {found.status} with the epochs {passed}"
        elif any(low >= high for low, high in pairwise(epochs)) or not 1 <= epochs[-1] <= state.epoch:
            yield f"{found.id} has the epochs {epochs} at epoch {state.epoch}"
        if found.forgotten is not None and (found.expired is None or found.ranges):
            yield f"{found.id} is pruned, but {found.status} with {len(found.ranges)} ranges"
        if not _in_order(found.positions) or (found.positions and found.closed is None):
            yield f"{found.id} is {found.status} with the positions {found.positions[:3]}"


@invariant("the ranges of a generation's streams tile the ring, in order", "generations")
def streams(state: ClusterState, known: ClusterState) -> Details:
    """Check generations with new streams that are not forgotten."""
    seen = {id(found.ranges) for found in known.generations}
    for found in state.generations:
        if id(found.ranges) not in seen and found.forgotten is None:
            wrong = broken_part(found.ranges) or broken_whole([found.ranges])
            if wrong is not None:
                yield f"{found.id}: {wrong}"


@invariant("the tablets in a generation cover the ring and do not change while it has streams", "generations")
def tablet_streams(state: ClusterState, known: ClusterState) -> Details:
    """Check generations whose tables differ from the known state."""
    before = {found.id: found for found in known.generations}
    for found in state.generations:
        old = before.get(found.id)
        if old is not None and old.tables is found.tables:
            continue
        if found.forgotten is not None:
            if found.tables:
                yield f"{found.id} is pruned, but describes {found.tables[0].table}"
            continue
        names = [described.table for described in found.tables]
        if names != sorted(set(names)):
            yield f"{found.id} describes the tables {names[:3]}, which do not ascend"
        if old is not None and old.committed == found.committed and (lost := set(old.tables) - set(found.tables)):
            yield f"{found.id} no longer describes {min(one.table for one in lost)}"
        for described in found.tables:
            ends = described.ends
            if not ends or ends[-1] != TOKEN_MAX or any(low >= high for low, high in pairwise(ends)):
                yield f"{found.id}: the tablets of {described.table} do not ascend to the last token"


@invariant("a request in progress waits for a prepared or committed generation", "requests", "prepared", "generations")
def requests(state: ClusterState, known: ClusterState) -> Details:
    """Check every request: it has ended, or its generation is prepared, or committed and not published."""
    coming = {found.id for found in state.generations[-1:] if found.published is None}
    coming |= {state.prepared.id} if state.prepared is not None else set()
    for name, found in in_order(state.requests):
        if found.id != name or found.outcome not in OUTCOMES or not 1 <= found.epoch <= state.epoch:
            yield f"{name} is {found.id}, {found.outcome}, of epoch {found.epoch}"
        if (found.outcome == IN_PROGRESS) != (found.ended is None):
            yield f"{name} is {found.outcome} and ended with epoch {found.ended}"
        if found.outcome == IN_PROGRESS and found.generation not in coming:
            yield f"{name} waits for {found.generation}, which is neither prepared nor committed"
        if (found.outcome == NOTHING_TO_DO) != (found.generation is None):
            yield f"{name} is {found.outcome}, for {found.generation}"


@invariant(
    "one generation at a time is prepared, with valid parts, after the last one is published", "prepared", "generations"
)
def preparation(state: ClusterState, known: ClusterState) -> Details:
    """Check the prepared generation and its new parts."""
    prepared = state.prepared
    if prepared is None:
        return
    last: Generation | None = state.generations[-1] if state.generations else None
    if last is not None and last.published is None:
        yield f"{prepared.id} is prepared, but {last.id} is not published"
    if any(found.id == prepared.id for found in state.generations):
        yield f"{prepared.id} is both prepared and committed"
    numbers = [number for number, _ in prepared.received]
    if numbers != sorted(set(numbers)) or not all(0 <= number < prepared.parts for number in numbers):
        yield f"{prepared.id} has the parts {numbers} of {prepared.parts}"
    seen = set() if known.prepared is None else {id(part) for _, part in known.prepared.received}
    for number, part in prepared.received:
        if id(part) not in seen and (wrong := broken_part(part)) is not None:
            yield f"part {number} of {prepared.id}: {wrong}"


@invariant("low-watermark and floor of a writer are at most its write lease", "writers")
def writers(state: ClusterState, known: ClusterState) -> Details:
    """Check each writer separately, and that no writer was removed."""
    for name, writer in changed_items(state.writers, known.writers):
        if writer.name != name or not 1 <= writer.registered <= state.epoch or writer.incarnation in writer.ended:
            yield f"{name} is {writer.name}, {writer.incarnation} since epoch {writer.registered}"
        if not 0 <= writer.low_watermark <= writer.horizon or writer.floor > writer.horizon:
            yield f"{name} has low-watermark {writer.low_watermark}, floor {writer.floor}, lease {writer.horizon}"
        if not _in_order(writer.positions) or not _in_order(writer.decided):
            yield f"the positions of {name} do not ascend"
        if bool(writer.fence_reason) != (writer.fenced is not None) or (writer.fenced or 0) > state.epoch:
            yield f"{name} was fenced with epoch {writer.fenced}: {writer.fence_reason}"
        before = known.writers.get(name)
        if before is not None and (wrong := _went_back(before, writer)):
            yield f"{wrong} of {name} decreased since epoch {known.epoch}"
    if lost := sorted(set(known.writers) - set(state.writers)):
        yield f"{lost[0]} was removed"


def _in_order(positions: tuple[Position, ...]) -> bool:
    partitions = [position.partition for position in positions]
    return partitions == sorted(set(partitions)) and all(position.offset >= 0 for position in positions)


def _went_back(before: CdcWriter, after: CdcWriter) -> str:
    """Return the value that an incarnation lowered although it may only raise it; empty if none."""
    if before.incarnation != after.incarnation:
        return ""
    offsets = {position.partition: position.offset for position in after.positions}
    if any(offsets.get(position.partition, -1) < position.offset for position in before.positions):
        return "a position"
    return "the low watermark" if after.low_watermark < before.low_watermark else ""


@invariant(
    "if a generation is closed, every writer that is not fenced has reached the oldest open one",
    "writers",
    "generations",
)
def closed(state: ClusterState, known: ClusterState) -> Details:
    """Compare the low watermarks with the oldest open generation, once one was closed."""
    start = next((found.timestamp for found in state.generations if found.closed is None), 0)
    if not state.generations or state.generations[0].closed is None:
        return
    for name, writer in sorted(state.writers.items()):
        if writer.fenced is None and writer.low_watermark < start:
            yield f"{name} has the low-watermark {writer.low_watermark}, the oldest open generation starts at {start}"


@invariant("past TTLs of tables are ordered: the longer the TTL, the earlier it ended", "past_ttls")
def past(state: ClusterState, known: ClusterState) -> Details:
    """Check the order. A TTL of 0 never expires, so no other entry outlasts it."""
    for later, earlier in pairwise(state.past_ttls):
        if later.until <= earlier.until or later.ttl == 0 or 0 < earlier.ttl <= later.ttl:
            yield f"{earlier} is outlasted by {later}"
    if any(not 1 <= entry.until <= state.epoch for entry in state.past_ttls):
        yield f"{state.past_ttls} ended at future epochs"


INVARIANTS = (generations, lifecycle, streams, tablet_streams, requests, preparation, writers, closed, past)
