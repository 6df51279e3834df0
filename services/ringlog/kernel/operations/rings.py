"""The token map during operations in flight: with their new tokens, and as each operation will leave it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.kinds import kind_of
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ownership.deltas import Order
from ringlog.kernel.ownership.strategies import Ring
from ringlog.kernel.ownership.token_maps import array_of, changed_map, in_order_of, merged
from ringlog.kernel.values import NodeId, Token


def target_owners(state: ClusterState) -> Map[Token, NodeId]:
    """Return the token map with the new tokens of all operations in flight: the owners of all present and future range
    ends.
    """
    owners = state.token_owners
    for operation in in_flight(state):
        if kind_of(operation).makes_generation:
            owners = owners.update(dict.fromkeys(operation.tokens, operation.node))
    return owners


def target_tokens(state: ClusterState) -> list[Token]:
    """Return the tokens of ``target_owners``, in ascending order."""
    tokens, owners, _ = in_order_of(state.token_owners)
    return merged(tokens, _coming(state).difference(owners))


def _coming(state: ClusterState) -> set[Token]:
    return {token for one in in_flight(state) if kind_of(one).makes_generation for token in one.tokens}


def are_targets(state: ClusterState, ends: Sequence[Token] | NDArray[np.int64]) -> bool:
    """Return whether ``ends`` are the ``target_tokens``. Many ends come in an array."""
    if not isinstance(ends, np.ndarray):
        return list(ends) == target_tokens(state)
    tokens, owners, _ = in_order_of(state.token_owners)
    return np.array_equal(ends, array_of(tokens, _coming(state).difference(owners)))


def walk_order(state: ClusterState) -> Order:
    """Return the order of groups. Each node has its present tokens; a node that joins has its future tokens."""
    flying = in_flight(state)
    coming = {
        operation.node: operation.tokens
        for operation in flying
        if kind_of(operation).brings_node and not operation.replaced
    }
    taking_over = {operation.node: operation.replaced for operation in flying if operation.replaced}
    return Order(state.nodes, coming, taking_over, in_order_of(state.token_owners)[:2])


def resulting_owners(owners: Map[Token, NodeId], operation: Operation) -> Map[Token, NodeId]:
    """Return the token map after the operation, from the one before it."""
    assert all(owners[token] == operation.node for token in operation.gone), "removed tokens belong to the node"
    assert all(owners.get(token) in (None, operation.node, operation.replaced) for token in operation.tokens), (
        "added tokens are unused, the node's own, or the replaced node's"
    )
    return changed_map(owners, operation.gone, dict.fromkeys(operation.tokens, operation.node))


def ring_after(ring: Ring, *operations: Operation) -> Ring:
    """Return the ring when ``operations`` have finished, from the one before them."""
    for operation in operations:
        ring = ring.changed(operation.gone, dict.fromkeys(operation.tokens, operation.node))
    return ring
