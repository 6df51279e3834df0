"""Recovery: a time in which operators override what the rules of the log would decide.

It is for what the rules cannot mend: a metadata service that lost its majority, a state that is damaged. Each one is
named by operator and reason, is shown by every status while it goes on, and is remembered for ever.

While it goes on:

- ``ForceState`` replaces parts of the state. What it makes holds every invariant, by itself and as the next state of
  the one before, or it is refused: no id, name or term is forgotten by it.
- A step of the metadata service needs no quorum; a node that becomes a member still must have the log itself.
- Versions of the schema are digests, and are marked so (``kernel.fold``).
- New node operations and moves of tablets are refused (``in_recovery``): the state that they would be planned on is
  being repaired. What runs goes on, may be cancelled, and Assassinate is allowed.

Nothing else differs. Epochs count on, and every entry has its predecessor.

Source: CEP-21, "Failure Recovery"; ScyllaDB, ``docs/dev`` on Raft, "Group 0 schema versioning".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from immutables import Map

from ringlog.kernel.columns.fast_dataclass import replaced
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.rules import Check, broken_field, reason_rule
from ringlog.kernel.commands.topology import movements
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_part
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.modes import UNPAUSED, Recovery
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import PARTS, ClusterState, advance
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Command

CODES: Final = {
    "in_recovery": "It is not allowed while a recovery goes on, or one goes on already.",
    "not_in_recovery": "It is allowed only while a recovery goes on.",
    "state_undecodable": "The bytes of a part are none that a state of this release has.",
    "state_unsound": "The state that would follow breaks an invariant.",
}

OPERATOR_LENGTH_MAX: Final = 100
FORCED_KEPT_MAX: Final = 100
STATE_BYTES_MAX: Final = 512 * 1024
"""All parts of one ForceState together; a larger repair is made in several."""

UNFORCEABLE: Final = ("log_bounds", "recoveries", "settled", "snapshots")
"""The record of recoveries itself; facts of the log and its archive; and the time below which readers have validated
writes, which has commands of its own (``SettleVerdicts``, ``LowerSettledTime``).
"""
FORCEABLE: Final = tuple(name for name in PARTS if name not in UNFORCEABLE)
"""What may be replaced."""


def _named(operator: str, reason: str) -> tuple[Check, ...]:
    rule = f"must have 1 to {OPERATOR_LENGTH_MAX} characters"
    return (1 <= len(operator.strip()) <= OPERATOR_LENGTH_MAX, "operator", rule), reason_rule(reason.strip())


@dataclass(frozen=True, slots=True)
class EnterRecovery(Command):
    """From now on operators may override what the log decides; every status says so until LeaveRecovery."""

    PAUSED_BY = UNPAUSED

    reason: Annotated[str, "Why."]
    operator: Annotated[str, "Who."]


def decide_enter_recovery(state: ClusterState, command: EnterRecovery, context: EntryContext) -> Decision:
    """One at a time; the record of it stays for ever."""
    if (broken := broken_field(*_named(command.operator, command.reason))) is not None:
        return broken
    if (running := in_recovery(state)) is not None:
        return Rejected("in_recovery", f"operator: {running.operator} entered one with epoch {running.entered}")
    begun = Recovery(context.epoch, context.time, command.operator, command.reason, (), None, "")
    recoveries = state.recoveries.set(str(context.epoch), begun)
    return Accepted(advance(state, context.epoch, recoveries=recoveries))


@dataclass(frozen=True, slots=True)
class LeaveRecovery(Command):
    """The log decides alone again."""

    PAUSED_BY = UNPAUSED

    reason: Annotated[str, "Why."]
    operator: Annotated[str, "Who."]


def decide_leave_recovery(state: ClusterState, command: LeaveRecovery, context: EntryContext) -> Decision:
    """The recovery that goes on ends."""
    if (broken := broken_field(*_named(command.operator, command.reason))) is not None:
        return broken
    running = _running(state)
    if isinstance(running, Rejected):
        return running
    assert running.entered < context.epoch, "a recovery ends after it has begun"
    ended = replace(running, left=context.epoch, left_by=command.operator)
    recoveries = state.recoveries.set(str(ended.entered), ended)
    return Accepted(advance(state, context.epoch, recoveries=recoveries))


@dataclass(frozen=True, slots=True)
class ForcedPart:
    """A part of the state, whole."""

    name: Annotated[str, "Its name, as a field of the state."]
    data: Annotated[bytes, "Its canonical bytes; empty: the part is as in an empty state."]


@dataclass(frozen=True, slots=True)
class ForceState(Command):
    """Parts of the state become what an operator composed; only in a recovery."""

    PAUSED_BY = UNPAUSED

    reason: Annotated[str, "Why."]
    operator: Annotated[str, "Who."]
    state: Annotated[tuple[ForcedPart, ...], "The parts to replace; the others stay."]


def decide_force_state(state: ClusterState, command: ForceState, context: EntryContext) -> Decision:
    """Every invariant holds of what follows, by itself and as the next state of this one."""
    size = sum(len(one.data) for one in command.state)
    names = [one.name for one in command.state]
    broken = broken_field(
        *_named(command.operator, command.reason),
        (0 < len(names) == len(set(names)), "state", "must have at least one part, each once"),
        (set(names) <= set(FORCEABLE), "state", f"must name parts of the state, and not {', '.join(UNFORCEABLE)}"),
        (size <= STATE_BYTES_MAX, "state", f"must have at most {STATE_BYTES_MAX} bytes"),
    )
    if broken is not None:
        return broken
    running = _running(state)
    if isinstance(running, Rejected):
        return running
    try:
        parts = {one.name: decode_part(one.name, one.data) for one in command.state}
    except StateUndecodable as error:
        return Rejected("state_undecodable", f"state: {error}")
    assert not parts.keys() & set(UNFORCEABLE), "what is a fact of the log is no wish"
    forced = replace(running, forced=(*running.forced, context.epoch)[-FORCED_KEPT_MAX:])
    recoveries = state.recoveries.set(str(forced.entered), forced)
    after = advance(state, context.epoch, **_replaced(state, parts), recoveries=recoveries)
    if wrong := _unsound(state, after, context):
        return Rejected("state_unsound", f"state: {wrong}")
    return Accepted(after)


def held_by_recovery(state: ClusterState, command: Command) -> Rejected | None:
    """The refusal of a command that is not allowed while a recovery goes on; None if it is, or none does."""
    begins = type(command).__module__ == movements.__name__ and not isinstance(command, movements.Assassinate)
    if not begins and not isinstance(command, MigrateTablets):
        return None
    running = in_recovery(state)
    if running is None:
        return None
    text = f"{running.operator} entered a recovery with epoch {running.entered}: {running.reason}"
    return Rejected("in_recovery", f"{type(command).__name__}: {text}")


def _running(state: ClusterState) -> Recovery | Rejected:
    running = in_recovery(state)
    return running if running is not None else Rejected("not_in_recovery", "operator: enter a recovery first")


def _replaced(state: ClusterState, parts: dict[str, object]) -> dict[str, object]:
    """The parts that differ, each with as much of the old one as is equal: what is the same is not looked at again."""
    found: dict[str, object] = {}
    for name, part in parts.items():
        before = getattr(state, name)
        if part == before:
            continue
        found[name] = _sharing(part, before) if isinstance(part, Map) else part
    return found


def _sharing(part: Map[Any, Any], before: Map[Any, Any]) -> Map[Any, Any]:
    return Map((key, before[key] if before.get(key) == item else item) for key, item in part.items())


def _unsound(before: ClusterState, after: ClusterState, context: EntryContext) -> str:
    """The first invariants that the state breaks once it has its entry's own ids; empty: none."""
    stand_in = Applied(context.epoch, context.state_id, context.state_id, "")
    whole = replaced(
        after,
        epoch=context.epoch,
        state_id=context.state_id,
        time=context.time,
        history=before.history.with_(stand_in, setting(after, "history_entries")),
    )
    found = violations(whole) or violations(whole, before)
    return "; ".join(f"{one.invariant}: {one.detail}" for one in found[:3])
