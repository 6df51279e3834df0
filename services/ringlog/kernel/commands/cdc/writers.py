"""CDC writers: they register, promise what they route, and may be fenced. Why this makes a switch safe: see ``cdc``.

**One source, one writer**: what two writers log twice is in the log of changes twice, for ever. A registration names
the topic that its writer logs. While one that is not fenced does so, no other may: also two that start at the same
moment are distinct, since the metadata log takes one registration after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from ringlog.kernel.columns.fast_dataclass import replaced
from ringlog.kernel.commands.rules import NAME_RULE, broken_field, reason_rule
from ringlog.kernel.generations.acceptance import start_of_writers
from ringlog.kernel.generations.verdicts import raised
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.state import CdcWriter, ClusterState, advance, in_order
from ringlog.kernel.values import MICROS_MAX, Before, Command, Micros, Position, is_name

CODES: Final = {
    "horizon_below_floor": "The horizon is below the one found at registration.",
    "horizon_frozen": "The horizon may not rise now: a generation is waiting for its timestamp.",
    "incarnation_reused": "The incarnation is registered already; every start of a writer needs a new one.",
    "low_watermark_went_back": "The low watermark may only rise.",
    "positions_went_back": "A position of a writer may only rise.",
    "source_in_use": "Another CDC writer logs the source, or may do so, and is not fenced.",
    "stale_incarnation": "A later incarnation of the writer is registered, or this one was never.",
    "unknown_writer": "No such CDC writer is registered.",
    "writer_fenced": "The incarnation was fenced: it has lost its right to write, and promises nothing any more.",
}

POSITIONS_MAX = 4_096
OFFSET_MAX = 2**62
INCARNATIONS_KEPT_MAX = 100
"""Ended incarnations that a writer's record names; a delayed registration is stopped by its request's expiry anyway."""
SOURCE_LENGTH_MAX = 249
"""As long as the name of a topic can be."""


def source_owner(state: ClusterState, name: str, source: str) -> CdcWriter | None:
    """Who keeps the writer ``name`` from logging ``source``: another one that logs it, and is not fenced.

    A writer that registered without a source may log any topic, so it keeps every name away that is not at work. It
    does not keep away a writer at work: of two without a source, one has to name its own first.
    """
    if not source:
        return None
    known = state.writers.get(name)
    is_at_work = known is not None and known.fenced is None
    logging = (other for _, other in in_order(state.writers) if other.name != name and other.fenced is None)
    return next((other for other in logging if other.source == source or not (other.source or is_at_work)), None)


def held_source(other: CdcWriter, source: str) -> str:
    """What is said of a source that another writer logs."""
    logs = f"logs {source}" if other.source else f"never said that it does not log {source}"
    return f"the CDC writer {other.name} {logs}, and nothing is logged twice; fence that writer to take its place"


@dataclass(frozen=True, slots=True)
class RegisterCdcWriter(Command):
    """A new incarnation of a CDC writer; it ends the earlier ones of that name."""

    PAUSED_BY = UNPAUSED

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Id of the incarnation."]
    source: Annotated[
        str,
        "The topic that it logs; empty: it does not say, and no other writer is refused for it.",
        Before(""),
    ] = ""


def decide_register_cdc_writer(state: ClusterState, command: RegisterCdcWriter, context: EntryContext) -> Decision:
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
        # After a fence it begins anew; but what the fenced one may have routed stays below the horizon of the name.
        horizon = known.horizon if known.fenced is None else max(known.horizon, start)
        writer = replaced(
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
    return Accepted(_promised(state, writer, context))


@dataclass(frozen=True, slots=True)
class AdvanceCdcWriter(Command):
    """Promise of a CDC writer."""

    PAUSED_BY = UNPAUSED

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Its current incarnation."]
    horizon: Annotated[int, "It routes only writes whose timestamp and append time lie below this; microseconds."]
    low_watermark: Annotated[int, "All writes below this are durable in the CDC topic; microseconds."]
    positions: Annotated[tuple[Position, ...], "Positions of the CDC topic up to which they are."] = ()
    decided: Annotated[
        tuple[Position, ...],
        "Positions of the source below which what becomes of each write is decided and durable, also where "
        "nothing does.",
        Before(()),
    ] = ()


def decide_advance_cdc_writer(state: ClusterState, command: AdvanceCdcWriter, context: EntryContext) -> Decision:
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
    decided = greatest(writer.decided, command.decided)
    if len(decided) > POSITIONS_MAX:
        text = f"with those of before {len(decided)} partitions, and {POSITIONS_MAX} at most"
        return Rejected("too_many", f"decided: {text}: name only partitions of the source")
    moved = replaced(
        writer,
        horizon=command.horizon,
        low_watermark=command.low_watermark,
        positions=greatest(writer.positions, command.positions),
        decided=decided,
    )
    if moved == writer:
        return Accepted(state)
    return Accepted(_promised(state, moved, context))


def _promised(state: ClusterState, writer: CdcWriter, context: EntryContext) -> ClusterState:
    """The state with the writer: who routes below a horizon judges there, so nothing later may count there."""
    settled = raised(state, writer.horizon)
    return advance(state, context.epoch, writers=state.writers.set(writer.name, writer), settled=settled)


def _horizon_refused(state: ClusterState, writer: CdcWriter, horizon: Micros) -> Rejected | None:
    if horizon < writer.floor:
        text = f"{horizon} is below {writer.floor}, which the incarnation found when it registered"
        return Rejected("horizon_below_floor", f"horizon: {text}")
    if horizon > writer.horizon and state.prepared is not None:
        text = f"{horizon} is above {writer.horizon} and {state.prepared.id} is being prepared"
        return Rejected("horizon_frozen", f"horizon: {text}")
    return None


@dataclass(frozen=True, slots=True)
class FenceCdcWriter(Command):
    """A CDC writer's incarnation, and all before it, have lost the right to write the CDC topic for ever.

    Nothing of theirs lies behind the positions.
    """

    PAUSED_BY = UNPAUSED

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Its current incarnation."]
    positions: Annotated[tuple[Position, ...], "Positions at which the CDC topic ended after that."]
    reason: Annotated[str, "Why, and how it is known; in the operator's words."]


def decide_fence_cdc_writer(state: ClusterState, command: FenceCdcWriter, context: EntryContext) -> Decision:
    """The writer's current incarnation, and all before it, are ended for ever; no close waits for them any more.

    The fold cannot see a broker: the operator's word is that these incarnations can write nothing behind ``positions``.
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
    fenced = replaced(
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
    claimed = {position.partition: position.offset for position in writer.positions} if positions else {}
    for position in positions:
        if position.offset < claimed.get(position.partition, 0):
            text = f"offset {position.offset} of partition {position.partition} is below {claimed[position.partition]}"
            return Rejected("positions_went_back", f"positions: {text}")
    return None


def greatest(first: tuple[Position, ...], second: tuple[Position, ...]) -> tuple[Position, ...]:
    """The greater offset for each partition that either names, by partition, as ``first`` is already."""
    if not second:
        return first
    greatest: dict[int, int] = {}
    for position in (*first, *second):
        greatest[position.partition] = max(position.offset, greatest.get(position.partition, 0))
    return tuple(Position(partition, offset) for partition, offset in sorted(greatest.items()))
