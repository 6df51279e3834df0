"""CDC writers: their registration, horizons and fences. ``cdc`` explains why this makes a switch safe.

**One source, one writer**: writes that two writers log are in the log of changes twice, permanently. A registration
names the topic that its writer logs. While a writer that is not fenced logs a topic, no other writer may. This also
covers two writers that start at the same moment, since the metadata log orders their registrations.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import NAME_RULE, broken_field, reason_rule
from ringlog.kernel.generations.acceptance import start_of_writers
from ringlog.kernel.generations.verdicts import with_lease
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import NODE, OPERATOR
from ringlog.kernel.model.state import CdcWriter, ClusterState, advance, in_order
from ringlog.kernel.values import MICROS_MAX, Before, Command, Micros, Position, is_name, replace

CODES: Final = {
    "horizon_below_floor": "The write lease is below the lease at registration.",
    "horizon_frozen": "The write lease cannot be raised while a generation waits for its timestamp.",
    "incarnation_reused": "The incarnation is registered. Each start of a writer needs a new incarnation.",
    "low_watermark_went_back": "The low-watermark can only rise.",
    "positions_went_back": "The position of a writer can only rise.",
    "source_in_use": "Another CDC writer logs the source and is not fenced.",
    "stale_incarnation": "The incarnation was never registered, or a later one is registered.",
    "unknown_writer": "The CDC writer is not registered.",
    "writer_fenced": "The incarnation is fenced and cannot write any longer.",
}

POSITIONS_MAX = 4_096
OFFSET_MAX = 2**62
INCARNATIONS_KEPT_MAX = 100
"""The most ended incarnations in a writer's record. The expiry of requests stops a delayed registration of an older
one.
"""
SOURCE_LENGTH_MAX = 249
"""The longest name of a topic."""


def source_owner(state: ClusterState, name: str, source: str) -> CdcWriter | None:
    """Return the other writer that keeps ``name`` from logging ``source``: it logs the source, and is not fenced.

    A writer registered without a source may log any topic, so it blocks every name whose writer is not active. It does
    not block an active writer: of two without a source, one must name its own first.
    """
    if not source:
        return None
    known = state.writers.get(name)
    is_at_work = known is not None and known.fenced is None
    logging = (other for _, other in in_order(state.writers) if other.name != name and other.fenced is None)
    return next((other for other in logging if other.source == source or not (other.source or is_at_work)), None)


def held_source(other: CdcWriter, source: str) -> str:
    """Return the text about a source that another writer logs."""
    logs = f"logs {source}" if other.source else f"named no source and may log {source}"
    return f"the CDC writer {other.name} {logs}; fence {other.name} first"


class RegisterCdcWriter(Command):
    """Register an incarnation of a CDC writer. Earlier incarnations of that name are fenced."""

    PAUSED_BY = UNPAUSED
    NEEDS = (NODE,)

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Id of the incarnation."]
    source: Annotated[
        str,
        "Topic that the writer logs. Empty: the topic of its earlier registration, or unknown if there is none.",
        Before(""),
    ] = ""


def decide_register_cdc_writer(state: ClusterState, command: RegisterCdcWriter, context: EntryContext) -> Decision:
    """Register a new incarnation. It inherits the writer's horizon and ends the earlier incarnations.

    An incarnation registers once. A second registration is rejected, not ignored: it may come from a second process
    with the same name, and the two would share one horizon.
    """
    broken = broken_field(
        (is_name(command.writer), "writer", NAME_RULE),
        (is_name(command.incarnation), "incarnation", NAME_RULE),
        (len(command.source) <= SOURCE_LENGTH_MAX, "source", f"must have at most {SOURCE_LENGTH_MAX} characters"),
    )
    if broken is not None:
        return broken
    known = state.writers.get(command.writer)
    # Without a source, the writer logs the source that its name logged before.
    source = command.source or (known.source if known is not None else "")
    other = source_owner(state, command.writer, source)
    if other is not None:
        return Rejected("source_in_use", f"source: {held_source(other, source)}")
    start = start_of_writers(state) or 0
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
        # After a fence it starts again, but writes that the fenced one may have routed stay below the name's horizon.
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
    assert writer.incarnation not in writer.ended, "an incarnation is used once"
    return Accepted(_promised(state, writer, context))


class AdvanceCdcWriter(Command):
    """Advance the write lease, the low-watermark and the positions of a CDC writer."""

    PAUSED_BY = UNPAUSED
    NEEDS = (NODE,)

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Current incarnation of the writer."]
    horizon: Annotated[int, "Time in microseconds; each routed write has a timestamp and append time below it."]
    low_watermark: Annotated[int, "Time in microseconds. All writes below it are durable in the CDC topic."]
    positions: Annotated[tuple[Position, ...], "Positions in the CDC topic, after the rows of these writes."] = ()
    decided: Annotated[
        tuple[Position, ...],
        "Positions in the source topic. The decision on each write below them is final, and its rows are durable.",
        Before(()),
    ] = ()


def decide_advance_cdc_writer(state: ClusterState, command: AdvanceCdcWriter, context: EntryContext) -> Decision:
    """Change the horizon, the low watermark and the positions of the writer's current incarnation."""
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
    # With another checkpoint a writer reads its source from the start again; earlier decisions stay.
    decided = greatest(writer.decided, command.decided)
    if len(decided) > POSITIONS_MAX:
        text = f"the writer would have {len(decided)} partitions, the limit is {POSITIONS_MAX}"
        return Rejected("too_many", f"decided: {text}: name only partitions of the source")
    moved = replace(
        writer,
        horizon=command.horizon,
        low_watermark=command.low_watermark,
        positions=greatest(writer.positions, command.positions),
        decided=decided,
    )
    assert max(moved.floor, moved.low_watermark) <= moved.horizon, "the low-watermark is at most the write lease"
    if moved == writer:
        return Accepted(state)
    return Accepted(_promised(state, moved, context))


