"""Node states as ScyllaDB's topology state machine names them (``system.topology``: ``node_state``, ``replaced_id``,
``rebuild_option``, ``num_tokens``).

The state keeps the four words that its rules need (``state.NODE_STATES``), and the operations. This module derives the
topology's states from both, so they cannot contradict them. The row of an operation's kind names the state of its node
during the operation (``kinds``).

Invariant: a node without an operation in flight is ``none``, ``normal`` or ``left``.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.model.state import NODE_STATES, ClusterState, Node
from ringlog.kernel.operations.kinds import KINDS, LEAVING, kind_of
from ringlog.kernel.operations.stages import REQUESTED, in_flight
from ringlog.kernel.values import NodeId, Value, replace

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
"""The word of the log's state for each state."""
GIVES_WAY: Final = "removing"
"""The state of a node whose tokens another node takes over."""

assert set(KEPT_AS.values()) == set(NODE_STATES), "each stored state is mapped to a shown state"
assert KEPT_AS[GIVES_WAY] == LEAVING.during, "a replaced node leaves"
assert all(
    KEPT_AS[kind.shown] == ("normal" if kind.node is None else kind.node.during)
    for kind in KINDS.values()
    if kind.shown
), "the shown state is a name of the stored state"


class NodeStatus(Value):
    """The state of a node and of its operation.

    ``state``: one of ``KEPT_AS``. ``num_tokens``: the number of tokens that it asked for and, once it has joined, that
    it owns. ``replaced``: id of the node that it replaces or replaced; empty: none. ``rebuild_source``: the datacenter
    that supplies the rows of a rebuild; empty: any, or no rebuild runs.
    """

    state: str
    num_tokens: int
    replaced: NodeId = ""
    rebuild_source: str = ""


def node_statuses(state: ClusterState) -> dict[NodeId, NodeStatus]:
    """Return the status of each node that ever registered, by id."""
    moving = _moving(state)
    return {
        node.id: moving.get(node.id) or NodeStatus(node.state, len(node.tokens), node.replaced)
        for node in state.nodes.values()
    }


def shown_nodes(state: ClusterState) -> Map[NodeId, Node]:
    """Return the directory for change topics and caches: ``state`` and ``replaced`` are those of ``NodeStatus``.

    Nodes without an operation are the objects of the state itself.
    """
    nodes = state.nodes
    for node, status in sorted(_moving(state).items()):
        if node in nodes:
            nodes = nodes.set(node, replace(nodes[node], state=status.state, replaced=status.replaced))
    return nodes


def _moving(state: ClusterState) -> dict[NodeId, NodeStatus]:
    """Return the status of each node that an operation in flight concerns. No two operations concern the same node."""
    found = {}
    for operation in in_flight(state):
        kind = kind_of(operation)
        if operation.replaced in state.nodes:
            gives = state.nodes[operation.replaced]
            found[gives.id] = NodeStatus(GIVES_WAY, len(gives.tokens), gives.replaced)
        if operation.node in state.nodes:
            node = state.nodes[operation.node]
            waits = kind.node is None and operation.stage == REQUESTED  # changes nothing yet for a node that stays
            found[node.id] = NodeStatus(
                node.state if waits else kind.shown,
                len(operation.tokens) if kind.brings_node else len(node.tokens),
                operation.replaced or node.replaced,
                operation.source_datacenter,
            )
    for name, status in found.items():
        assert KEPT_AS[status.state] == state.nodes[name].state, "the shown state is a name of the stored state"
    return found


def shown_state(state: ClusterState, node: NodeId) -> str:
    """Return the state of one registered node, for a text."""
    found = _moving(state).get(node)
    return state.nodes[node].state if found is None else found.state
