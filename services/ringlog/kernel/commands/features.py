"""Features: what every member can do, from an epoch on and for good.

A node says which features it supports. One that is enabled may be used by every process that knows that it is, so each
node that is a member, or becomes one, supports it at that epoch, and goes on supporting it; who lacks it can neither
register nor become a member. Nothing disables a feature: what was written by its leave stays in the log.

A node that is registered and no member is not asked, or one that never comes would hold a feature up for ever; it is
asked when it joins or replaces another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from ringlog.kernel.commands.rules import NAME_RULE, broken_field
from ringlog.kernel.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.state import NO_MEMBER, ClusterState, Feature, advance, in_order
from ringlog.kernel.values import Command, is_name

CODES: Final = {
    "feature_missing": "A feature is enabled that the node does not support.",
    "feature_unsupported": "A node that is a member, or becomes one, does not support the feature.",
}


@dataclass(frozen=True, slots=True)
class EnableFeature(Command):
    """A feature that every member supports may be used from now on; it is never disabled."""

    feature: Annotated[str, "Name of the feature."]


def decide_enable_feature(state: ClusterState, command: EnableFeature, context: EntryContext) -> Decision:
    """Every node that is a member, or becomes one, supports it. Of one that is enabled already nothing changes."""
    if (broken := broken_field((is_name(command.feature), "feature", NAME_RULE))) is not None:
        return broken
    if command.feature in state.features:
        return Accepted(state)
    members = (node for _, node in in_order(state.nodes) if node.state not in NO_MEMBER)
    if lack := sorted(node.name for node in members if command.feature not in node.features):
        names = ", ".join(lack[:5]) + (f" and {len(lack) - 5} more" if len(lack) > 5 else "")
        return Rejected("feature_unsupported", f"feature: {command.feature} is not supported by {names}")
    features = state.features.set(command.feature, Feature(command.feature, context.epoch))
    return Accepted(advance(state, context.epoch, features=features))


def missing_feature(
    state: ClusterState, name: str, supported: Sequence[str], lacked: Sequence[str] = ()
) -> Rejected | None:
    """The refusal of a node that does not support every feature that is enabled, but for those that it has ``lacked``
    already; None if it does.
    """
    lacks = sorted(set(state.features).difference(supported, lacked))
    return Rejected("feature_missing", f"features: {name} lacks {lacks[0]}, which is enabled") if lacks else None
