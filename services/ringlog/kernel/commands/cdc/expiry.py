"""The end of a CDC generation: its rows are removed, then its streams leave the state.

::

    closed ──Expire──► expired (marked in the change topics, streams still there) ──Forget──► expired (no streams)

Two entries let a reader of the change topics see the end before the streams are deleted there, in that order, however
late it reads. The rest of a generation is small: id, times, numbers, digest and positions. So its id is never used
again, and a write of its time is still validated as before (the acceptance window needs the timestamps of all
generations). A consumer that asks for it learns that it is too late, not that it never existed.

The rule uses no clock. ``expired_at`` comes with the command, and must not be before the time when, according to the
log, the last row is gone (``generations.expiry``). So an author with a wrong clock can expire a generation early; the
validator rejects a time ahead of its clock. Generations need not expire in order: one whose rows are kept forever
delays no later one.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import broken_field
from ringlog.kernel.generations.describe import size_of
from ringlog.kernel.generations.expiry import expires_at, still_needed
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT
from ringlog.kernel.model.state import ClusterState, Generation, PastTtl, advance
from ringlog.kernel.values import MICROS_MAX, Command, GenerationId, replace

CODES: Final = {
    "generation_expired": "The generation has expired.",
    "generation_forgotten": "The streams of the generation are pruned from the state.",
    "generation_not_closed": "The generation is not sealed. CDC writers may still write to it.",
    "generation_not_expired": "The generation has not expired. Its rows are retained.",
    "retention_not_over": "Rows of the generation are retained beyond this time or without limit.",
}

EXPIRED = "expired"


class ExpireCdcGeneration(Command):
    """Mark a closed generation as expired: all of its rows have expired."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    generation: Annotated[str, "Id of the generation."]
    expired_at: Annotated[int, "Time when the last row has expired, in microseconds since 1970 UTC."]


def decide_expire_cdc_generation(state: ClusterState, command: ExpireCdcGeneration, context: EntryContext) -> Decision:
    """Mark a closed generation as expired once no row of it is kept. Its streams stay in the state."""
    broken = broken_field((0 < command.expired_at <= MICROS_MAX, "expired_at", f"must be between 1 and {MICROS_MAX}"))
    if broken is not None:
        return broken
    index = _index(state, command.generation)
    if index is None:
        return _unknown(command.generation)
    generation = state.generations[index]
    if generation.expired is not None:
        return Rejected("generation_expired", f"generation: {generation.id} expired with epoch {generation.expired}")
    if generation.closed is None:
        return Rejected("generation_not_closed", f"generation: {generation.id} is {generation.status}, not closed")
    assert index + 1 < len(state.generations), "a generation closes only if another one follows"
    end = expires_at(state, generation, state.generations[index + 1])
    if end is None:
        return Rejected("retention_not_over", f"generation: rows of {generation.id} never expire (ttl 0)")
    if command.expired_at < end:
        text = f"{command.expired_at} is before {end}, when the last rows of {generation.id} expire"
        return Rejected("retention_not_over", f"expired_at: {text}")
    expired = replace(generation, status=EXPIRED, expired=context.epoch, expired_at=command.expired_at)
    generations = _with(state, index, expired)
    return Accepted(
        advance(
            state,
            context.epoch,
            generations=generations,
            past_ttls=_same_if_equal(state, still_needed(state.past_ttls, generations)),
        )
    )


class ForgetCdcGeneration(Command):
    """Delete the streams of an expired generation from the state and the change topics.

    Its id, times, numbers and digest stay.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    generation: Annotated[str, "Id of the generation."]


def decide_forget_cdc_generation(state: ClusterState, command: ForgetCdcGeneration, context: EntryContext) -> Decision:
    """Remove the streams of an expired generation from the state."""
    index = _index(state, command.generation)
    if index is None:
        return _unknown(command.generation)
    generation = state.generations[index]
    if generation.expired is None:
        return Rejected("generation_not_expired", f"generation: {generation.id} is {generation.status}, not expired")
    if generation.forgotten is not None:
        return Rejected("generation_forgotten", f"generation: the streams of {generation.id} are already pruned")
    kept = replace(generation, ranges=(), tables=(), forgotten=size_of(generation))
    return Accepted(advance(state, context.epoch, generations=_with(state, index, kept)))


def _index(state: ClusterState, name: GenerationId) -> int | None:
    return next((index for index, found in enumerate(state.generations) if found.id == name), None)


def _unknown(name: GenerationId) -> Rejected:
    return Rejected("unknown_generation", f"generation: {name} is not known")


def _with(state: ClusterState, index: int, changed: Generation) -> tuple[Generation, ...]:
    return (*state.generations[:index], changed, *state.generations[index + 1 :])


def _same_if_equal(state: ClusterState, past: tuple[PastTtl, ...]) -> tuple[PastTtl, ...]:
    """Return the present object if nothing changed, so that the part keeps its epoch and its digest."""
    return state.past_ttls if past == state.past_ttls else past
