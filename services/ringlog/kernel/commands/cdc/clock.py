"""Repair of times that a wrong clock has put into the log, by an operator.

CDC times come from clocks: a writer promises a horizon a little ahead of its clock, a generation starts a little ahead
of the coordinator's clock. The validator rejects times far ahead of *its* clock. If all these clocks were wrong
together (one machine, a resumed virtual machine), the log has a horizon or a generation of a far future, and later ones
must be above it. Three commands lower such a time, as far as it was not used:

- ``LowerCdcWriter``: A horizon is the bound of the times that a writer *may* have used. A fenced writer can use no
  more, so the operator may know a lower bound. A live writer lowers its own; one that cannot is fenced first. The name
  returns with the lowered horizon, which is then its floor.
- ``WithdrawCdcGeneration``: A generation has no effect until a writer may have routed to it. The horizons in the
  state, including those of fenced writers, bound the routed writes. If none is above the generation's start, and no
  consumer may have left the previous generation, it can be removed as if it had never been committed. A writer that
  later promises past its start has folded the withdrawal, since both are entries of one log.
- ``LowerSettledTime``: Readers validate writes below the validation watermark, and later decisions count from it. A
  CDC writer validates below its horizon, so no horizon may be above the lowered time. A node has folded the whole log
  as of when it read a write. So by a state before this entry it validates only writes appended before this entry. If
  none of them uses a time at or above the lowered one, no reader has validated there. Then decisions that were to
  count from above it (table versions, allowed lateness) can count from there. After that a generation that starts
  above it can be withdrawn, too.

The fold reads neither topics nor a clock. The operator asserts that no write was appended at or after the lowered time
or the start of the withdrawn generation, as with the end of a writer's rights in a fence. (``ringlog cdc lower`` and
``ringlog cdc withdraw`` first check it at the broker.) Used times stay bound. Then a later generation must be above
them, however far ahead (setting ``cdc_timestamp_ahead_max_us``).

::

    horizon far ahead ─Fence─► fenced ─Lower─► fenced, low again ─► generations start near now
    settled far ahead ─all horizons low─► ─Lower─► low again ─► generations start, schema changes count near now
    generation committed far ahead ─Withdraw─► gone; the ring's ends that it had are prepared again
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration, decide_request_cdc_generation
from ringlog.kernel.commands.rules import broken_field, reason_rule, seed_rule
from ringlog.kernel.generations import requests
from ringlog.kernel.generations.describe import current
from ringlog.kernel.generations.verdicts import lowered_to
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState, Generation, advance, in_order
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.schema.table_versions import lowered
from ringlog.kernel.values import MICROS_MAX, Command, replace

CODES: Final = {
    "generation_in_use": "A writer may have routed rows to the generation, or an operation in flight needs it.",
    "generation_not_last": "A later generation exists. Only the last one can be withdrawn.",
    "horizon_below_low_watermark": "The write lease is below the low-watermark of the writer.",
    "horizon_not_lower": "The new write lease is not below the current one.",
    "settled_not_lower": "The new validation watermark is not below the current one.",
    "settled_too_low": "Writes at or above that time were already validated, or their versions are pruned.",
    "settled_too_near": "The time is too close to the validator's clock: writes near it may be validated now.",
    "writer_not_fenced": "The writer is not fenced. Only the write lease of a fenced writer can be lowered.",
}


class LowerCdcWriter(Command):
    """Lower the write lease of a fenced CDC writer that has used no time at or above the new one.

    Its clock was ahead when it set the horizon.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    writer: Annotated[str, "Name of the writer."]
    incarnation: Annotated[str, "Current incarnation of the writer. It must be fenced."]
    horizon: Annotated[
        int,
        "New write lease in microseconds. Each routed write has its timestamp and append time below it.",
    ]
    reason: Annotated[str, "Reason and evidence, in the operator's words."]


def decide_lower_cdc_writer(state: ClusterState, command: LowerCdcWriter, context: EntryContext) -> Decision:
    """Lower the horizon of a fenced writer to ``horizon``: never above the present one or below the writer's low
    watermark.
    """
    broken = broken_field(
        reason_rule(command.reason),
        (0 <= command.horizon <= MICROS_MAX, "horizon", f"must be between 0 and {MICROS_MAX}"),
    )
    if broken is not None:
        return broken
    writer = state.writers.get(command.writer)
    if writer is None:
        return Rejected("unknown_writer", f"writer: {command.writer} is not registered")
    if command.incarnation != writer.incarnation:
        text = f"{command.incarnation} is not the current incarnation of {writer.name} ({writer.incarnation})"
        return Rejected("stale_incarnation", f"incarnation: {text}")
    if writer.fenced is None:
        text = f"{writer.name} may still route writes below {writer.horizon}; fence it first"
        return Rejected("writer_not_fenced", f"writer: {text}")
    if command.horizon > writer.horizon:
        text = f"{command.horizon} is above the write lease {writer.horizon} of {writer.name}"
        return Rejected("horizon_not_lower", f"horizon: {text}")
    if command.horizon < writer.low_watermark:
        text = f"{command.horizon} is below the low-watermark {writer.low_watermark} of {writer.name}"
        return Rejected("horizon_below_low_watermark", f"horizon: {text}")
    if command.horizon == writer.horizon:
        return Accepted(state)
    sunk = replace(writer, horizon=command.horizon, floor=min(writer.floor, command.horizon))
    assert sunk.low_watermark <= sunk.horizon < writer.horizon, "the low-watermark is at most the write lease"
    return Accepted(advance(state, context.epoch, writers=state.writers.set(writer.name, sunk)))


