"""The commands of plans: their effect, and their application in one entry.

The *effect* of a plan is the difference that its commands make: the added items, the removed items, and the new values
of changed fields, each with the identity of its item. It is computed with a fixed epoch, state id and time, so equal
effects have equal digests at any epoch. Fields that the plan does not change do not count. So a plan stays valid while
writers and agents advance their parts of the state. It does not stay valid if one of its items changed so that the
result is different, or was replaced by another one of the same name.

Each command is decided by the fold's own ``decide``, on the state after the commands before it. All of them have the
epoch of the entry; ``part`` of their context distinguishes the operations that they begin.

Invariants: a plan applies as a whole or not at all, only with the effect of its staging, and no plan is in a plan.

Source: the decision record on plans (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from immutables import Map

from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.control.plans import ApprovePlan, RejectPlan, StagePlan, needs_approval
from ringlog.kernel.commands.schema.batch import SchemaBatch
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_record
from ringlog.kernel.encoding.encoder import encode, sha256_of
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.plans import PlannedCommand, principal_in
from ringlog.kernel.model.principals import ADMIN, OPERATOR
from ringlog.kernel.model.state import PARTS, ClusterState, advance
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command, Value, replace

Decide = Callable[[ClusterState, Command, EntryContext], Decision]

PLAN_COMMANDS: Final = (StagePlan, ApprovePlan, RejectPlan)
PLANNABLE: Final = {
    name: kind
    for name, kind in COMMANDS.items()
    if {OPERATOR, ADMIN} & {*kind.NEEDS} and kind not in (*PLAN_COMMANDS, InitializeCluster, TakeSnapshot)
}
"""The commands that a plan may have: those that operators and admins send.

