"""CDC generations and writers: how the streams change without a clock that anybody trusts.

A writer's **horizon** is its promise, kept in the log, to route only writes whose timestamp and append time lie below
the horizon *that it has folded*. A generation commits only with a timestamp above every horizon; whoever extends a
horizon past that timestamp has folded the commit first, since both are entries of one log. So no write is ever routed
under a generation that does not operate at its timestamp, however late, slow or dead a writer is:

- while a generation is prepared horizons may not rise, or the commit could chase them for ever; they may sink, so
that the switch need not wait until the time that a writer had reserved is over; - no incarnation sinks its horizon
below the one it found: earlier incarnations may have routed up to there, and what they sent may still be on its way;
- a writer's **low watermark** (all its rows below are durable) never goes back and never passes its horizon; - a
generation closes, oldest first, when every writer's low watermark has reached the next one's timestamp, but for those
that were **fenced**: a writer that is gone for good is ended by an operator, after the broker took its right to write
the CDC topic away for ever. Its horizon goes on counting, for what it wrote is there; its name may come back, and then
begins again with the oldest open generation.

Data of a generation has no effect before its commit, which names its digest. So a part that differs from one that is
there starts the data anew: a coordinator that takes over a preparation whose owners changed meanwhile need not undo
anything.

::

    RequestCdcGeneration ─┐                     CommitCdcGeneration   Publish      Close
    or first data for     ├─► prepared (parts) ───────────────────► committed ─► published ─► closed ─► expired
    a waiting operation ──┘   one at a time; none while the last one is not published            (``cdc_expiry``)
"""

from __future__ import annotations

from dataclasses import replace

from ringlog.kernel.commands.cdc_source import SOURCE_LENGTH_MAX, held_source, source_holder
from ringlog.kernel.commands.model import (
    AdvanceCdcWriter,
    CloseCdcGeneration,
    CommitCdcGeneration,
    FenceCdcWriter,
    GenerationRange,
    Position,
    PublishCdcGeneration,
    PutCdcGenerationData,
    RegisterCdcWriter,
    RequestCdcGeneration,
)
from ringlog.kernel.commands.nodes import REASON_LENGTH_MAX
from ringlog.kernel.commands.rules import NAME_RULE, broken_field
from ringlog.kernel.generations.check import broken_part, broken_whole
from ringlog.kernel.generations.describe import current, is_optimal, ranges_digest
from ringlog.kernel.generations.expiry import has_log
from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, PUBLISH_CDC_GENERATION, has_reached, in_flight
from ringlog.kernel.outcome import Accepted, Context, Decision, Rejected
from ringlog.kernel.state import (
    CdcWriter,
    ClusterState,
    Generation,
    Operation,
    PreparedGeneration,
    advance,
    in_order,
)
from ringlog.kernel.values import MICROS_MAX, GenerationId, Micros, is_name

SEED_BYTES = 16
PARTS_MAX = 4_096
POSITIONS_MAX = 4_096
OFFSET_MAX = 2**62
INCARNATIONS_KEPT_MAX = 100
"""Ended incarnations that a writer's record names; a delayed registration is stopped by its request's expiry anyway."""

COMMITTED = "committed"
PUBLISHED = "published"
CLOSED = "closed"


# ------------------------------------------------------------------------------------------------ generations


def decide_request_cdc_generation(state: ClusterState, command: RequestCdcGeneration, context: Context) -> Decision:
    """Begin a generation, unless the last one is optimal or one is being prepared already: then nothing changes."""
    broken = broken_field((len(command.seed) == SEED_BYTES, "seed", f"must be {SEED_BYTES} bytes"))
    if broken is not None:
        return broken
    if is_optimal(state) or not target_owners(state) or state.prepared is not None:
        return Accepted(state)
    refused = _last_unpublished(state)
    if refused is not None:
        return refused
    prepared = PreparedGeneration(f"generation-{context.epoch}", None, command.seed, 0, ())
    return Accepted(advance(state, context.epoch, prepared=prepared))


def decide_put_cdc_generation_data(state: ClusterState, command: PutCdcGenerationData, context: Context) -> Decision:
    """Keep one part of the prepared generation's data; the first part for a waiting operation begins its generation."""
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


def _begun(
    state: ClusterState, generation: GenerationId, context: Context
) -> tuple[ClusterState, PreparedGeneration] | Rejected:
    """The state in which ``generation`` is prepared, and its record; begun now if an operation waits for one."""
    if state.prepared is not None:
        if state.prepared.id == generation:
            return state, state.prepared
        return Rejected("generation_prepared", f"generation: {state.prepared.id} is being prepared, one at a time")
    if _find(state, generation) is not None:
        return Rejected("generation_exists", f"generation: {generation} is committed already")
    refused = _last_unpublished(state)
    if refused is not None:
        return refused
    operation = next((found for found in in_flight(state) if _waits_for_generation(found)), None)
    if operation is None:
        return Rejected("unknown_generation", f"generation: {generation} is neither requested nor waited for")
    prepared = PreparedGeneration(generation, operation.id, operation.seed, 0, ())
    operations = state.operations.set(operation.id, replace(operation, generation=generation))
    return advance(state, context.epoch, operations=operations, prepared=prepared), prepared


