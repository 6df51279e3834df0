"""Invariants of the metadata service and of recoveries."""

from __future__ import annotations

from ringlog.kernel.invariants.shape import Details, invariant, news
from ringlog.kernel.service import EXCLUDED_MAX, MEMBER, SIZE_MAX, STAGES, read_group
from ringlog.kernel.state import OWNING, ClusterState


@invariant("nodes in a group of the metadata service own tokens, and one at a time is on its way", "service", "nodes")
def service(state: ClusterState, known: ClusterState) -> Details:
    """The read group is within the write group by its making: it is the rows of one stage. Once there was a member
    there is one for ever.
    """
    for name, member in sorted(state.service.items()):
        node = state.nodes.get(name)
        if member.node != name or member.stage not in STAGES or not 1 <= member.since <= state.epoch:
            yield f"{name} is {member.node}, {member.stage} since epoch {member.since}"
        if node is None or node.state not in OWNING:
            yield f"{name} is in a group and {'unknown' if node is None else node.state}"
    moving = [name for name, member in sorted(state.service.items()) if member.stage != MEMBER]
    if len(moving) > 1 or len(state.service) > SIZE_MAX + 1:
        yield f"{len(moving)} of {len(state.service)} are on their way"
    if read_group(known) and not read_group(state):
        yield "no member is left"


@invariant("the goal of the metadata service is one, within its bounds", "service_goal")
def service_goal(state: ClusterState, known: ClusterState) -> Details:
    """A number, or automatic; and nodes that are known."""
    goal = state.service_goal
    if not 0 <= goal.size <= SIZE_MAX or (goal.automatic and (goal.size or goal.by_hand)):
        yield f"{goal.size} members are wanted, automatic {goal.automatic}, by hand {goal.by_hand}"
    if list(goal.excluded) != sorted(set(goal.excluded)) or len(goal.excluded) > EXCLUDED_MAX:
        yield f"{len(goal.excluded)} nodes are excluded, not each once and in order"
    if unknown := sorted(set(goal.excluded) - set(state.nodes)):
        yield f"{unknown[0]} is excluded and unknown"


@invariant("a recovery is remembered for ever, and at most one goes on", "recoveries")
def recoveries(state: ClusterState, known: ClusterState) -> Details:
    """Each one by itself, and that none is forgotten or begins anew."""
    for key, one in news(state.recoveries, known.recoveries):
        ends = state.epoch if one.left is None else one.left
        if key != str(one.entered) or not 1 <= one.entered <= ends <= state.epoch or not one.operator:
            yield f"{key} is of epoch {one.entered} to {one.left}, by {one.operator!r}"
        if (one.left is None) != (one.left_by == ""):
            yield f"{key} is left at {one.left} by {one.left_by!r}"
        if any(not one.entered < epoch <= ends for epoch in one.forced):
            yield f"{key} has the forced epochs {one.forced}"
    if len([one for one in state.recoveries.values() if one.left is None]) > 1:
        yield "two go on"
    for key, one in known.recoveries.items():
        now = state.recoveries.get(key)
        if now is None or (one.left is not None and now != one):
            yield f"{key} is forgotten, or another one"


INVARIANTS = (service, service_goal, recoveries)
