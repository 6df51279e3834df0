"""Plans for operators: a plan from JSON commands, and its view with the effect at staging and now.

Each command is resolved on the state after the ones before it, so a plan may register a node and let it join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ringlog.kernel.authorization import commands_of
from ringlog.kernel.commands.control.plans import ApprovePlan, StagePlan, needs_approval
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, Rejected
from ringlog.kernel.model.plans import StagedPlan
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.plans import EFFECT, ChangedItem, commands_of_plan, effect_digest, effect_of, planned
from ringlog.kernel.values import Command, Epoch
from ringlog.operator.answers import command_of
from ringlog.operator.intents.intents import Intent, InvalidCommand
from ringlog.operator.intents.json_commands import from_json, to_json
from ringlog.operator.views.words import picked, when, with_names
from ringlog.protocol.effects import Draw
from ringlog.runtime.draw import SystemDraw

Json = dict[str, Any]
_NUMBERED: Final = ("operations", "recoveries")
"""Sections whose keys contain the epoch of the entry, which an effect does not have yet."""
StateAt = Callable[[Epoch], ClusterState | None]


def staging(name: str, lines: Sequence[tuple[int, Any]], lifetime_s: int) -> Intent:
    """Return the intent that stages JSON commands as a plan. ``lines``: line numbers and JSON values."""

    def intent(state: ClusterState, draw: Draw) -> Command | InvalidCommand:
        found = []
        for number, value in lines:
            command = from_json(state, value, draw)
            if isinstance(command, InvalidCommand):
                return InvalidCommand(command.code, f"line {number}: {command.detail}")
            found.append(planned(command))
            decided = decide(state, command, EFFECT)
            state = decided.state if isinstance(decided, Accepted) else state
        return StagePlan(name, tuple(found), lifetime_s)

    return intent


def rehearsed(state: ClusterState, intent: Intent) -> Json:
    """Return the command of an intent and its effect on this state, or why it would be rejected.

    Raises InvalidIntent.
    """
    command = command_of(intent, state, SystemDraw())
    effect = effect_of(state, (command,), decide)
    refused = effect if isinstance(effect, Rejected) else None
    return {
        "command": to_json(state, command),
        "epoch": state.epoch,
        "effect": _shown(state, effect),
        "rejected": None if refused is None else {"code": refused.code, "detail": with_names(state, refused.detail)},
    }


def plans(state: ClusterState) -> Json:
    """Return the plans by name, without effects, and the commands that need an approval."""
    return {"plans": [summary(state, plan) for _, plan in in_order(state.plans)], "approvals": sorted(state.approvals)}


def summary(state: ClusterState, plan: StagedPlan) -> Json:
    """Return a plan without its effect. ``needs_approval``: its commands that another principal must approve."""
    commands = commands_of(state, ApprovePlan(plan.name, plan.staged))
    return picked(plan, "name", "author", "staged", "expires_at") | {
        "expires": when(plan.expires_at),
        "commands": [one.kind for one in plan.commands],
        "needs_approval": sorted({type(one).__name__ for one in commands if needs_approval(state, one)}),
    }


def details(state: ClusterState, plan: StagedPlan, state_at: StateAt) -> Json:
    """Return a plan with its commands and effects.

    ``effect_then`` is None if the log no longer has the state before the plan; ``effect`` is None if a command would
    now be rejected, as ``rejected`` says. ``unchanged``: whether the plan can still be applied.
    """
    commands = commands_of_plan(plan.commands)
    assert not isinstance(commands, Rejected), "a staged plan has valid commands"
    now = effect_of(state, commands, decide)
    unchanged = not isinstance(now, Rejected) and effect_digest(now) == plan.effect
    past = None if unchanged else state_at(plan.staged - 1)
    then = now if unchanged else None if past is None else effect_of(past, commands, decide)
    return summary(state, plan) | {
        "commands": [to_json(state, one) for one in commands],
        "effect_then": _shown(state, then),
        "effect": _shown(state, now),
        "unchanged": unchanged,
        "rejected": {"code": now.code, "detail": now.detail} if isinstance(now, Rejected) else None,
    }


def _shown(state: ClusterState, effect: tuple[ChangedItem, ...] | Rejected | None) -> list[str] | None:
    """Return a line for each changed item: its section, key and change, and the names of changed fields."""
    if effect is None or isinstance(effect, Rejected):
        return None
    return [with_names(state, _line(one)) for one in effect]


def _line(item: ChangedItem) -> str:
    names = ", ".join(name for name, _ in item.values if name)
    key = item.key.replace(str(EFFECT.epoch), "new") if item.section in _NUMBERED else item.key
    return " ".join(filter(None, (item.section, key, item.change))) + (f": {names}" if names else "")
