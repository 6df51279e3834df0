"""Recovery: operators override the rules of the log for a time.

It is for faults that the rules cannot repair: a metadata service that lost its majority, a damaged state. Each recovery
has an operator and a reason. Every status shows it while it is active, and its record stays permanently.

During a recovery:

- ``ForceState`` replaces parts of the state. The result must hold every invariant, alone and as the next state of
  the one before, or it is rejected. So it removes no id, name or term.
- A step of the metadata service needs no quorum. A node that becomes a member still must have the log itself.
- Versions of the schema are digests, and are marked as such (``kernel.fold``).
- New operations, of nodes and keyspaces, and moves of tablets are rejected (``in_recovery``): their plans would use a
  state under repair. Running ones continue and may be cancelled, and Assassinate is allowed.

Nothing else differs. Epochs continue, and every entry has its predecessor.

Source: CEP-21, "Failure Recovery"; ScyllaDB, ``docs/dev`` on Raft, "Group 0 schema versioning".
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from immutables import Map

from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.rules import Check, broken_field, reason_rule
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_forced
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.modes import UNPAUSED, Recovery
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import ADMIN
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import PARTS, ClusterState, advance
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Command, Value, replace

CODES: Final = {
    "in_recovery": "The cluster is in recovery, which forbids this command.",
    "not_in_recovery": "The command is allowed only during a recovery.",
    "state_undecodable": "The bytes of a state section are not valid in this release.",
    "state_unsound": "The resulting state would break an invariant.",
}

OPERATOR_LENGTH_MAX: Final = 100
FORCED_KEPT_MAX: Final = 100
STATE_BYTES_MAX: Final = 512 * 1024
"""The most bytes of all parts of one ForceState together; a larger repair needs several commands."""

UNFORCEABLE: Final = ("log_bounds", "plans", "recoveries", "settled", "snapshots")
"""Parts that cannot be replaced.

These are the record of recoveries itself, facts of the log and its archive, plans with their effects, and the
validation watermark, which has its own commands (``SettleVerdicts``, ``LowerSettledTime``).
"""
assert {*UNFORCEABLE} < {*PARTS}, "each name is a section of the state"
FORCEABLE: Final = tuple(name for name in PARTS if name not in UNFORCEABLE)
"""The parts that may be replaced."""


def _named(operator: str, reason: str) -> tuple[Check, ...]:
    rule = f"must have 1 to {OPERATOR_LENGTH_MAX} characters"
    return (1 <= len(operator.strip()) <= OPERATOR_LENGTH_MAX, "operator", rule), reason_rule(reason.strip())


class EnterRecovery(Command):
    """Enter recovery mode: operators may override decisions of the log. Every status shows it until LeaveRecovery."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)
    DANGEROUS = True

    reason: Annotated[str, "Reason, in free text."]
    operator: Annotated[str, "Name of the operator."]


def decide_enter_recovery(state: ClusterState, command: EnterRecovery, context: EntryContext) -> Decision:
    """Start a recovery unless one is active. Its record stays permanently."""
    if (broken := broken_field(*_named(command.operator, command.reason))) is not None:
        return broken
    if (running := in_recovery(state)) is not None:
        return Rejected("in_recovery", f"operator: {running.operator} entered a recovery with epoch {running.entered}")
    begun = Recovery(context.epoch, context.time, command.operator, command.reason, (), None, "")
    assert str(context.epoch) not in state.recoveries, "an epoch begins one recovery"
    recoveries = state.recoveries.set(str(context.epoch), begun)
    return Accepted(advance(state, context.epoch, recoveries=recoveries))


class LeaveRecovery(Command):
    """Leave recovery mode."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)

    reason: Annotated[str, "Reason, in free text."]
    operator: Annotated[str, "Name of the operator."]


def decide_leave_recovery(state: ClusterState, command: LeaveRecovery, context: EntryContext) -> Decision:
    """End the active recovery."""
    if (broken := broken_field(*_named(command.operator, command.reason))) is not None:
        return broken
    running = _running(state)
    if isinstance(running, Rejected):
        return running
    if running.entered == context.epoch:
        return Rejected("in_recovery", "operator: a plan cannot end the recovery that it enters")
    ended = replace(running, left=context.epoch, left_by=command.operator)
    recoveries = state.recoveries.set(str(ended.entered), ended)
    return Accepted(advance(state, context.epoch, recoveries=recoveries))


class ForcedPart(Value):
    """A complete section of the state."""

    name: Annotated[str, "Name of the section: a field of the state."]
    data: Annotated[bytes, "Canonical bytes of the section. Empty: the section of an empty state."]


class ForceState(Command):
    """Replace sections of the state, in recovery mode only."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)
    DANGEROUS = True

    reason: Annotated[str, "Reason, in free text."]
    operator: Annotated[str, "Name of the operator."]
    state: Annotated[tuple[ForcedPart, ...], "Sections to replace. All others stay."]


def decide_force_state(state: ClusterState, command: ForceState, context: EntryContext) -> Decision:
    """Replace parts of the state if the result holds every invariant, alone and as the next state of this one."""
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
        parts = {one.name: decode_forced(one.name, one.data) for one in command.state}
    except StateUndecodable as error:
        return Rejected("state_undecodable", f"state: {error}")
    assert not parts.keys() & set(UNFORCEABLE), "sections that record the log are not replaced"
    forced = replace(running, forced=(*running.forced, context.epoch)[-FORCED_KEPT_MAX:])
    recoveries = state.recoveries.set(str(forced.entered), forced)
    after = advance(state, context.epoch, **_replaced(state, parts), recoveries=recoveries)
    # The effect of a plan is computed with another epoch, for which no state is sound.
    if context.epoch == state.epoch + 1 and (wrong := _unsound(state, after, context)):
        return Rejected("state_unsound", f"state: {wrong}")
    return Accepted(after)


def held_by_recovery(before: ClusterState, after: ClusterState, command: Command) -> Rejected | None:
    """Reject a command that a recovery does not allow: one that begins an operation, or moves tablets.

    Args:
        after: the state that the command would make.

    Returns:
        None if the command is allowed, or no recovery is active.
    """
    running = in_recovery(before)
    if running is None or isinstance(command, ForceState):
        return None
    begins = any(operation.id not in before.operations for operation in in_flight(after))
    if not begins and not isinstance(command, MigrateTablets):
        return None
    text = f"{running.operator} entered a recovery with epoch {running.entered}: {running.reason}"
    return Rejected("in_recovery", f"{type(command).__name__}: {text}")


def _running(state: ClusterState) -> Recovery | Rejected:
    running = in_recovery(state)
    return running if running is not None else Rejected("not_in_recovery", "operator: enter a recovery first")


def _replaced(state: ClusterState, parts: dict[str, object]) -> dict[str, object]:
    """Return the parts that differ. Each shares equal items with the old part, so that checks can skip them."""
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
    """Return the first invariants that the state breaks once it has its entry's ids; empty if it breaks none."""
    stand_in = Applied(context.epoch, context.state_id, context.state_id, "")
    whole = replace(
        after,
        epoch=context.epoch,
        state_id=context.state_id,
        time=context.time,
        history=before.history.with_(stand_in, setting(after, "history_entries")),
    )
    found = violations(whole) or violations(whole, before)
    return "; ".join(f"{one.invariant}: {one.detail}" for one in found[:3])
