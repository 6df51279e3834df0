"""A node's way into the cluster: registered once, then joined, each exactly once also over time-outs.

Another node's movement is waited out, and so is a pause of all changes.

The release that a process runs, and its features, are the process's own knowledge: at each start it registers with
them, or says with UpdateNode what has changed. A release that lacks a required or enabled feature is refused either
way, and so is a member that starts again without a required feature that it has never had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringlog.kernel.commands.cluster.features import missing_feature
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.values import Command, Epoch, NodeId
from ringlog.node.errors import NodeFailed
from ringlog.protocol.effects import CatchUp, Draw, Newest, Steps
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted, describe
from ringlog.protocol.submission.submission import insist
from ringlog.protocol.validator.values import FORGOTTEN

JOIN_RETRIED = (
    "range_locked",
    "token_owned",
    "duplicate_token",
    "plans_conflict",
    "too_many_operations",
    "operations_in_flight",
    "changes_paused",
)
"""Rejections that another try gets over, a join's with tokens chosen anew: another node is moving, or has moved."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request of the node has this answer."""

    command: Command
    answer: Submitted


@dataclass(frozen=True, slots=True)
class After:
    """Wait for an epoch after this one; the driver may end the wait sooner."""

    epoch: Epoch


def register(me: RegisterNode, draw: Draw) -> Steps[None]:
    """Have the cluster know the node, its release and the features of that; raises NodeFailed.

    The newest state has all that the log had when the process began.
    """
    while True:
        state: ClusterState = yield Newest()
        found = state.nodes.get(me.id)
        if found is not None and found.address != me.address:
            raise NodeFailed(
                f"node {me.name} is registered at {found.address}, not at {me.address}: use that "
                f"address, or say first that it has moved: ringlog node update {me.name} --address {me.address}"
            )
        if found is None and me.name in state.node_names:
            raise NodeFailed(
                f"the name {me.name} belongs to node {state.node_names[me.name]}, this one is {me.id}: "
                "choose another name, or bring back the folder that node had"
            )
        if found is not None and (lacks := missing_feature(state, me.name, me.features)) is not None:
            raise NodeFailed(f"{lacks.code}: {lacks.detail}")
        command = _news(me, found)
        if command is None:
            return
        answer = yield from _answered(command, draw)
        if isinstance(answer, RejectedResult) and _news(me, (yield Newest()).nodes.get(me.id)) == command:
            yield from _wait(command, answer)


def _news(me: RegisterNode, found: Node | None) -> RegisterNode | UpdateNode | None:
    """What the cluster does not know yet of this node, or of the release that it runs now; None: it knows all."""
    if found is None:
        return me
    if (found.release, found.features) == (me.release, me.features) or found.state == "left":
        return None
    return UpdateNode(me.id, release=me.release, features=me.features)


def join(node: NodeId, wish: Callable[[ClusterState], Steps[Command]], draw: Draw) -> Steps[None]:
    """Ask for what the node wishes on the newest state, until it is on its way. Raises NodeFailed."""
    while True:
        state: ClusterState = yield CatchUp()
        if state.nodes[node].state != "none":
            return
        command = yield from wish(state)
        answer = yield from _answered(command, draw)
        if isinstance(answer, AppliedResult):
            return
        if isinstance(answer, RejectedResult):
            yield from _wait(command, answer)


def _answered(command: Command, draw: Draw) -> Steps[Submitted]:
    answer: Submitted = yield from insist(command, draw)
    yield Answered(command, answer)
    return answer


def _wait(command: Command, answer: RejectedResult) -> Steps[None]:
    """Wait before another try; raises NodeFailed if none gets over the rejection."""
    if answer.code == FORGOTTEN:
        return  # nothing was decided: the next try is another request
    if answer.code not in JOIN_RETRIED:
        raise NodeFailed(f"{type(command).__name__}: {describe(answer)}")
    yield After(answer.epoch)
