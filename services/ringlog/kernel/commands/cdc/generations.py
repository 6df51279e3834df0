"""CDC generations: streams change without a trusted clock.

A writer's **horizon** is its write lease, kept in the log: it routes only writes whose timestamp and append time are
below the horizon *that it has folded*. A generation commits only with a timestamp above every horizon. A writer that
extends a horizon past that timestamp has folded the commit first, since both are entries of one log. So no write is
ever routed under a generation that is not active at its timestamp, however late, slow or dead a writer is:

- While a generation is prepared horizons may not rise, or the commit might never exceed them. They may be lowered, so
  that the switch need not wait for the end of a writer's lease.
- No incarnation lowers its horizon below the one it found. Earlier incarnations may have routed up to there, and their
  records may still arrive.
- A writer's **low watermark** (all its rows below are durable) never falls and never passes its horizon.
- A generation closes, oldest first, when every writer's low watermark has reached the next one's timestamp. **Fenced**
  writers do not count: an operator ends a writer after the broker has revoked its right to write the CDC topic. Its
  horizon still counts, because its rows remain. Its name may return, and then starts with the oldest open generation.

Data of a generation has no effect before its commit, which names its digest. So a part that differs from a present one
restarts the data: a coordinator that continues a preparation with other token owners need not undo anything.

::

    RequestCdcGeneration ─┐                     CommitCdcGeneration   Publish      Close
    or first data for     ├─► prepared (parts) ───────────────────► committed ─► published ─► closed ─► expired
    a waiting operation ──┘   one at a time; none while the last one is not published            (``cdc_expiry``)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from ringlog.kernel.commands.cdc.writers import greatest
from ringlog.kernel.commands.rules import NAME_RULE, broken_field, seed_rule
from ringlog.kernel.generations import requests
from ringlog.kernel.generations.check import broken_part, broken_whole
from ringlog.kernel.generations.describe import current, is_optimal, ranges_digest, tables_in_tablets
from ringlog.kernel.generations.expiry import has_log
from ringlog.kernel.generations.packed import PackedRanges, concatenated, ends_of
from ringlog.kernel.model.modes import CDC, UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.state import (
    ClusterState,
    Generation,
    Operation,
    PreparedGeneration,
    advance,
    generation_of,
    in_order,
)
from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.rings import are_targets, target_owners, target_tokens
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, PUBLISH_CDC_GENERATION, has_reached, in_flight
from ringlog.kernel.ring.shards import SHARDS_MAX
from ringlog.kernel.values import (
    MICROS_MAX,
    Before,
    Command,
    GenerationId,
    GenerationRange,
    Micros,
    Position,
    is_name,
    replace,
)

CODES: Final = {
    "digest_mismatch": "The digest does not match the data of the generation.",
    "earlier_generation_open": "An earlier generation is not sealed. Generations are sealed in order.",
    "generation_closed": "The generation is sealed.",
    "generation_exists": "A generation with this id is committed.",
    "generation_incomplete": "Chunks of the generation's data are missing.",
    "generation_malformed": "The chunks of the generation's data do not fit together.",
    "generation_operates": "The generation is active or starts within a minute, so it cannot be withdrawn.",
    "generation_outdated": "The owners of tokens changed after the generation was prepared.",
    "generation_prepared": "Another generation is prepared and not published yet.",
    "generation_published": "The generation is published.",
    "horizon_too_far_ahead": "The write lease is further ahead of the validator's clock than the settings allow.",
    "next_generation_not_committed": "The generation is active: the next one is not committed.",
    "no_writers": "No CDC writer is registered, so no rows of the generation are in the CDC log.",
    "timestamp_not_above_horizon": "A writer may already route writes at or above the timestamp.",
    "timestamp_not_above_previous": "The timestamp is not above that of the last generation.",
    "timestamp_too_far_ahead": "The timestamp is further ahead of the validator's clock than the settings allow.",
    "unknown_generation": "The generation does not exist.",
    "writers_behind": "A registered writer has not finished the generation.",
}

PARTS_MAX = 4_096
STREAMS_PER_PART = 16_384
"""Streams in one PutCdcGenerationData: about 300 KB, well below the size limit of a record."""
assert SHARDS_MAX <= STREAMS_PER_PART, "the largest range fits into one part"

COMMITTED = "committed"
PUBLISHED = "published"
CLOSED = "closed"


# ------------------------------------------------------------------------------------------------ generations


class RequestCdcGeneration(Command):
    """Request a new CDC generation, unless the current one is optimal."""

    PAUSED_BY = CDC
    NEEDS = (OPERATOR,)

    seed: Annotated[bytes, "16 random bytes for the stream ids of the generation."]
    requester: Annotated[
        str,
        "Name of the requester. The state records the outcome under it. Empty: no record, and changed shard "
        "counts do not matter.",
        Before(""),
    ] = "operator"


def decide_request_cdc_generation(
    state: ClusterState, command: RequestCdcGeneration, context: EntryContext
) -> Decision:
    """Prepare a generation, unless the last one is optimal. If one is being prepared, the request waits for that one.

    The request is recorded.
    """
    broken = broken_field(
        seed_rule(command.seed),
        (not command.requester or is_name(command.requester), "requester", NAME_RULE),
    )
    if broken is not None:
        return broken
    if is_optimal(state, shards=bool(command.requester)) or not target_owners(state):
        return Accepted(requests.add_request(state, command.requester, None, context))
    if state.prepared is None:
        refused = _last_unpublished(state)
        if refused is not None:
            return refused
        name = f"generation-{context.epoch}"
        if generation_of(state, name) is not None:  # the author of an earlier one chose this id
            return Rejected("generation_exists", f"the id {name} of this epoch is in use, try again")
        begun = PreparedGeneration(name, None, command.seed, 0, ())
        state = advance(state, context.epoch, prepared=begun)
    assert state.prepared is not None, "a generation is prepared"
    return Accepted(requests.add_request(state, command.requester, state.prepared.id, context))


class PutCdcGenerationData(Command):
    """Add a part of the ranges of the generation in preparation."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    generation: Annotated[str, "Id of the generation, e.g. generation-of-join-3."]
    part: Annotated[int, "Number of this part, from 0."]
    parts: Annotated[int, "Total number of parts."]
    ranges: Annotated[tuple[GenerationRange, ...], "The ranges of this part, by ascending end token."]


