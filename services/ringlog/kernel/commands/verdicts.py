"""The settled time: what readers ask for before they judge writes (``ringlog.kernel.generations.verdicts``).

``SettleVerdicts`` raises the time below which no later entry changes a verdict on a write, and makes the state forget
what counted only for writes appended before another time. The fold sees no topic and no clock: that nobody will ask for
a verdict on a write as old as that is the author's word (the mutations topic begins later; every node has passed it),
but every writer must have claimed as much. How far ahead the time may lie is the validator's to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from ringlog.kernel.commands.rules import broken_field
from ringlog.kernel.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.schema.lives import remembered
from ringlog.kernel.state import ClusterState, advance, in_order
from ringlog.kernel.values import MICROS_MAX, Command

CODES: Final = {
    "already_settled": "The verdicts are settled up to that time, and what counted before is forgotten, already.",
    "too_many_versions": "More of what counted for earlier writes would be kept than may be: SettleVerdicts forgets.",
    "verdicts_needed": "Writes appended before that time may still have to be judged.",
}


@dataclass(frozen=True, slots=True)
class SettleVerdicts(Command):
    """No later entry changes a verdict on a write appended before a time; what counted before another is forgotten."""

    until: Annotated[int, "The time in microseconds since 1970 UTC."]
    forget_below: Annotated[
        int, "Microseconds: what counts only for writes appended before is not kept any more; 0: nothing is forgotten."
    ] = 0


def decide_settle_verdicts(state: ClusterState, command: SettleVerdicts, context: EntryContext) -> Decision:
    """The settled time rises; it is above all horizons from the first time on."""
    broken = broken_field(
        (1 <= command.until <= MICROS_MAX, "until", f"must be between 1 and {MICROS_MAX}"),
        (0 <= command.forget_below <= MICROS_MAX, "forget_below", f"must be between 0 and {MICROS_MAX}"),
    )
    if broken is not None:
        return broken
    settled = state.settled
    forgotten = max(settled.forgotten, command.forget_below)
    if command.until <= settled.until and forgotten == settled.forgotten:
        return Rejected("already_settled", f"until: verdicts are settled up to {settled.until}")
    if forgotten > settled.forgotten and (needed := _needed(state, forgotten)):
        return Rejected("verdicts_needed", f"forget_below: {needed}")
    horizons = (writer.horizon for writer in state.writers.values()) if settled.until == 0 else ()
    after = replace(
        settled,
        until=max(settled.until, command.until, *horizons),
        forgotten=forgotten,
        leeways=tuple(one for one in settled.leeways if one.until > forgotten),
    )
    lives = state.table_lives if forgotten == settled.forgotten else remembered(state.table_lives, forgotten)
    return Accepted(advance(state, context.epoch, settled=after, table_lives=lives))


def _needed(state: ClusterState, below: int) -> str:
    """Who may still ask for a verdict on a write appended before ``below``; empty if nobody."""
    if below > state.settled.until:
        return f"writes appended from {state.settled.until} on are judged by nobody yet"
    for name, writer in in_order(state.writers):
        if writer.fenced is None and writer.low_watermark < below:
            return f"the rows of writer {name} are durable up to {writer.low_watermark} only"
    return ""
