"""Where the tablets of ``fleet.by_plane`` are, and when the balancer is done with them."""

from __future__ import annotations

from collections import Counter

from ringlog.demo.flights import FLEET, TABLE
from ringlog.kernel.state import ClusterState
from ringlog.kernel.tablets.track import transitions


def tablets_by_node(state: ClusterState) -> dict[str, int]:
    """Name of a normal node to how many tablets it has a replica of."""
    found = state.tablets.get(f"{FLEET}.{TABLE}")
    held = Counter() if found is None else Counter(one.node for tablet in found for one in tablet.replicas)
    return {node.name: held[node.id] for node in state.nodes.values() if node.state == "normal"}


def rests(state: ClusterState) -> bool:
    """True while no tablet is on its way."""
    return next(transitions(state), None) is None


def is_spread(state: ClusterState, nodes: int) -> bool:
    """True once at least ``nodes`` nodes have half as many as an even share or more, and none is on its way.

    The balancer counts bytes, not tablets.
    """
    held = tablets_by_node(state).values()
    return len(held) >= nodes and min(held) * len(held) * 2 >= sum(held) > 0 and rests(state)
