"""Registration and joining of a node, each exactly once, also across timeouts.

The node waits while another node's movement conflicts with its join, and while all changes are paused.

A process knows its own release and features. At each start it registers with them, or updates them with UpdateNode if
they have changed. The validator rejects a release that lacks a required or enabled feature.
"""

from __future__ import annotations

from collections.abc import Callable

from ringlog.kernel.commands.cluster.features import missing_feature
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.values import Command, Epoch, NodeId, Value
from ringlog.protocol.effects import CatchUp, Draw, Effect, Newest, Steps
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted, describe
from ringlog.protocol.submission.submission import submit_until_answered
from ringlog.protocol.validator.values import FORGOTTEN

JOIN_RETRIED = (
    "range_locked",
    "token_owned",
    "duplicate_token",
    "plans_conflict",
    "too_many_operations",
    "operations_in_flight",
    "changes_paused",
    "too_few_replicas",
)
"""Rejections after which the request is retried, a join with new tokens: another change or a started node ends them."""


class ReportAnswer(Effect[None], Value):
    """Report the answer to a request of the node."""

    command: Command
    answer: Submitted


class AwaitEpochAfter(Effect[None], Value):
    """Wait for an epoch after this one. The driver may end the wait earlier."""

    epoch: Epoch


async def register(me: RegisterNode, draw: Draw) -> None:
    """Register the node, its release and its features. Raises NodeFailed.

    Expects that the newest state contains everything that the log had when the process began.
    """
    while True:
        state = await Newest()
        found = state.nodes.get(me.id)
        if found is not None and found.address != me.address:
            raise NodeFailed(
                f"node {me.name} is registered at {found.address}, not at {me.address}: use that "
                f"address, or change it first: ringlog node update {me.name} --address {me.address}"
            )
        if found is None and me.name in state.node_names:
            raise NodeFailed(
                f"the name {me.name} belongs to node {state.node_names[me.name]}, this one is {me.id}: "
                "choose another name, or restore the folder of that node"
            )
        # A restarted node with unchanged features sends no command that the validator could reject. So the node itself
        # checks for features that the cluster has come to require.
        if found is not None and (lacks := missing_feature(state, me.name, me.features)) is not None:
            raise NodeFailed(f"{lacks.code}: {lacks.detail}")
        command = _registration_command(me, found)
        if command is None:
            return
        answer = await _answered(command, draw)
        # A rejection does not matter if another change has made the request unnecessary.
        if (
            isinstance(answer, RejectedResult)
            and _registration_command(me, (await Newest()).nodes.get(me.id)) == command
        ):
            await _wait(command, answer)


def _registration_command(me: RegisterNode, found: Node | None) -> RegisterNode | UpdateNode | None:
    """Return the command that publishes this node or its current release, or None if the cluster knows both."""
    if found is None:
        return me
    # The cluster keeps features sorted. A registration that never equals them would be repeated without end.
    same = (found.release, found.features) == (me.release, tuple(sorted(me.features)))
    if same or found.state == "left":
        return None
    return UpdateNode(me.id, release=me.release, features=me.features)


async def join(node: NodeId, wish: Callable[[ClusterState], Steps[Command]], draw: Draw) -> None:
    """Submit the node's join until it is admitted. Raises NodeFailed.

    Args:
        wish: Builds the command from the newest state.
    """
    await _admitted(lambda state: state.nodes[node].state != "none", wish, draw)


async def leave(node: NodeId, draw: Draw) -> None:
    """Submit the node's departure until it is admitted. Raises NodeFailed."""

    async def wish(state: ClusterState) -> Command:
        if node not in state.nodes:
            raise NodeFailed(f"node {node} is not registered: it has nothing to leave")
        return Leave(node)

    await _admitted(lambda state: node in state.nodes and state.nodes[node].state in ("leaving", "left"), wish, draw)


async def _admitted(
    is_done: Callable[[ClusterState], bool], wish: Callable[[ClusterState], Steps[Command]], draw: Draw
) -> None:
    while True:
        state = await CatchUp()
        if is_done(state):
            return
        command = await wish(state)
        answer = await _answered(command, draw)
        if isinstance(answer, AppliedResult):
            return
        if isinstance(answer, RejectedResult):
            await _wait(command, answer)


async def _answered(command: Command, draw: Draw) -> Submitted:
    answer = await submit_until_answered(command, draw)
    await ReportAnswer(command, answer)
    return answer


async def _wait(command: Command, answer: RejectedResult) -> None:
    """Wait before another attempt. Raises NodeFailed if retrying cannot help."""
    if answer.code == FORGOTTEN:
        return  # The validator has forgotten the request and decided nothing. The next attempt is a new request.
    if answer.code not in JOIN_RETRIED:
        raise NodeFailed(f"{type(command).__name__}: {describe(answer)}")
    await AwaitEpochAfter(answer.epoch)