class LowerSettledTime(Command):
    """Lower the validation watermark. No reader has validated a write that uses the new time or a later one.

    A clock was ahead when readers raised it.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    until: Annotated[
        int,
        "New validation watermark in microseconds. All append times in the mutations topic are below it, and so are "
        "all timestamps that are not rejected as future.",
    ]
    reason: Annotated[str, "Reason and evidence, in the operator's words."]


def decide_lower_settled_time(state: ClusterState, command: LowerSettledTime, context: EntryContext) -> Decision:
    """Lower the settled time to ``until``. Decisions that were to count from above it count from there.

    Reject a higher time, a time below a CDC writer's horizon, and times whose decisions are pruned.
    """
    broken = broken_field(
        reason_rule(command.reason),
        (1 <= command.until <= MICROS_MAX, "until", f"must be between 1 and {MICROS_MAX}"),
    )
    if broken is not None:
        return broken
    settled = state.settled
    if command.until >= settled.until:
        text = f"the validation watermark is {settled.until}" if settled.until else "there is no validation watermark"
        return Rejected("settled_not_lower", f"until: {text}")
    if command.until <= settled.forgotten:
        return Rejected("settled_too_low", f"until: table versions before {settled.forgotten} are pruned")
    for name, writer in in_order(state.writers):
        if writer.horizon > command.until:
            text = f"writer {name} may have validated writes below {writer.horizon}; lower its write lease first"
            return Rejected("settled_too_low", f"until: {text}")
    return Accepted(
        advance(
            state,
            context.epoch,
            settled=lowered_to(state, command.until, context.epoch),
            table_lives=lowered(state.table_lives, command.until),
        )
    )


class WithdrawCdcGeneration(Command):
    """Withdraw the last CDC generation, which begins far in the future and is not in use yet.

    The clock of its author was wrong.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    generation: Annotated[str, "Id of the generation."]
    seed: Annotated[bytes, "16 random bytes for the stream ids of the replacement generation."]
    reason: Annotated[str, "Reason and evidence, in the operator's words."]


def decide_withdraw_cdc_generation(
    state: ClusterState, command: WithdrawCdcGeneration, context: EntryContext
) -> Decision:
    """Remove the last generation, unless it may have been used, and prepare streams for ring ends that then lack them.

    An operation that it was made for must have ended: its tokens would otherwise be used without their own streams.
    """
    broken = broken_field(
        reason_rule(command.reason),
        seed_rule(command.seed),
    )
    if broken is not None:
        return broken
    last = current(state)
    if last is None or last.id != command.generation:
        if any(found.id == command.generation for found in state.generations):
            text = f"{state.generations[-1].id} follows {command.generation}; only the last one can be withdrawn"
            return Rejected("generation_not_last", f"generation: {text}")
        return Rejected("unknown_generation", f"generation: {command.generation} is not known")
    refused = _in_use(state, last)
    if refused is not None:
        return refused
    state = requests.end_requests(state, last.id, requests.DROPPED, context)
    state = advance(state, context.epoch, generations=state.generations[:-1])
    assert not state.generations or state.generations[-1].closed is None, "the last generation is open"
    begun = decide_request_cdc_generation(state, RequestCdcGeneration(command.seed, ""), context)
    # A rejection means that the generation before is not published yet; the next check of the ring requests it again.
    return begun if isinstance(begun, Accepted) else Accepted(state)


def _in_use(state: ClusterState, last: Generation) -> Rejected | None:
    """Reject if a writer, reader or consumer may have used the generation, or an operation needs it."""
    for _, writer in in_order(state.writers):
        if writer.horizon > last.timestamp or writer.low_watermark >= last.timestamp:
            text = f"writer {writer.name} may have routed writes below {writer.horizon}, {last.id} starts at"
            return Rejected("generation_in_use", f"generation: {text} {last.timestamp}")
    if last.timestamp < state.settled.until:
        text = (
            f"writes may be validated with it: the validation watermark is {state.settled.until}, {last.id} starts at"
        )
        return Rejected("generation_in_use", f"generation: {text} {last.timestamp}")
    if len(state.generations) > 1 and (before := state.generations[-2]).closed is not None:
        text = f"{before.id} is {before.status}, so consumers may already read {last.id}"
        return Rejected("generation_in_use", f"generation: {text}")
    for operation in in_flight(state):
        if operation.generation == last.id:
            text = f"{operation.id} needs {last.id}; cancel the operation, or wait until it ends"
            return Rejected("generation_in_use", f"generation: {text}")
    return None
