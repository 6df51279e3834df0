"""What a node is doing, in the states of ScyllaDB's topology state machine (``system.topology``: ``node_state``,
``replaced_id``, ``rebuild_option``, ``num_tokens``).

The state keeps the four words that its rules need (``state.NODE_STATES``), and the operation that explains them. Here
both become what the topology's table says of a node, so that it cannot contradict them. The row of an operation's kind
has the name of what its node does meanwhile (``kinds``).

Invariant: a node without an operation in flight is ``none``, ``normal`` or ``left``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.stages import FINISHED, REQUESTED, in_flight
from ringlog.kernel.state import ClusterState, Operation
from ringlog.kernel.values import NodeId

KEPT_AS: Final = {
    "none": "none",
    "bootstrapping": "joining",
    "replacing": "joining",
    "normal": "normal",
    "moving": "moving",
    "rebuilding": "normal",
    "decommissioning": "leaving",
    "removing": "leaving",
    "left": "left",
}
"""Each state as the log's state keeps it."""
GIVES_WAY: Final = "removing"
"""What a node does whose tokens another one takes over."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node is doing.

    ``state``: one of ``KEPT_AS``.
    ``num_tokens``: how many tokens it asked for, once it has joined how many it owns. ``replaced``: id of the node that
    it replaces, or replaced as long as that operation is kept; empty: none. ``rebuild_source``: the datacenter that a
    rebuild gets its rows from; empty: any, or there is no rebuild.
    """

    state: str
    num_tokens: int
    replaced: NodeId = ""
    rebuild_source: str = ""


def node_statuses(state: ClusterState) -> dict[NodeId, NodeStatus]:
    """The status of each node that ever registered, by id."""
    own = {operation.node: operation for operation in in_flight(state) if operation.node}
    gives_way = {operation.replaced for operation in in_flight(state) if operation.replaced}
    replaced = {one.node: one.replaced for one in state.operations.values() if one.replaced and one.stage == FINISHED}
    found: dict[NodeId, NodeStatus] = {}
    for node in state.nodes.values():
        operation = own.get(node.id)
        if operation is not None:
            found[node.id] = _moving(operation, node.state, len(node.tokens))
        else:
            word = GIVES_WAY if node.id in gives_way else node.state
            found[node.id] = NodeStatus(word, len(node.tokens), replaced.get(node.id, ""))
        assert KEPT_AS[found[node.id].state] == node.state, "a state is renamed, and never another one"
    return found


def _moving(operation: Operation, kept: str, tokens: int) -> NodeStatus:
    """The status of a node by its operation in flight. One that waits changes nothing yet for a node that stays."""
    kind = kind_of(operation)
    waits = kind.node is None and operation.stage == REQUESTED
    return NodeStatus(
        kept if waits else kind.shown,
        len(operation.tokens) if kind.brings_node else tokens,
        operation.replaced,
        operation.source_datacenter,
    )


def shown_state(state: ClusterState, node: NodeId) -> str:
    """The state of one registered node, for a text."""
    return node_statuses(state)[node].state