def _with_part(prepared: PreparedGeneration, command: PutCdcGenerationData) -> PreparedGeneration:
    """The record with the part; the same object if it was there. A part that does not fit the others starts anew."""
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


def decide_commit_cdc_generation(state: ClusterState, command: CommitCdcGeneration, context: Context) -> Decision:
    """The prepared generation operates from ``timestamp`` on, and serves every operation that waits for one."""
    broken = broken_field((0 < command.timestamp <= MICROS_MAX, "timestamp", f"must be between 1 and {MICROS_MAX}"))
    if broken is not None:
        return broken
    prepared = state.prepared
    if prepared is None or prepared.id != command.generation:
        if _find(state, command.generation) is not None:
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
    )
    operations = state.operations
    for operation in in_flight(state):
        # Its range ends are those of every operation in flight, so it serves all that have no generation of their own.
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
    """All ranges of the prepared generation, if they are complete, sound, those of ``digest``, and still wanted."""
    received = dict(prepared.received)
    missing = [part for part in range(prepared.parts) if part not in received]
    if missing or not prepared.parts:
        names = ", ".join(map(str, missing[:5])) or "all"
        return Rejected("generation_incomplete", f"generation: {prepared.id} lacks {len(missing)} parts ({names})")
    parts = [received[part] for part in range(prepared.parts)]
    ranges = tuple(described for part in parts for described in part)
    found = ranges_digest(ranges)
    if found != digest:
        return Rejected("digest_mismatch", f"digest: the data of {prepared.id} has {found}")
    rule = broken_whole(parts)
    if rule is not None:
        return Rejected("generation_malformed", f"generation: {prepared.id}: {rule}")
    wanted = target_owners(state)
    if len(ranges) != len(wanted) or any(described.end not in wanted for described in ranges):
        text = f"{prepared.id} has {len(ranges)} ranges, which are not those of the {len(wanted)} tokens there are now"
        return Rejected("generation_outdated", f"generation: {text}")
    return ranges


def _timestamp_too_low(state: ClusterState, timestamp: Micros) -> Rejected | None:
    last = current(state)
    if last is not None and timestamp <= last.timestamp:
        text = f"{timestamp} is not above {last.timestamp} of {last.id}"
        return Rejected("timestamp_not_above_previous", f"timestamp: {text}")
    for _, writer in in_order(state.writers):
        if timestamp <= writer.horizon:
            text = f"{timestamp} is not above the horizon {writer.horizon} of writer {writer.name}"
            return Rejected("timestamp_not_above_horizon", f"timestamp: {text}")
    return None


def decide_publish_cdc_generation(state: ClusterState, command: PublishCdcGeneration, context: Context) -> Decision:
    """The description of the committed generation is in the change topics."""
    generation = _find(state, command.generation)
    if generation is None:
        if state.prepared is not None and state.prepared.id == command.generation:
            return Rejected("generation_not_committed", f"generation: {command.generation} is not committed yet")
        return Rejected("unknown_generation", f"generation: {command.generation} is not known")
    if generation.status != COMMITTED:
        return Rejected("generation_published", f"generation: {generation.id} is {generation.status} already")
    published = replace(generation, status=PUBLISHED, published=context.epoch)
    return Accepted(advance(state, context.epoch, generations=_replaced(state, published)))


def decide_close_cdc_generation(state: ClusterState, command: CloseCdcGeneration, context: Context) -> Decision:
    """Every registered writer is done with the oldest open generation; the greatest positions are recorded with it.

    A fenced writer is not waited for. Where no writer has come through it (none is registered, or all were fenced
    before) nobody has logged what lies in it: a job that comes later begins with the oldest open generation and would
    find its writes refused, which the nodes took. So that takes a word of the command, unless no table kept a log.
    """
    broken = broken_field((0 <= command.closed_at <= MICROS_MAX, "closed_at", f"must be between 0 and {MICROS_MAX}"))
    if broken is not None:
        return broken
    generation = _find(state, command.generation)
    if generation is None:
        return Rejected("unknown_generation", f"generation: {command.generation} is not known")
    if generation.closed is not None:
        return Rejected("generation_closed", f"generation: {generation.id} is {generation.status} already")
    open_ones = [other for other in state.generations if other.closed is None]
    if open_ones[0] is not generation:
        return Rejected("earlier_generation_open", f"generation: {open_ones[0].id} is open and must close first")
    if len(open_ones) == 1:
        return Rejected("next_generation_not_committed", f"generation: none follows {generation.id}, it operates still")
    following = open_ones[1]
    writers = [writer for _, writer in in_order(state.writers)]
    done = [writer.name for writer in writers if writer.low_watermark >= following.timestamp]
    behind = [writer.name for writer in writers if writer.name not in done and writer.fenced is None]
    if not done and not behind and not command.unwatched and has_log(state, generation):
        text = f"no writer is there that could have logged what lies in {generation.id}; unwatched closes it anyway"
        return Rejected("no_writers", f"generation: {text}")
    if behind:
        text = f"{', '.join(behind)} have not reached {following.timestamp}, where {following.id} begins"
        return Rejected("writers_behind", f"generation: {text}")
    positions: tuple[Position, ...] = ()
    for writer in writers:
        positions = _greatest(positions, writer.positions)
    closed = replace(generation, status=CLOSED, closed=context.epoch, positions=positions, closed_at=command.closed_at)
    return Accepted(advance(state, context.epoch, generations=_replaced(state, closed)))


