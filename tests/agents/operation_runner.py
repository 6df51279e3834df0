"""Completes operations with the coordinator's own decisions; every node acknowledges at once."""

from __future__ import annotations

from collections.abc import Callable

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import gaining_nodes
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Command, StreamReport
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.wire.records import NodeAck

NOW = 1_700_000_000_000_000


def acks_of(state: ClusterState) -> dict[str, NodeAck]:
    """Return acknowledgements of all nodes: each has applied everything, and gaining nodes have streamed their rows."""
    flying = in_flight(state)
    return {
        node: NodeAck(
            cluster_id=state.cluster_id,
            node=node,
            incarnation="i",
            applied=state.epoch,
            drained=state.epoch,
            reports=tuple(StreamReport(node, op.id, 0, "00") for op in flying if node in gaining_nodes(op)),
            rows=0,
            at=NOW,
            state_id=state.state_id,
        )
        for node in state.nodes
    }


def known(state: ClusterState, **changes: object) -> CoordinatorView:
    """Return a view without problems: all nodes acknowledged and all topics published up to this epoch."""
    values: dict[str, object] = {"acks": acks_of(state), "published": state.epoch, "now": NOW, "complete_since": 0}
    return CoordinatorView(state, **(values | changes))  # type: ignore[arg-type]


def finish_operations(
    state: ClusterState, after: Callable[[ClusterState, Command], ClusterState]
) -> list[ClusterState]:
    """Return the intermediate states until the coordinator proposes nothing."""
    states: list[ClusterState] = []
    while proposals := propose(known(state)):
        state = after(state, proposals[0].command)
        states.append(state)
    return states