def decide_put_cdc_generation_data(
    state: ClusterState, command: PutCdcGenerationData, context: EntryContext
) -> Decision:
    """Store one part of the prepared generation's data. The first part for a waiting operation prepares its
    generation.
    """
    broken = broken_field(
        (is_name(command.generation), "generation", NAME_RULE),
        (1 <= command.parts <= PARTS_MAX, "parts", f"must be between 1 and {PARTS_MAX}"),
        (0 <= command.part < command.parts, "part", f"must be between 0 and parts - 1, {command.parts - 1}"),
    )
    if broken is not None:
        return broken
    rule = broken_part(command.ranges)
    if rule is not None:
        return Rejected("bad_field", f"ranges: {rule}")
    begun = _begun(state, command.generation, context)
    if isinstance(begun, Rejected):
        return begun
    state, prepared = begun
    kept = _with_part(prepared, command)
    return Accepted(state if kept is prepared else advance(state, context.epoch, prepared=kept))


def parts_of(
    generation: GenerationId, ranges: Sequence[GenerationRange], streams_per_part: int = STREAMS_PER_PART
) -> tuple[PutCdcGenerationData, ...]:
    """Return the commands that put ``ranges`` (not empty) into the log: up to ``streams_per_part`` each, or
    one range.
    """
    parts: list[list[GenerationRange]] = [[]]
    streams = 0
    for described in ranges:
        if parts[-1] and streams + len(described.streams) > streams_per_part:
            parts.append([])
            streams = 0
        parts[-1].append(described)
        streams += len(described.streams)
    assert parts[0], "a generation has at least one range"
    assert sum(map(len, parts)) == len(ranges), "each range is in one part"
    return tuple(
        PutCdcGenerationData(generation, part, len(parts), tuple(content)) for part, content in enumerate(parts)
    )


def _begun(
    state: ClusterState, generation: GenerationId, context: EntryContext
) -> tuple[ClusterState, PreparedGeneration] | Rejected:
    """Return the state with ``generation`` prepared, and its record. Prepare it now if an operation waits for one."""
    if state.prepared is not None:
        if state.prepared.id == generation:
            return state, state.prepared
        return Rejected(
            "generation_prepared",
            f"generation: {state.prepared.id} is being prepared; only one can be prepared at a time",
        )
    if generation_of(state, generation) is not None:
        return Rejected("generation_exists", f"generation: {generation} is committed already")
    refused = _last_unpublished(state)
    if refused is not None:
        return refused
    operation = next((found for found in in_flight(state) if _waits_for_generation(found)), None)
    if operation is None:
        return Rejected(
            "unknown_generation", f"generation: {generation} is not requested, and no operation waits for it"
        )
    prepared = PreparedGeneration(generation, operation.id, operation.seed, 0, ())
    operations = state.operations.set(operation.id, replace(operation, generation=generation))
    return advance(state, context.epoch, operations=operations, prepared=prepared), prepared


