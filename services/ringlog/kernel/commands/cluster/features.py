"""Features: abilities that every member has from an epoch on, permanently.

A node lists the features that it supports. Every process that knows that a feature is enabled may use it. So each node
that is a member, or becomes one, supports it at that epoch and afterwards. A node that lacks it can neither register
nor become a member. A feature is never disabled, because the log keeps the entries that use it.

A registered node that is not a member is not checked. Otherwise a node that never joins would block a feature forever.
It is checked when it joins or replaces another node.

A feature can be required before it is enabled, while members are upgraded one by one. Members that lack it remain
members until they are upgraded; the set of nodes that lack it cannot grow. A requirement can be withdrawn until the
feature is enabled, so that an upgrade can be reverted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from ringlog.kernel.commands.rules import NAME_RULE, broken_field
from ringlog.kernel.model.modes import SETTING_CHANGES, UNPAUSED, Feature
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import NO_MEMBER, ClusterState, advance, in_order
from ringlog.kernel.values import Command, is_name

CODES: Final = {
    "feature_enabled": "The feature is enabled, so its requirement cannot be withdrawn.",
    "feature_missing": "The node does not support a feature that is required or enabled.",
    "feature_unsupported": "A member, or a node that becomes a member, does not support the feature.",
}


class RequireFeature(Command):
    """Require a feature of each node that registers, joins, replaces another node or returns, before it is enabled."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    feature: Annotated[str, "Name of the feature."]
    required: Annotated[bool, "True: require the feature. False: withdraw the requirement."] = True


def decide_require_feature(state: ClusterState, command: RequireFeature, context: EntryContext) -> Decision:
    """Accept whether or not members support the feature. Once it is enabled, the requirement cannot be withdrawn."""
    if (broken := broken_field((is_name(command.feature), "feature", NAME_RULE))) is not None:
        return broken
    found = state.features.get(command.feature)
    if command.required == (found is not None):
        return Accepted(state)
    if found is None:
        features = state.features.set(command.feature, Feature(command.feature, context.epoch, None))
    elif found.enabled is not None:
        return Rejected("feature_enabled", f"feature: {found.name} is enabled since epoch {found.enabled}")
    else:
        features = state.features.delete(command.feature)
    return Accepted(advance(state, context.epoch, features=features))


class EnableFeature(Command):
    """Enable a feature that every member supports. It cannot be disabled."""

    PAUSED_BY = SETTING_CHANGES
    NEEDS = (OPERATOR,)

    feature: Annotated[str, "Name of the feature."]


def decide_enable_feature(state: ClusterState, command: EnableFeature, context: EntryContext) -> Decision:
    """Enable a feature if every node that is a member, or becomes one, supports it. An enabled feature stays
    as it is.
    """
    if (broken := broken_field((is_name(command.feature), "feature", NAME_RULE))) is not None:
        return broken
    found = state.features.get(command.feature)
    if found is not None and found.enabled is not None:
        return Accepted(state)
    members = (node for _, node in in_order(state.nodes) if node.state not in NO_MEMBER)
    if lack := sorted(node.name for node in members if command.feature not in node.features):
        names = ", ".join(lack[:5]) + (f" and {len(lack) - 5} more" if len(lack) > 5 else "")
        return Rejected("feature_unsupported", f"feature: {command.feature} is not supported by {names}")
    required = context.epoch if found is None else found.required
    features = state.features.set(command.feature, Feature(command.feature, required, context.epoch))
    return Accepted(advance(state, context.epoch, features=features))


def missing_feature(
    state: ClusterState, name: str, supported: Sequence[str], lacked: Sequence[str] = ()
) -> Rejected | None:
    """Reject a node that lacks a required or enabled feature, except those that it has ``lacked`` before."""
    lacks = sorted(set(state.features).difference(supported, lacked))
    if not lacks:
        return None
    how = "required" if state.features[lacks[0]].enabled is None else "enabled"
    return Rejected("feature_missing", f"features: {name} lacks {lacks[0]}, which is {how}: upgrade the node")