A snapshot begins at an entry with TakeSnapshot, so no plan has that command.
"""

EFFECT: Final = EntryContext(2**62, "ffffffff-ffff-7fff-bfff-ffffffffffff", 0)
"""The context that effects are computed with."""
_IDENTITY: Final = ("id", "made", "registered", "created")
"""Fields that distinguish an item from an earlier one of the same name."""
_PRUNED: Final = ("operations",)
"""Sections whose items are removed with age. Their removal is not part of the effect."""
_DERIVED: Final = ("settled", "table_lives")
"""Sections for validators of earlier writes. They depend on the watermark, which nodes advance every few seconds."""
_SUBJECTS: Final = ("node", "name", "principal", "zone", "feature", "writer", "operation")


def planned(command: Command) -> PlannedCommand:
    """Return the command as a command of a plan."""
    return PlannedCommand(type(command).__name__, encode(command))


def commands_of_plan(commands: tuple[PlannedCommand, ...]) -> tuple[Command, ...] | Rejected:
    """Return the commands, or why they cannot be a plan.

    Commands outside the schema have different subjects, because changes of one entry have the same epoch.
    """
    found: list[Command] = []
    subjects: set[str] = set()
    for number, one in enumerate(commands, start=1):
        place = f"commands, {number} of {len(commands)}"
        kind = PLANNABLE.get(one.kind)
        if kind is None:
            return Rejected("bad_field", f"{place}: {one.kind[:100]} cannot be in a plan")
        try:
            command = decode_record(kind, one.data)
        except StateUndecodable as error:
            return Rejected("undecodable", f"{place}: {error}")
        subject = next((getattr(command, name) for name in _SUBJECTS if hasattr(command, name)), one.kind)
        if kind.PAUSED_BY != SCHEMA and subject in subjects:
            return Rejected("bad_field", f"{place}: an earlier command is about {subject[:100]}, too")
        subjects.add(subject)
        found.append(command)
    return tuple(found)


def parts_of(command: Command) -> tuple[Command, ...]:
    """Return the commands of a schema batch, or the command itself."""
    parts = [part for one in command.statements for part in one.commands] if isinstance(command, SchemaBatch) else []
    return tuple(parts) or (command,)


def with_plan(
    state: ClusterState, command: StagePlan | ApprovePlan, after: ClusterState, context: EntryContext, decide: Decide
) -> Decision:
    """Return ``after`` with the effect in the staged plan, or with the effects of the approved plan.

    Args:
        after: the state that the command's own rule made.
    """
    plan = (after if isinstance(command, StagePlan) else state).plans[command.plan]
    commands = commands_of_plan(plan.commands)
    if isinstance(commands, Rejected):
        return commands
    effect = effect_of(after, commands, decide)
    if isinstance(effect, Rejected):
        return effect
    if isinstance(command, StagePlan):
        whole = replace(plan, effect=effect_digest(effect))
        return Accepted(advance(after, context.epoch, plans=after.plans.set(plan.name, whole)))
    needing = [part for one in commands for part in parts_of(one) if needs_approval(state, part)]
    if needing and principal_in(context.submitter) in ("", plan.author):
        return Rejected(
            "approval_needed",
            f"{type(needing[0]).__name__}: {plan.author} staged {plan.name}, so another principal approves it",
        )
    if effect_digest(effect) != plan.effect:
        why = f"{plan.name} no longer has the effect that it had with epoch {plan.staged}"
        return Rejected("plan_changed", f"plan: {why}. Compare: ringlog plan show {plan.name}")
    return _applied(after, commands, context, decide)


def _applied(state: ClusterState, commands: tuple[Command, ...], context: EntryContext, decide: Decide) -> Decision:
    """Return the state after all commands, or the first rejection."""
    for number, command in enumerate(commands):
        decided = decide(state, command, replace(context, part=number))
        if isinstance(decided, Rejected):
            return Rejected(decided.code, f"commands, {number + 1} of {len(commands)}: {decided.detail}")
        state = decided.state
    return Accepted(state)


# -------------------------------------------------------------------------------------------------------- effects


class ChangedItem(Value):
    """An item that a plan changes. ``change``: added, removed or changed. ``values``: new values by field name.

    ``identity``: fields that identify an item that existed before.
    """

    section: str
    key: str
    change: str
    values: tuple[tuple[str, Any], ...] = ()
    identity: tuple[Any, ...] = ()


def effect_of(state: ClusterState, commands: tuple[Command, ...], decide: Decide) -> tuple[ChangedItem, ...] | Rejected:
    """Return the effect of the commands on this state, by section and key, or the first rejection."""
    decided = _applied(state, commands, EFFECT, decide)
    if isinstance(decided, Rejected):
        return decided
    return tuple(differences(state, decided.state))


def effect_digest(effect: tuple[ChangedItem, ...]) -> str:
    """Return the hex SHA-256 of an effect."""
    return sha256_of(encode(effect))


def differences(before: ClusterState, after: ClusterState) -> Iterator[ChangedItem]:
    """Yield the items that differ, by section and key. Derived sections and pruned items are left out."""
    for section in sorted({*PARTS} - {*_DERIVED}):
        old, new = getattr(before, section), getattr(after, section)
        if new is old:
            continue
        if not isinstance(new, Map):
            old, new = Map({"": old}), Map({"": new})
        for key in sorted({*old, *new}):
            if (found := _difference(section, key, old.get(key), new.get(key))) is not None:
                yield found


def _difference(section: str, key: Any, old: Any, new: Any) -> ChangedItem | None:
    """Return the change of an item, or None if it did not change."""
    if new is old or new == old or (new is None and section in _PRUNED):
        return None
    identity = tuple(getattr(old, name) for name in _IDENTITY if hasattr(old, name))
    if new is None:
        return ChangedItem(section, str(key), "removed", identity=identity)
    if old is None or type(old) is not type(new) or not isinstance(new, Value):
        return ChangedItem(section, str(key), "added" if old is None else "changed", (("", new),), identity)
    values = ((name, getattr(new, name)) for name in new.__struct_fields__)
    changed = tuple((name, value) for name, value in values if value != getattr(old, name))
    return ChangedItem(section, str(key), "changed", changed, identity)
