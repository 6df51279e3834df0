"""Commands on the metadata service: its members and their number (``kernel.service`` has the theory).

Operators name a member, or a number of members. The coordinator requests each step (``AdvanceService``). A step is
accepted only if it is the next one. If it changes the majority of a group, a quorum must also have acknowledged the
last step.

Rules for a member that

- **leaves**, is **removed** or **replaced**: Its operation waits in ``requested`` until another node has its place
  (``awaits_service``);
- is **assassinated**: The same entry removes it from all groups, unless it is the last of the read group
  (``last_member``);
- is **declared down**: Another node takes its place, if there is one.

Source: CEP-21, "CMS Reconfiguration Protocol".
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import bad_witnesses, broken_field, registered
from ringlog.kernel.model.modes import SERVICE, UNPAUSED, ServiceGoal
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.state import STAYS, ClusterState, advance
from ringlog.kernel.operations.node_states import shown_state
from ringlog.kernel.service import (
    EXCLUDED_MAX,
    GONE,
    JOINING,
    LEAVING,
    MEMBER,
    SIZE_MAX,
    STAGES,
    ServiceStep,
    blocking_departure,
    entered,
    explained,
    next_step,
    read_group,
    unfit,
)
from ringlog.kernel.values import Before, Command, Witness, replace

CODES: Final = {
    "awaits_service": "The node is a log replica of the metadata service. The service replaces it first.",
    "last_member": "The node is the last member of the read group of the metadata service.",
    "member_exists": "The node is a log replica of the metadata service.",
    "no_live_majority": "Without the node, at least half of the log replicas of the metadata service would be down.",
    "no_member": "The node is not a log replica of the metadata service.",
    "service_changing": "Another node is joining or leaving the metadata service.",
    "wrong_service_step": "The command is not the next step of the metadata service.",
}


class AddServiceMember(Command):
    """Add a node to the metadata service. It is in the write group from this entry.

    From this entry operators choose the members.
    """

    PAUSED_BY = SERVICE
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]


def decide_add_service_member(state: ClusterState, command: AddServiceMember, context: EntryContext) -> Decision:
    """Add a normal node that is up and not excluded, unless another one joins or leaves. The goal becomes one member
    more.
    """
    node = registered(state, command.node)
    if isinstance(node, Rejected):
        return node
    if node.id in state.service:
        return Rejected("member_exists", f"node: {node.name} is in the metadata service: {_stage(state, node.id)}")
    if (why := unfit(state, node)) is not None:
        why = why if node.state in STAYS else f"is {shown_state(state, node.id)}"
        return Rejected("wrong_node_state", f"node: {node.name} {why}, so it cannot be a member")
    if (busy := _busy(state)) is not None:
        return busy
    if len(state.service) >= SIZE_MAX:
        return Rejected("too_many", f"node: there are {SIZE_MAX} members already")
    service = entered(state, ServiceStep(node.id, JOINING), context.epoch)
    goal = _by_hand(state.service_goal, len(service))
    return Accepted(advance(state, context.epoch, service=service, service_goal=goal))


class RemoveServiceMember(Command):
    """Remove a node from the metadata service. It is not in the read group from this entry.

    From this entry operators choose the members.
    """

    PAUSED_BY = SERVICE
    NEEDS = (OPERATOR,)

    node: Annotated[str, "Id of the node."]


def decide_remove_service_member(state: ClusterState, command: RemoveServiceMember, context: EntryContext) -> Decision:
    """Remove a member. The goal becomes one member less.

    Reject the last member of the read group, and a removal while another member joins or leaves. Reject also a removal
    after which half of the members or more are down, because they have to acknowledge it.
    """
    node = registered(state, command.node)
    if isinstance(node, Rejected):
        return node
    if node.id not in state.service:
        return Rejected("no_member", f"node: {node.name} is not a member of the metadata service")
    if (busy := _busy(state, besides=node.id)) is not None:
        return busy
    stage = _stage(state, node.id)
    if stage == LEAVING:
        return Rejected("service_changing", f"node: {node.name} is leaving already")
    if (last := last_reader(state, node.id)) is not None:
        return last
    if blocking := blocking_departure(state, node.id):
        names = ", ".join(state.nodes[name].name for name in blocking)
        text = f"node: without {node.name}, at least half of the members are down: remove {names} first"
        return Rejected("no_live_majority", text)
    service = entered(state, ServiceStep(node.id, LEAVING), context.epoch)
    assert node.id not in read_group(state) or len(read_group(state)) > 1, "the last read replica remains"
    goal = _by_hand(state.service_goal, len(service) - 1)
    return Accepted(advance(state, context.epoch, service=service, service_goal=goal))


class ReconfigureService(Command):
    """Set the number of service members and the excluded nodes. The coordinator performs the changes."""

    PAUSED_BY = SERVICE
    NEEDS = (OPERATOR,)

    size: Annotated[int | None, "Number of members. Null: unchanged, or automatic.", Before(None)] = None
    automatic: Annotated[
        bool,
        "Derive the size from the number of nodes: 1 up to 2 nodes, 3 up to 5, 5 up to 100, then 10.",
        Before(False),
    ] = False
    excluded: Annotated[
        tuple[str, ...] | None, "Ids of all nodes that must not be members. Null: unchanged.", Before(None)
    ] = None


def decide_reconfigure_service(state: ClusterState, command: ReconfigureService, context: EntryContext) -> Decision:
    """Change only the goal. No member leaves before another node has its place."""
    size, excluded = command.size, command.excluded
    something = size is not None or command.automatic or excluded is not None
    broken = broken_field(
        (something, "size", "must be given, or automatic, or excluded"),
        (size is None or not command.automatic, "size", "must not be combined with automatic"),
        (size is None or 1 <= size <= SIZE_MAX, "size", f"must be between 1 and {SIZE_MAX}"),
        (excluded is None or len(excluded) <= EXCLUDED_MAX, "excluded", f"must be at most {EXCLUDED_MAX} nodes"),
    )
    if broken is not None:
        return broken
    for name in excluded or ():
        if isinstance(unknown := registered(state, name, "excluded"), Rejected):
            return unknown
    goal = state.service_goal
    if command.automatic:
        goal = ServiceGoal(0, True, False, goal.excluded)
    elif size is not None:
        goal = ServiceGoal(size, False, False, goal.excluded)
    if excluded is not None:
        goal = replace(goal, excluded=tuple(sorted(set(excluded))))
    return Accepted(state if goal == state.service_goal else advance(state, context.epoch, service_goal=goal))


class AdvanceService(Command):
    """Move a node to the next stage of the metadata service, or out of its last group."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    node: Annotated[str, "Id of the node."]
    to: Annotated[str, "Next stage: joining, member, leaving, or gone (in no group)."]
    witnesses: Annotated[tuple[Witness, ...], "Acknowledgements of the current stage."] = ()


