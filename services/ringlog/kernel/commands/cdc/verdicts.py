"""The validation watermark (settled time), which readers request before they validate writes.

``ringlog.kernel.generations.verdicts`` has the rules of validation. ``SettleVerdicts`` raises the watermark: no
later entry changes a decision on a write appended before it. It also prunes facts that counted only for writes appended
before another time. The fold reads neither topics nor a clock. The author asserts that no reader will validate writes
that old (the mutations topic begins later; every node has passed it), but every writer must have claimed as much. The
validator limits how far ahead the time may be.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.cdc.writers import source_owner
from ringlog.kernel.commands.rules import broken_field
from ringlog.kernel.generations.acceptance import start_of_writers
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, NODE
from ringlog.kernel.model.state import ClusterState, advance, in_order
from ringlog.kernel.schema.table_versions import pruned
from ringlog.kernel.values import MICROS_MAX, Command, Micros, replace

CODES: Final = {
    "already_settled": "The validation watermark is at or above that time, and older versions are pruned.",
    "too_many_versions": "The state would keep too many table versions. SettleVerdicts prunes old ones.",
    "verdicts_needed": "Writes appended before that time may still need validation.",
}


class SettleVerdicts(Command):
    """Raise the validation watermark and prune the table versions before another time. No later entry changes a
    decision below the watermark.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (NODE, AGENT)

    until: Annotated[int, "New validation watermark, in microseconds since 1970 UTC."]
    forget_below: Annotated[
        int, "Time in microseconds. Versions that only apply to writes appended before it are pruned. 0: none."
    ] = 0


def decide_settle_verdicts(state: ClusterState, command: SettleVerdicts, context: EntryContext) -> Decision:
    """Raise the validation watermark. From the first one on it is at or above all write leases."""
    broken = broken_field(
        (1 <= command.until <= MICROS_MAX, "until", f"must be between 1 and {MICROS_MAX}"),
        (0 <= command.forget_below <= MICROS_MAX, "forget_below", f"must be between 0 and {MICROS_MAX}"),
    )
    if broken is not None:
        return broken
    settled = state.settled
    forgotten = max(settled.forgotten, command.forget_below)
    if command.until <= settled.until and forgotten == settled.forgotten:
        return Rejected("already_settled", f"until: the validation watermark is {settled.until}")
    if forgotten > settled.forgotten and (needed := _needed(state, forgotten)):
        return Rejected("verdicts_needed", f"forget_below: {needed}")
    horizons = (writer.horizon for writer in state.writers.values()) if settled.until == 0 else ()
    after = replace(
        settled,
        until=max(settled.until, command.until, *horizons),
        forgotten=forgotten,
        leeways=tuple(one for one in settled.leeways if one.until > forgotten),
    )
    assert after.forgotten <= after.until, "no version of a later write is pruned"
    lifetimes = state.table_lives if forgotten == settled.forgotten else pruned(state.table_lives, forgotten)
    return Accepted(advance(state, context.epoch, settled=after, table_lives=lifetimes))


def _needed(state: ClusterState, below: Micros) -> str:
    """Return which reader may still validate a write appended before ``below``; empty if none does.

    A fenced writer may have left writes without a row. Its successor reads them, unless another writer logs the topic
    now, or their generations are closed, so that no more rows can be written.
    """
    if below > state.settled.until:
        return f"writes appended from {state.settled.until} on are not validated yet"
    start = start_of_writers(state)
    for name, writer in in_order(state.writers):
        if writer.fenced is None:
            durable, what = writer.low_watermark, f"the rows of writer {name} are durable"
        elif start is not None and source_owner(state, name, writer.source) is None:
            durable, what = max(start, writer.low_watermark), f"the rows of the fenced writer {name} are durable"
        else:
            continue
        if durable < below:
            return f"{what} up to {durable} only"
    if not state.writers and start is not None and start < below and _has_cdc_log(state):
        return f"tables have a CDC log, and its first writer will begin at {start}"
    return ""


def _has_cdc_log(state: ClusterState) -> bool:
    """Return whether any table keeps a CDC log, or kept one for writes that still count."""
    past = (
        version.table
        for lifetimes in state.table_lives.values()
        for lifetime in lifetimes
        for version in lifetime.versions
    )
    return any(table.cdc.enabled for table in (*state.tables.values(), *past))
