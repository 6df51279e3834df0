"""Commands about plans and approvals: stage a plan, approve or reject it, and demand approvals.

A plan has one or more commands. ApprovePlan applies all of them in one entry, or none. It is rejected
(``plan_changed``) if the commands would now have another effect than at staging (``kernel.plans``). Approved, rejected
and expired plans leave the state; the log is their history.

RequireApprovals names commands that only a plan may carry out, approved by another principal than its author. The
commands of ``ALWAYS`` then need an approval, too. Otherwise one admin could end the demand, or give its own second
principal the role. The validator refuses such commands from a request (``kernel.authorization``). It authenticates the
principals; this rule compares the names that it wrote.

A time limit counts in state time. It only refuses: no other rule depends on it.

Source: CEP-21; the decision record on plans (docs/decisions).
"""

from __future__ import annotations

from typing import Annotated, Final

from immutables import Map

from ringlog.kernel.commands.cluster.truncation import RecordArchive
from ringlog.kernel.commands.rules import NAME_RULE, broken_field, reason_rule
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.plans import (
    ALWAYS,
    COMMANDS_MAX,
    DANGEROUS,
    PLANS_BYTES_MAX,
    PlannedCommand,
    StagedPlan,
    plans_size,
    principal_in,
)
from ringlog.kernel.model.principals import ADMIN, OPERATOR, grant_of
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import SECOND_US, Before, Command, Epoch, is_name

CODES: Final = {
    "approval_needed": "The command needs the approval of a second principal. Stage it as a plan.",
    "plan_changed": "The plan would have another effect than when it was staged, or another plan has its name.",
    "plan_exists": "A plan of this name waits for its approval.",
    "plan_expired": "The time limit of the plan has passed.",
    "second_admin_needed": "Approvals need a second admin.",
    "unknown_plan": "The cluster does not have the plan.",
}

LIFETIME_MIN_S: Final = 60
LIFETIME_MAX_S: Final = 30 * 86_400


class StagePlan(Command):
    """Store a plan: commands that are applied together once the plan is approved."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    plan: Annotated[str, "Name of the plan."]
    commands: Annotated[tuple[PlannedCommand, ...], f"1 to {COMMANDS_MAX} commands, applied in this order."]
    lifetime_s: Annotated[int, "Seconds of state time until the plan expires."] = 86_400


def decide_stage_plan(state: ClusterState, command: StagePlan, context: EntryContext) -> Decision:
    """Add the plan, and remove expired ones. ``kernel.plans`` checks the commands and adds the effect."""
    limits = LIFETIME_MIN_S, LIFETIME_MAX_S
    broken = broken_field(
        (is_name(command.plan), "plan", NAME_RULE),
        (1 <= len(command.commands) <= COMMANDS_MAX, "commands", f"must be 1 to {COMMANDS_MAX}"),
        (limits[0] <= command.lifetime_s <= limits[1], "lifetime_s", f"must be between {limits[0]} and {limits[1]}"),
    )
    if broken is not None:
        return broken
    plans = Map({name: plan for name, plan in state.plans.items() if context.time < plan.expires_at})
    if (known := plans.get(command.plan)) is not None:
        return Rejected("plan_exists", f"plan: {known.name} was staged by {known.author} with epoch {known.staged}")
    expires_at = context.time + command.lifetime_s * SECOND_US
    plan = StagedPlan(command.plan, command.commands, principal_in(context.submitter), context.epoch, expires_at)
    plans = plans.set(plan.name, plan)
    if (size := plans_size(plans.values())) > PLANS_BYTES_MAX:
        return Rejected("too_large", f"commands: all plans would have {size:,} bytes, the limit is {PLANS_BYTES_MAX:,}")
    return Accepted(advance(state, context.epoch, plans=plans))


class ApprovePlan(Command):
    """Approve a plan, and apply its commands. Without a needed approval, also its author may send this."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    plan: Annotated[str, "Name of the plan."]
    staged: Annotated[Epoch, "Epoch that staged the plan."]


def decide_approve_plan(state: ClusterState, command: ApprovePlan, context: EntryContext) -> Decision:
    """Remove the plan unless it has expired. ``kernel.plans`` applies its commands."""
    plan = _known(state, command.plan, command.staged)
    if isinstance(plan, Rejected):
        return plan
    if context.time >= plan.expires_at:
        return Rejected("plan_expired", f"plan: {plan.name} expired at {plan.expires_at}. Stage it again")
    return Accepted(advance(state, context.epoch, plans=state.plans.delete(plan.name)))


class RejectPlan(Command):
    """Remove a plan without applying it."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    plan: Annotated[str, "Name of the plan."]
    staged: Annotated[Epoch, "Epoch that staged the plan."]
    reason: Annotated[str, "Reason, in free text.", Before("")] = ""


def decide_reject_plan(state: ClusterState, command: RejectPlan, context: EntryContext) -> Decision:
    """Remove the plan. The log keeps the reason."""
    if (broken := broken_field(reason_rule(command.reason, 0))) is not None:
        return broken
    plan = _known(state, command.plan, command.staged)
    if isinstance(plan, Rejected):
        return plan
    return Accepted(advance(state, context.epoch, plans=state.plans.delete(plan.name)))


class RequireApprovals(Command):
    """Set the commands that need the approval of a second principal."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)
    DANGEROUS = True

    commands: Annotated[tuple[str, ...], "Names of commands, in ascending order. Empty: no approvals."]


ADMINS_MIN: Final = 2


def decide_require_approvals(state: ClusterState, command: RequireApprovals, context: EntryContext) -> Decision:
    """Replace the set, unless too few principals could approve."""
    names = command.commands
    broken = broken_field(
        ({*names} <= {*DANGEROUS}, "commands", f"must be of {', '.join(DANGEROUS)}"),
        (tuple(sorted({*names})) == names, "commands", "must be in ascending order, each once"),
    )
    if broken is not None:
        return broken
    admins = sum(grant_of(one, ADMIN) is not None for one in state.principals.values())
    if names and admins < ADMINS_MIN:
        return Rejected("second_admin_needed", f"commands: the cluster has {admins} admins, approvals need two")
    approvals = Map({name: state.approvals.get(name, context.epoch) for name in names})
    return Accepted(state if approvals == state.approvals else advance(state, context.epoch, approvals=approvals))


def needs_approval(state: ClusterState, command: Command) -> bool:
    """Return True if only an approved plan may carry out the command."""
    name = type(command).__name__
    if not state.approvals or (isinstance(command, RecordArchive) and command.epoch > 0):
        return False
    return name in ALWAYS or name in state.approvals


def _known(state: ClusterState, name: str, staged: Epoch) -> StagedPlan | Rejected:
    """Return the plan of this name and epoch."""
    plan = state.plans.get(name)
    if plan is None:
        return Rejected("unknown_plan", f"plan: there is no {name[:100]}")
    if plan.staged != staged:
        return Rejected("plan_changed", f"staged: {name} was staged with epoch {plan.staged}, not {staged}. Review it")
    return plan