def _with_part(prepared: PreparedGeneration, command: PutCdcGenerationData) -> PreparedGeneration:
    """Return the record with the part; the same object if it had the part. A part that does not fit the others replaces
    them.
    """
    received = dict(prepared.received)
    if command.parts == prepared.parts:
        if received.get(command.part) == command.ranges:
            return prepared
        if command.part in received:
            received = {}
    else:
        received = {}
    received[command.part] = command.ranges
    return replace(prepared, parts=command.parts, received=tuple(sorted(received.items(), key=lambda item: item[0])))


class CommitCdcGeneration(Command):
    """Commit a generation, which is active from its timestamp."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    generation: Annotated[str, "Id of the generation."]
    timestamp: Annotated[int, "Start of the generation, in microseconds since 1970 UTC."]
    digest: Annotated[str, "SHA-256 of the generation's ranges, in hex."]


def decide_commit_cdc_generation(state: ClusterState, command: CommitCdcGeneration, context: EntryContext) -> Decision:
    """Commit the prepared generation from ``timestamp``. It serves every operation that waits for one."""
    broken = broken_field((0 < command.timestamp <= MICROS_MAX, "timestamp", f"must be between 1 and {MICROS_MAX}"))
    if broken is not None:
        return broken
    prepared = state.prepared
    if prepared is None or prepared.id != command.generation:
        if generation_of(state, command.generation) is not None:
            return Rejected("generation_exists", f"generation: {command.generation} is committed already")
        return Rejected("unknown_generation", f"generation: {command.generation} is not being prepared")
    ranges = _whole(state, prepared, command.digest)
    if isinstance(ranges, Rejected):
        return ranges
    refused = _timestamp_too_low(state, command.timestamp)
    if refused is not None:
        return refused
    generation = Generation(
        id=prepared.id,
        timestamp=command.timestamp,
        ranges=ranges,
        status=COMMITTED,
        committed=context.epoch,
        published=None,
        closed=None,
        positions=(),
        tables=tables_in_tablets(state),
    )
    operations = state.operations
    for operation in in_flight(state):
        # Its range ends are those of every operation in flight, so it serves all operations without a generation.
        waits = kind_of(operation).makes_generation and not has_reached(operation, PUBLISH_CDC_GENERATION)
        if operation.generation is None and waits:
            operations = operations.set(operation.id, replace(operation, generation=prepared.id))
    return Accepted(
        advance(
            state,
            context.epoch,
            operations=operations,
            generations=(*state.generations, generation),
            prepared=None,
        )
    )


def _whole(state: ClusterState, prepared: PreparedGeneration, digest: str) -> tuple[GenerationRange, ...] | Rejected:
    """Return all ranges of the prepared generation if they are complete, valid, still wanted, and match ``digest``."""
    received = dict(prepared.received)
    missing = [part for part in range(prepared.parts) if part not in received]
    if missing or not prepared.parts:
        names = ", ".join(map(str, missing[:5])) or "all"
        return Rejected("generation_incomplete", f"generation: {prepared.id} lacks {len(missing)} parts ({names})")
    parts = [received[part] for part in range(prepared.parts)]
    ranges = concatenated(parts)
    found = ranges_digest(ranges)
    if found != digest:
        return Rejected("digest_mismatch", f"digest: the data of {prepared.id} has digest {found}")
    rule = broken_whole(parts)
    if rule is not None:
        return Rejected("generation_malformed", f"generation: {prepared.id}: {rule}")
    if not are_targets(state, ranges.ends if isinstance(ranges, PackedRanges) else ends_of(ranges)):
        wanted = len(target_tokens(state))
        text = f"{prepared.id} has {len(ranges)} ranges, which do not match the {wanted} current tokens"
        return Rejected("generation_outdated", f"generation: {text}")
    return ranges


def _timestamp_too_low(state: ClusterState, timestamp: Micros) -> Rejected | None:
    last = current(state)
    if last is not None and timestamp <= last.timestamp:
        text = f"{timestamp} is not above {last.timestamp} of {last.id}"
        return Rejected("timestamp_not_above_previous", f"timestamp: {text}")
    for _, writer in in_order(state.writers):
        if timestamp <= writer.horizon:
            text = f"{timestamp} is not above the write lease {writer.horizon} of writer {writer.name}"
            return Rejected("timestamp_not_above_horizon", f"timestamp: {text}")
    if timestamp < state.settled.until:
        text = f"{timestamp} is below the validation watermark {state.settled.until}"
        return Rejected("timestamp_not_above_horizon", f"timestamp: {text}")
    return None


class PublishCdcGeneration(Command):
    """Record that the change topics contain the description of a committed generation."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    generation: Annotated[str, "Id of the generation."]


