"""Rules of the cluster as a whole: creation, settings, active instances of roles, and the barrier that changes
nothing.
"""

from __future__ import annotations

from typing import Annotated, Final

from immutables import Map

from ringlog.kernel.commands.rules import NAME_RULE, broken_field
from ringlog.kernel.generations.verdicts import LEEWAYS_MAX, with_leeway
from ringlog.kernel.model.modes import SETTING_CHANGES, UNPAUSED, Term
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import ADMIN, AGENT, ANY_ROLE, OPERATOR
from ringlog.kernel.model.settings import SETTINGS, broken_setting, leeway_at, setting
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Command, Setting, is_name, replace

CODES: Final = {
    "already_founded": "The cluster exists and cannot be created again.",
    "bad_setting": "The value is outside the bounds of the setting.",
    "stale_term": "The term is not above the last term of the role.",
    "unknown_setting": "This release does not have the setting.",
}

TERM_MAX = 2**62
TERM_STEP_MAX = 1_000
"""The largest step between terms. After the greatest term no instance could ever become active again."""


class InitializeCluster(Command):
    """Create the cluster. This is the first entry of the log."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)

    name: Annotated[str, "Name of the cluster."]
    settings: Annotated[
        tuple[tuple[str, int], ...],
        "Settings that differ from the defaults, by ascending name.",
        Setting,
    ] = ()


def decide_initialize_cluster(state: ClusterState, command: InitializeCluster, context: EntryContext) -> Decision:
    """Set the name and the settings of a new cluster. Its id is the entry's."""
    if (broken := broken_field((is_name(command.name), "name", NAME_RULE))) is not None:
        return broken
    if state.epoch > 0:
        return Rejected("already_founded", f"the cluster {state.name} exists since epoch 1")
    settings = _with_settings(state, command.settings)
    if isinstance(settings, Rejected):
        return settings
    return Accepted(advance(state, context.epoch, name=command.name, settings=settings))


class ChangeSettings(Command):
    """Change settings, all or none."""

    PAUSED_BY = SETTING_CHANGES
    NEEDS = (OPERATOR,)

    settings: Annotated[tuple[tuple[str, int], ...], "The new values, by ascending name.", Setting]


def decide_change_settings(state: ClusterState, command: ChangeSettings, context: EntryContext) -> Decision:
    """Change known settings to valid values; all or none."""
    if (broken := broken_field((len(command.settings) > 0, "settings", "must name at least one setting"))) is not None:
        return broken
    settings = _with_settings(state, command.settings)
    if isinstance(settings, Rejected):
        return settings
    changed = advance(state, context.epoch, settings=settings)
    if setting(changed, "cdc_leeway_us") == setting(state, "cdc_leeway_us"):
        return Accepted(changed)
    settled = with_leeway(state)
    if len(settled.leeways) > LEEWAYS_MAX:
        return Rejected("too_many_versions", "settings: cdc_leeway_us was changed more often than is kept")
    changed = advance(changed, context.epoch, settled=settled)
    # A committed generation keeps the leeway that it was committed with.
    kept = tuple(replace(generation, leeway=leeway_at(state, generation)) for generation in state.generations)
    return Accepted(changed if kept == state.generations else advance(changed, context.epoch, generations=kept))


def _with_settings(state: ClusterState, changes: tuple[tuple[str, int], ...]) -> Map[str, int] | Rejected:
    """Return the settings of ``state`` with ``changes``; the same object if nothing differs."""
    names = [name for name, _ in changes]
    if len(set(names)) < len(names):
        return Rejected("bad_field", "settings: must name each setting once")
    if unknown := sorted(set(names) - SETTINGS.keys()):
        return Rejected("unknown_setting", f"settings: {unknown[0]} is not a setting")
    settings = state.settings.update(dict(changes))
    if (broken := broken_setting(settings)) is not None:
        return Rejected("bad_setting", f"settings: {broken}")
    return state.settings if settings == state.settings else settings


class TakeOver(Command):
    """Make an instance the active one of its role."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    role: Annotated[str, "Name of the role."]
    instance: Annotated[str, "Id of the instance."]
    term: Annotated[int, "Term of the instance. It must be above the role's last term."]


def decide_take_over(state: ClusterState, command: TakeOver, context: EntryContext) -> Decision:
    """Accept a greater term of a role. Its instance is active from this epoch; an earlier one stops when it folds this
    entry.
    """
    broken = broken_field(
        (is_name(command.role), "role", NAME_RULE),
        (is_name(command.instance), "instance", NAME_RULE),
        (1 <= command.term <= TERM_MAX, "term", f"must be between 1 and {TERM_MAX}"),
    )
    if broken is not None:
        return broken
    last = state.terms.get(command.role)
    if last is not None and command.term <= last.term:
        return Rejected("stale_term", f"term: {command.term} is not above {last.term}, held by {last.instance}")
    highest = TERM_STEP_MAX + (last.term if last is not None else 0)
    if command.term > highest:
        return Rejected("bad_field", f"term: must not be above {highest}, which is {TERM_STEP_MAX} above the last one")
    term = Term(command.role, command.instance, command.term, context.epoch)
    return Accepted(advance(state, context.epoch, terms=state.terms.set(command.role, term)))


class Noop(Command):
    """Change only the epoch: a strict barrier, which also withdraws a request or decides the outcome of an entry."""

    PAUSED_BY = UNPAUSED
    NEEDS = ANY_ROLE


def decide_noop(state: ClusterState, _command: Noop, _context: EntryContext) -> Decision:
    """Accept always. Only the epoch and the history change."""
    return Accepted(state)
