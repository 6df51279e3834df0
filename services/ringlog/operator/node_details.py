"""One node in detail: its share, its data and the effect of its removal. For the command line and the console."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from ringlog.kernel.commands.topology.movements import Leave, Remove
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import EntryContext, Rejected
from ringlog.kernel.model.state import OWNING, ClusterState, Node
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.operator.answers import explained

Json = dict[str, Any]
RING: Final = 2**64


def owned_shares(state: ClusterState) -> dict[str, float]:
    """Return the share of the token ring that each node owns, by node id."""
    tokens = sorted(state.token_owners)
    found: dict[str, float] = defaultdict(float)
    for index, token in enumerate(tokens):
        found[state.token_owners[token]] += ((token - tokens[index - 1]) % RING or RING) / RING
    return found


def node_details(state: ClusterState, node: Node, row: Json) -> Json:
    """Return a row of ``views.nodes`` with the ranges and tablets of the node, and a dry run of its removal."""
    held = []
    for name in sorted(state.keyspaces):
        placement = placement_of_keyspace(state, name)
        ranges = 0 if placement is None else sum(any(one.node == node.id for one in g.read) for g in placement.ranges)
        if ranges:
            held.append({"keyspace": name, "ranges": ranges})
    tablets = {
        name: found.held[found.nodes.index(node.id)]
        for name, found in sorted(state.tablets.items())
        if node.id in found.nodes
    }
    return row | {
        "ranges": held,
        "tablets": [{"table": name, "replicas": count} for name, count in tablets.items() if count],
        "service_member": node.id in state.service,
        "removal": _removal(state, node),
    }


def _removal(state: ClusterState, node: Node) -> Json | None:
    if node.state not in OWNING:
        return None
    command = Remove(node.id) if node.down else Leave(node.id)
    verb = "remove" if node.down else "leave"
    decided = decide(state, command, EntryContext(state.epoch + 1, state.state_id, state.time))
    refused = isinstance(decided, Rejected)
    return {
        "command": f"ringlog node {verb} {node.name}",
        "accepted": not refused,
        "code": decided.code if isinstance(decided, Rejected) else None,
        "detail": explained(state, decided.code, decided.detail) if isinstance(decided, Rejected) else None,
    }