def decide_publish_cdc_generation(
    state: ClusterState, command: PublishCdcGeneration, context: EntryContext
) -> Decision:
    """Mark the committed generation as published: the change topics have its description."""
    generation = generation_of(state, command.generation)
    if generation is None:
        if state.prepared is not None and state.prepared.id == command.generation:
            return Rejected("generation_not_committed", f"generation: {command.generation} is not committed yet")
        return Rejected("unknown_generation", f"generation: {command.generation} is not known")
    if generation.status != COMMITTED:
        return Rejected("generation_published", f"generation: {generation.id} is {generation.status} already")
    published = replace(generation, status=PUBLISHED, published=context.epoch)
    state = requests.end_requests(state, generation.id, requests.DONE, context)
    return Accepted(advance(state, context.epoch, generations=_replaced(state, published)))


class CloseCdcGeneration(Command):
    """Close a generation: no registered writer adds a row to it.

    Consumers continue with the next generation after the recorded positions.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    generation: Annotated[str, "Id of the generation."]
    unwatched: Annotated[
        bool,
        "Close the generation even if no writer is registered. Its writes are then not logged.",
        Before(False),
    ] = False
    closed_at: Annotated[
        int,
        "Time of the close by the author's clock, in microseconds since 1970 UTC. Retention starts then. 0: unknown.",
        Before(0),
    ] = 0


def decide_close_cdc_generation(state: ClusterState, command: CloseCdcGeneration, context: EntryContext) -> Decision:
    """Close the oldest open generation once every registered writer has finished it, and record the greatest positions.

    A fenced writer does not count. If no writer has passed the generation (none is registered, or all were fenced
    before), its writes are not logged. A later job would start with the oldest open generation, and reject writes that
    the nodes accepted. So closing it then needs ``unwatched``, unless no table kept a log.
    """
    broken = broken_field((0 <= command.closed_at <= MICROS_MAX, "closed_at", f"must be between 0 and {MICROS_MAX}"))
    if broken is not None:
        return broken
    generation = generation_of(state, command.generation)
    if generation is None:
        return Rejected("unknown_generation", f"generation: {command.generation} is not known")
    if generation.closed is not None:
        return Rejected("generation_closed", f"generation: {generation.id} is {generation.status} already")
    open_ones = [other for other in state.generations if other.closed is None]
    if open_ones[0] is not generation:
        return Rejected("earlier_generation_open", f"generation: {open_ones[0].id} is not closed; close it first")
    if len(open_ones) == 1:
        return Rejected("next_generation_not_committed", f"generation: no generation follows {generation.id}")
    following = open_ones[1]
    writers = [writer for _, writer in in_order(state.writers)]
    done = [writer.name for writer in writers if writer.low_watermark >= following.timestamp]
    behind = [writer.name for writer in writers if writer.name not in done and writer.fenced is None]
    if not done and not behind and not command.unwatched and has_log(state, generation):
        text = f"no CDC writer has logged the writes of {generation.id}; unwatched closes it anyway"
        return Rejected("no_writers", f"generation: {text}")
    if behind:
        text = f"{', '.join(behind)} must first reach {following.timestamp}, the start of {following.id}"
        return Rejected("writers_behind", f"generation: {text}")
    positions: tuple[Position, ...] = ()
    for writer in writers:
        positions = greatest(positions, writer.positions)
    closed = replace(generation, status=CLOSED, closed=context.epoch, positions=positions, closed_at=command.closed_at)
    return Accepted(advance(state, context.epoch, generations=_replaced(state, closed)))


def _replaced(state: ClusterState, changed: Generation) -> tuple[Generation, ...]:
    at = [other.id for other in state.generations].index(changed.id)
    return (*state.generations[:at], changed, *state.generations[at + 1 :])


def _waits_for_generation(operation: Operation) -> bool:
    return operation.stage == COMMIT_CDC_GENERATION and operation.generation is None


def _last_unpublished(state: ClusterState) -> Rejected | None:
    """Reject unless the last generation is published, so that descriptions appear in order."""
    last = current(state)
    if last is None or last.published is not None:
        return None
    return Rejected("generation_prepared", f"{last.id} is committed but not published yet")
