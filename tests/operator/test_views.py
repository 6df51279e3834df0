"""What the displays say of an operation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.commands.operations import AdvanceOperation
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.state import ClusterState
from ringlog.operator import views
from ringlog.operator.rehearsal import acknowledgements
from ringlog.operator.tablets import loads_view
from ringlog.operator.waiting import waiting
from ringlog.protocol.coordinator_core import CoordinatorView, propose
from ringlog.sim.prefix import prefix_of
from ringlog.sim.shape import ClusterShape
from ringlog.wire.records import NodeAck

CLUSTER = "11111111-1111-4111-8111-111111111111"


def _joining(stage: str) -> ClusterState:
    """A state in which a second node's join is in ``stage``."""
    states = prefix_of(ClusterShape(2, 0, 1, 1, 10_000, old=False)).states
    return next(state for state in states if [op.stage for op in in_flight(state)] == [stage] and len(state.nodes) == 2)


def _moves_on(state: ClusterState, acks: dict[str, NodeAck]) -> bool:
    """True if the coordinator would move the operation on."""
    proposals = propose(CoordinatorView(state, acks, state.epoch, 0))
    return any(isinstance(proposal.command, AdvanceOperation) for proposal in proposals)


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_nobody_is_waited_for_who_has_acknowledged(stage: str) -> None:
    state = _joining(stage)
    (operation,) = in_flight(state)
    assert waiting(state, operation, acknowledgements(state, 0)).text == "the coordinator"
    assert _moves_on(state, acknowledgements(state, 0))


@pytest.mark.parametrize("stage", ["prepared", "write_both_read_old"])
def test_acknowledgements_of_another_cluster_count_for_nobody(stage: str) -> None:
    state = _joining(stage)
    (operation,) = in_flight(state)
    acks = {node: replace(ack, cluster_id=CLUSTER) for node, ack in acknowledgements(state, 0).items()}
    assert "n2" in waiting(state, operation, acks).text
    assert not _moves_on(state, acks)


def test_a_report_of_a_node_that_gains_nothing_does_not_count() -> None:
    state = _joining("write_both_read_old")
    (operation,) = in_flight(state)
    acks: dict[str, NodeAck] = acknowledgements(state, 0)
    other = next(node for node in acks if node != operation.node)
    report = acks[operation.node].reports[0]
    acks[other] = replace(acks[other], reports=(replace(report, node=other),))
    acks[operation.node] = replace(acks[operation.node], reports=())
    assert waiting(state, operation, acks).text == "n2 to stream its rows"
    assert not _moves_on(state, acks)


def test_a_node_has_one_state_in_every_view() -> None:
    state = _joining("prepared")
    shown = {row["node"]: row["state"] for row in loads_view(state, {})}
    assert "bootstrapping" in shown.values()
    assert shown == {row["name"]: row["state"] for row in views.nodes(state)}
