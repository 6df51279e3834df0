"""A node that comes with another release says so, once there is a validator that can be told."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.cluster import InitializeCluster, Noop, TakeOver
from ringlog.kernel.commands.nodes import RegisterNode, UpdateNode
from ringlog.kernel.state import EMPTY_STATE
from ringlog.kernel.values import Command
from ringlog.node.errors import NodeFailed
from ringlog.node.protocol.joining import After, Answered, announce, register
from ringlog.protocol.answers import AppliedResult, RejectedResult, Submitted
from ringlog.protocol.effects import Newest, Steps, WallClock, carry_out
from ringlog.protocol.submission import VALIDATOR, AskFor
from ringlog.runtime.draw import SeededDraw
from tests.kernel.entries import applied, uuid

NODE = uuid(7)


def node(features: tuple[str, ...]) -> RegisterNode:
    return RegisterNode("n1", NODE, "n1:1", "dc1", "r1", 2, 12, "0.1.0", features, 1)


class Cluster:
    """What the node is answered: a validator of term 1 knows no UpdateNode, the next one does.

    ``later``: what is applied while the node waits, epoch by epoch.
    """

    def __init__(self, *later: Command) -> None:
        first = InitializeCluster("shop", ()), TakeOver(VALIDATOR, uuid(1), 1), node(())
        self.state = applied(EMPTY_STATE, *first)
        self.later = list(later)
        self.asked: list[tuple[int, Command]] = []
        self.code = "unknown_command"

    def perform(self, steps: Steps[Any]) -> Any:
        return carry_out(steps, self._performed)

    def _performed(self, effect: object) -> object:
        match effect:
            case AskFor():
                return self._answer(effect)
            case After():
                assert self.state.epoch == effect.epoch
                self.state = applied(self.state, self.later.pop(0))
            case Newest():
                return self.state
            case WallClock():
                return 1
            case other:
                assert isinstance(other, Answered)
        return None

    def _answer(self, effect: AskFor) -> Submitted:
        term = self.state.terms[VALIDATOR].term
        self.asked.append((term, effect.command))
        assert len(self.asked) < 10, "nobody insists"
        if term == 1:
            return RejectedResult(effect.request_id, self.code, "", self.state.epoch)
        self.state = applied(self.state, effect.command)
        return AppliedResult(effect.request_id, self.state.epoch)


NEWS = UpdateNode(NODE, release="0.1.0", features=("tablets",))


def test_a_validator_that_knows_no_such_command_holds_nothing_up() -> None:
    cluster = Cluster()
    assert cluster.perform(register(node(("tablets",)), SeededDraw(b"1"))) is False
    assert cluster.asked == [(1, NEWS)]
    assert cluster.perform(register(node(()), SeededDraw(b"1"))) is True
    assert len(cluster.asked) == 1


def test_the_next_validator_is_told_and_nobody_in_between() -> None:
    cluster = Cluster(Noop(), Noop(), TakeOver(VALIDATOR, uuid(2), 2))
    cluster.perform(announce(node(("tablets",)), SeededDraw(b"1")))
    assert cluster.asked == [(1, NEWS), (2, NEWS)]
    assert cluster.state.nodes[NODE].features == ("tablets",)


def test_what_a_rule_refuses_ends_the_node() -> None:
    cluster = Cluster()
    cluster.code = "feature_missing"
    with pytest.raises(NodeFailed, match="feature_missing"):
        cluster.perform(register(node(("tablets",)), SeededDraw(b"1")))