def decide_advance_service(state: ClusterState, command: AdvanceService, context: EntryContext) -> Decision:
    """Apply the next step of the state (``service.next_step``), if enough nodes have acknowledged the step before."""
    known = (*STAGES, GONE)
    if (broken := broken_field((command.to in known, "to", f"must be {', '.join(known)}"))) is not None:
        return broken
    if (wrong := bad_witnesses(state, command.witnesses)) is not None:
        return wrong
    step = next_step(state)
    if step != ServiceStep(command.node, command.to):
        then = f"next is {step.to} for {state.nodes[step.node].name}" if step is not None else "no step is pending"
        return Rejected("wrong_service_step", f"to: {command.to!r} is not the next step, {then}")
    if waits := explained(state, step, command.witnesses):
        return Rejected("gate_not_met", f"witnesses: {waits}")
    return Accepted(advance(state, context.epoch, service=entered(state, step, context.epoch)))


def last_reader(state: ClusterState, node: str) -> Rejected | None:
    """Reject the removal of the last member from the read group; None if others are left there."""
    if read_group(state) != (node,):
        return None
    name = state.nodes[node].name
    return Rejected("last_member", f"node: {name} is the last member of the metadata service: add another first")


def _stage(state: ClusterState, node: str) -> str:
    return state.service[node].stage


def _busy(state: ClusterState, besides: str = "") -> Rejected | None:
    moving = sorted(one.node for one in state.service.values() if one.stage != MEMBER and one.node != besides)
    if not moving:
        return None
    text = f"node: {state.nodes[moving[0]].name} is {_stage(state, moving[0])}, and one node changes at a time"
    return Rejected("service_changing", text)


def _by_hand(goal: ServiceGoal, size: int) -> ServiceGoal:
    return ServiceGoal(size, False, True, goal.excluded)