def _find(state: ClusterState, generation: GenerationId) -> Generation | None:
    return next((found for found in state.generations if found.id == generation), None)


def _replaced(state: ClusterState, changed: Generation) -> tuple[Generation, ...]:
    return tuple(changed if other.id == changed.id else other for other in state.generations)


def _waits_for_generation(operation: Operation) -> bool:
    return operation.stage == COMMIT_CDC_GENERATION and operation.generation is None


def _last_unpublished(state: ClusterState) -> Rejected | None:
    """One generation at a time is between its data and its publication, so that descriptions come out in order."""
    last = current(state)
    if last is None or last.published is not None:
        return None
    return Rejected("generation_prepared", f"{last.id} is committed and not published yet, one at a time")


# ---------------------------------------------------------------------------------------------------- writers


def decide_register_cdc_writer(state: ClusterState, command: RegisterCdcWriter, context: Context) -> Decision:
    """A new incarnation takes over the writer's promises and ends the earlier ones.

    An incarnation registers once. The same one again is refused and not repeated in silence: it may be a second process
    that was given the same name, and the two would keep one promise between them.
    """
    broken = broken_field(
        (is_name(command.writer), "writer", NAME_RULE),
        (is_name(command.incarnation), "incarnation", NAME_RULE),
        (len(command.source) <= SOURCE_LENGTH_MAX, "source", f"must have at most {SOURCE_LENGTH_MAX} characters"),
    )
    if broken is not None:
        return broken
    known = state.writers.get(command.writer)
    # Who says nothing logs what the name logged before.
    source = command.source or (known.source if known is not None else "")
    other = source_holder(state, command.writer, source)
    if other is not None:
        return Rejected("source_in_use", f"source: {held_source(other, source)}")
    start = next((other.timestamp for other in state.generations if other.closed is None), 0)
    if known is None:
        writer = CdcWriter(
            command.writer, command.incarnation, context.epoch, start, start, start, (), (), source=source
        )
    elif command.incarnation == known.incarnation:
        text = f"{command.incarnation} is registered since epoch {known.registered}; every start needs a new one"
        return Rejected("incarnation_reused", f"incarnation: {text}")
    elif command.incarnation in known.ended:
        return Rejected("stale_incarnation", f"incarnation: {command.incarnation} of {known.name} has ended")
    else:
        # After a fence it begins anew; but what the fenced one may have routed stays below the horizon of the name.
        horizon = known.horizon if known.fenced is None else max(known.horizon, start)
        writer = replace(
            known,
            incarnation=command.incarnation,
            registered=context.epoch,
            horizon=horizon,
            floor=horizon,
            low_watermark=known.low_watermark if known.fenced is None else start,
            ended=(*known.ended, known.incarnation)[-INCARNATIONS_KEPT_MAX:],
            fenced=None,
            fence_reason="",
            source=source,
            decided=known.decided if source == known.source else (),
        )
    return Accepted(advance(state, context.epoch, writers=state.writers.set(writer.name, writer)))


