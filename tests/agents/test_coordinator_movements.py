"""The coordinator completes every kind of operation, even if another instance takes over after each step."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.cluster.cluster import TakeOver
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, RegisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.kinds import KINDS
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Command, Replication
from ringlog.protocol.coordinator.core import ROLE, propose

from .operation_runner import acks_of, finish_operations, known
from .world import World

SEED = bytes(16)
SPARE = 6


def node(number: int) -> str:
    return f"{number}" * 8 + "-1111-4111-8111-111111111111"


REQUESTS: dict[str, tuple[Command, ...]] = {
    "join": (Join(node(SPARE), (55,), SEED),),
    "leave": (Leave(node(3)),),
    "move": (Move(node(3), (15,), SEED),),
    "replace": (Replace(node(SPARE), node(3)),),
    "remove": (DeclareDown(node(3), "disk"), Remove(node(3))),
    "rebuild": (Rebuild(node(3)),),
    "alter": (AlterKeyspace("ks", Replication("simple", 1)),),
}


def world_with(kind: str) -> tuple[World, str]:
    """Return five nodes, one of them only registered, with three replicas and a requested operation of that kind."""
    world = World()
    for number in range(1, SPARE + 1):
        world.direct(RegisterNode(f"n{number}", node(number), f"n{number}:1", "dc", "r", 2, 12, "1", (), 1))
    for number in range(1, SPARE):
        world.direct(Join(node(number), (10 * number,), SEED))

    def after(_: ClusterState, command: Command) -> ClusterState:
        world.direct(command)
        return world.state

    finish_operations(world.state, after)
    for command in (CreateKeyspace("ks", Replication("simple", 3)), *REQUESTS[kind]):
        world.direct(command)
    (operation,) = in_flight(world.state)
    return world, operation.id


def test_all_kinds_with_waits_are_covered() -> None:
    assert REQUESTS.keys() == set(KINDS) - {"assassinate"}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_take_over_after_every_step_loses_no_step(kind: str) -> None:
    world, operation = world_with(kind)
    term = 0
    while proposals := propose(known(world.state)):
        before = [(proposal.command, proposal.since_epoch) for proposal in proposals]
        term += 1
        world.direct(TakeOver(ROLE, world.uuid(), term))
        again = propose(known(world.state))
        assert [type(one.command) for one in again] == [type(command) for command, _ in before]
        assert all(one.since_epoch > since for one, (_, since) in zip(again, before, strict=True))
        world.direct(again[0].command)
    ended = world.state.operations[operation]
    assert tuple(mark.stage for mark in ended.marks) == KINDS[kind].stages
    assert in_flight(world.state) == ()


@pytest.mark.parametrize("kind", REQUESTS)
def test_without_the_report_of_a_gaining_node_no_step_advances(kind: str) -> None:
    """A gaining node has to acknowledge and to report; a dead node that is being removed has not."""
    world, operation = world_with(kind)
    world.direct(next(one.command for one in propose(known(world.state))))
    stage = world.state.operations[operation].stage
    for silent in world.state.nodes:
        acks = {name: ack for name, ack in acks_of(world.state).items() if name != silent}
        steps = [one.command for one in propose(known(world.state, acks=acks))]
        went_on = any(isinstance(one, AdvanceOperation) and one.operation == operation for one in steps)
        targets = {source.target for source in world.state.operations[operation].plan.sources}
        if silent in targets:
            assert not went_on, (stage, silent)
        elif kind == "rebuild" or (kind == "remove" and silent == node(3)):
            assert went_on, (stage, silent)