def _promised(state: ClusterState, writer: CdcWriter, context: EntryContext) -> ClusterState:
    """Return the state with the writer. It validates below its horizon, so the settled time rises to the horizon."""
    settled = with_lease(state, writer.horizon)
    return advance(state, context.epoch, writers=state.writers.set(writer.name, writer), settled=settled)


def _horizon_refused(state: ClusterState, writer: CdcWriter, horizon: Micros) -> Rejected | None:
    if horizon < writer.floor:
        text = f"{horizon} is below {writer.floor}, the write lease at registration"
        return Rejected("horizon_below_floor", f"horizon: {text}")
    if horizon > writer.horizon and state.prepared is not None:
        text = f"{horizon} is above {writer.horizon}, and {state.prepared.id} is being prepared"
        return Rejected("horizon_frozen", f"horizon: {text}")
    return None


class FenceCdcWriter(Command):
    """Fence an incarnation of a CDC writer, and all earlier ones: they can no longer write to the CDC topic.

    All of their rows are below the recorded positions.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Current incarnation of the writer."]
    positions: Annotated[tuple[Position, ...], "End offsets of the CDC topic, read after the fence."]
    reason: Annotated[str, "Reason and evidence, in the operator's words."]


def decide_fence_cdc_writer(state: ClusterState, command: FenceCdcWriter, context: EntryContext) -> Decision:
    """End the writer's current incarnation and all before it permanently. Generations close without waiting for them.

    The fold cannot see a broker. The operator asserts that these incarnations can write nothing after ``positions``.
    """
    broken = broken_field(
        reason_rule(command.reason),
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
        positions=greatest(writer.positions, command.positions),
        fenced=context.epoch,
        fence_reason=command.reason,
    )
    return Accepted(advance(state, context.epoch, writers=state.writers.set(writer.name, fenced)))


def _position_rules(positions: tuple[Position, ...], name: str = "positions") -> tuple[tuple[bool, str, str], ...]:
    if not positions:
        return ()
    partitions = [position.partition for position in positions]
    return (
        (len(partitions) <= POSITIONS_MAX, name, f"must be at most {POSITIONS_MAX}"),
        (len(set(partitions)) == len(partitions), name, "must name each partition once"),
        (all(0 <= partition < 2**31 for partition in partitions), name, "partitions must be 0 or above"),
        (all(0 <= p.offset <= OFFSET_MAX for p in positions), name, "offsets must be 0 or above"),
    )


def _unfenced(state: ClusterState, name: str, incarnation: str) -> CdcWriter | Rejected:
    """Return the writer, if ``incarnation`` is its current one and not fenced."""
    writer = state.writers.get(name)
    if writer is None:
        return Rejected("unknown_writer", f"writer: {name} is not registered")
    if incarnation != writer.incarnation:
        text = f"{incarnation} is not the current incarnation of {name} ({writer.incarnation})"
        return Rejected("stale_incarnation", f"incarnation: {text}")
    if writer.fenced is not None:
        text = f"{incarnation} of {name} was fenced with epoch {writer.fenced}: {writer.fence_reason}"
        return Rejected("writer_fenced", f"incarnation: {text}")
    return writer


def _watermark_went_back(writer: CdcWriter, command: AdvanceCdcWriter) -> Rejected | None:
    if command.low_watermark < writer.low_watermark:
        text = f"{command.low_watermark} is below the current low-watermark {writer.low_watermark}"
        return Rejected("low_watermark_went_back", f"low_watermark: {text}")
    return None


def _positions_went_back(writer: CdcWriter, positions: tuple[Position, ...]) -> Rejected | None:
    claimed = {position.partition: position.offset for position in writer.positions} if positions else {}
    for position in positions:
        if position.offset < claimed.get(position.partition, 0):
            text = f"offset {position.offset} of partition {position.partition} is below {claimed[position.partition]}"
            return Rejected("positions_went_back", f"positions: {text}")
    return None


def greatest(first: tuple[Position, ...], second: tuple[Position, ...]) -> tuple[Position, ...]:
    """Return the greater offset for each partition that either names, by partition. ``first`` is sorted already."""
    if not second:
        return first
    greatest: dict[int, int] = {}
    for position in (*first, *second):
        greatest[position.partition] = max(position.offset, greatest.get(position.partition, 0))
    return tuple(Position(partition, offset) for partition, offset in sorted(greatest.items()))