def decide_advance_cdc_writer(state: ClusterState, command: AdvanceCdcWriter, context: Context) -> Decision:
    """The writer's current incarnation moves its horizon, its low watermark and its positions."""
    broken = broken_field(
        (0 <= command.low_watermark <= command.horizon, "low_watermark", "must be between 0 and the horizon"),
        (command.horizon <= MICROS_MAX, "horizon", f"must be at most {MICROS_MAX}"),
        *_position_rules(command.positions),
        *_position_rules(command.decided, "decided"),
    )
    if broken is not None:
        return broken
    writer = _unfenced(state, command.writer, command.incarnation)
    if isinstance(writer, Rejected):
        return writer
    refused = (
        _horizon_refused(state, writer, command.horizon)
        or _watermark_went_back(writer, command)
        or _positions_went_back(writer, command.positions)
    )
    if refused is not None:
        return refused
    # With another checkpoint a writer begins its source anew: what was decided before stays so.
    decided = _greatest(writer.decided, command.decided)
    if len(decided) > POSITIONS_MAX:
        text = f"with those of before {len(decided)} partitions, and {POSITIONS_MAX} at most"
        return Rejected("too_many", f"decided: {text}: name only partitions of the source")
    moved = replace(
        writer,
        horizon=command.horizon,
        low_watermark=command.low_watermark,
        positions=_greatest(writer.positions, command.positions),
        decided=decided,
    )
    if moved == writer:
        return Accepted(state)
    return Accepted(advance(state, context.epoch, writers=state.writers.set(writer.name, moved)))


def _horizon_refused(state: ClusterState, writer: CdcWriter, horizon: Micros) -> Rejected | None:
    if horizon < writer.floor:
        text = f"{horizon} is below {writer.floor}, which the incarnation found when it registered"
        return Rejected("horizon_below_floor", f"horizon: {text}")
    if horizon > writer.horizon and state.prepared is not None:
        text = f"{horizon} is above {writer.horizon} and {state.prepared.id} is being prepared"
        return Rejected("horizon_frozen", f"horizon: {text}")
    return None


def decide_fence_cdc_writer(state: ClusterState, command: FenceCdcWriter, context: Context) -> Decision:
    """The writer's current incarnation, and all before it, are ended for ever; no close waits for them any more.

    The fold cannot see a broker: the operator's word is that these incarnations can write nothing behind ``positions``.
    """
    broken = broken_field(
        (1 <= len(command.reason) <= REASON_LENGTH_MAX, "reason", f"must have 1 to {REASON_LENGTH_MAX} characters"),
        *_position_rules(command.positions),
    )
    if broken is not None:
        return broken
    writer = _unfenced(state, command.writer, command.incarnation)
    if isinstance(writer, Rejected):
        return writer
    refused = _positions_went_back(writer, command.positions)
    if refused is not None:
        return refused
    fenced = replace(
        writer,
        positions=_greatest(writer.positions, command.positions),
        fenced=context.epoch,
        fence_reason=command.reason,
    )
    return Accepted(advance(state, context.epoch, writers=state.writers.set(writer.name, fenced)))


def _position_rules(positions: tuple[Position, ...], name: str = "positions") -> tuple[tuple[bool, str, str], ...]:
    partitions = [position.partition for position in positions]
    return (
        (len(partitions) <= POSITIONS_MAX, name, f"must be at most {POSITIONS_MAX}"),
        (len(set(partitions)) == len(partitions), name, "must name each partition once"),
        (all(0 <= partition < 2**31 for partition in partitions), name, "partitions must be 0 or above"),
        (all(0 <= p.offset <= OFFSET_MAX for p in positions), name, "offsets must be 0 or above"),
    )


def _unfenced(state: ClusterState, name: str, incarnation: str) -> CdcWriter | Rejected:
    """The writer, if ``incarnation`` is the one that it is now, and may still promise."""
    writer = state.writers.get(name)
    if writer is None:
        return Rejected("unknown_writer", f"writer: {name} is not registered")
    if incarnation != writer.incarnation:
        text = f"{incarnation} is not the current one of {name}, {writer.incarnation}"
        return Rejected("stale_incarnation", f"incarnation: {text}")
    if writer.fenced is not None:
        text = f"{incarnation} of {name} was fenced with epoch {writer.fenced}: {writer.fence_reason}"
        return Rejected("writer_fenced", f"incarnation: {text}")
    return writer


def _watermark_went_back(writer: CdcWriter, command: AdvanceCdcWriter) -> Rejected | None:
    if command.low_watermark < writer.low_watermark:
        text = f"{command.low_watermark} is below {writer.low_watermark}, which was claimed before"
        return Rejected("low_watermark_went_back", f"low_watermark: {text}")
    return None


def _positions_went_back(writer: CdcWriter, positions: tuple[Position, ...]) -> Rejected | None:
    claimed = {position.partition: position.offset for position in writer.positions}
    for position in positions:
        if position.offset < claimed.get(position.partition, 0):
            text = f"offset {position.offset} of partition {position.partition} is below {claimed[position.partition]}"
            return Rejected("positions_went_back", f"positions: {text}")
    return None


def _greatest(first: tuple[Position, ...], second: tuple[Position, ...]) -> tuple[Position, ...]:
    """The greater offset for each partition that either names, by partition."""
    greatest: dict[int, int] = {}
    for position in (*first, *second):
        greatest[position.partition] = max(position.offset, greatest.get(position.partition, 0))
    return tuple(Position(partition, offset) for partition, offset in sorted(greatest.items()))
