"""A node registers its release before any other request, and asks again while its join cannot begin."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, TakeOver
from ringlog.kernel.commands.cluster.features import RequireFeature
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command
from ringlog.protocol.effects import CatchUp, Newest, Steps, WallClock, run_steps
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.protocol.nodes.joining import JOIN_RETRIED, AwaitEpochAfter, ReportAnswer, join, register
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.protocol.submission.submission import VALIDATOR, SubmitCommand
from ringlog.runtime.draw import SeededDraw
from tests.kernel.entries import applied, uuid

NODE = uuid(7)


def node(features: tuple[str, ...]) -> RegisterNode:
    return RegisterNode("n1", NODE, "n1:1", "dc1", "r1", 2, 12, "0.1.0", features, 1)


class Cluster:
    """A log and its validator; ``code``: the code of each rejection."""

    def __init__(self) -> None:
        self.state = applied(EMPTY_STATE, InitializeCluster("shop", ()), TakeOver(VALIDATOR, uuid(1), 1), node(()))
        self.asked: list[Command] = []
        self.code = ""

    def perform(self, steps: Steps[Any]) -> Any:
        return run_steps(steps, self._performed)

    def _performed(self, effect: object) -> object:
        match effect:
            case SubmitCommand():
                return self._answer(effect)
            case Newest() | CatchUp():
                return self.state
            case WallClock():
                return 1
            case AwaitEpochAfter(epoch):
                assert epoch == self.state.epoch
                self.code = ""  # what the join waited for has happened
            case other:
                assert isinstance(other, ReportAnswer)
        return None

    def _answer(self, effect: SubmitCommand) -> Submitted:
        self.asked.append(effect.command)
        if self.code:
            return RejectedResult(effect.request_id, self.code, "", self.state.epoch)
        self.state = applied(self.state, effect.command)
        return AppliedResult(effect.request_id, self.state.epoch)


NEWS = UpdateNode(NODE, release="0.1.0", features=("tablets",))


def test_a_node_with_another_release_registers_it_once() -> None:
    cluster = Cluster()
    for features in (("tablets",), ("tablets",), ()):
        cluster.perform(register(node(features), SeededDraw(b"1")))
    assert cluster.asked == [NEWS, UpdateNode(NODE, release="0.1.0", features=())]


def test_a_member_does_not_start_without_a_required_feature() -> None:
    """The node refuses to start itself: it sends no request that a validator could reject."""
    cluster = Cluster()
    cluster.state = applied(cluster.state, RequireFeature("tablets"))
    with pytest.raises(NodeFailed, match="feature_missing: features: n1 lacks tablets, which is required: upgrade"):
        cluster.perform(register(node(()), SeededDraw(b"1")))
    assert not cluster.asked
    cluster.perform(register(node(("tablets",)), SeededDraw(b"1")))
    assert cluster.asked == [NEWS]


@pytest.mark.parametrize("code", JOIN_RETRIED)
def test_a_join_waits_for_other_changes_and_nodes(code: str) -> None:
    cluster = Cluster()
    cluster.code = code

    async def wish(state: ClusterState) -> Command:
        return Join(NODE, (state.epoch,), bytes(16))

    cluster.perform(join(NODE, wish, SeededDraw(b"1")))
    assert len(cluster.asked) == 2


def test_a_rejection_stops_the_node() -> None:
    cluster = Cluster()
    cluster.code = "feature_missing"
    with pytest.raises(NodeFailed, match="feature_missing"):
        cluster.perform(register(node(("tablets",)), SeededDraw(b"1")))
