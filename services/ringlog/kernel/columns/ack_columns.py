"""Acknowledgements of many nodes as columns: a step of an operation brings one from each of a thousand nodes.

The fold asks which nodes they come from, whether an epoch is in the future, and who has acknowledged an epoch. Columns
answer that for all nodes at once. ``AckColumns`` replaces a tuple of ``Witness``.
"""

from __future__ import annotations

from itertools import compress
from typing import Any, Final

from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.columns.lazy_tuple import IdentityCache, LazyTuple
from ringlog.kernel.values import Epoch, NodeId, Witness

PACKED_FROM: Final = 32
"""Minimum number of acknowledgements for columns: fewer are faster one by one."""

_node_sets: Final = IdentityCache[tuple[NodeId, ...], frozenset[NodeId]](2)
_there: Final = IdentityCache[tuple[NodeId, ...], Map[NodeId, Any]](2)
"""Witness nodes to a directory that contains all of them. Consecutive steps usually have the same witness nodes."""


class AckColumns(LazyTuple[Witness]):
    """Acknowledgements of at least one node. ``applied``, ``drained``: ``int64`` arrays, one element per node,
    read-only.
    """

    __slots__ = ("applied", "drained", "nodes")

    def __init__(self, nodes: tuple[NodeId, ...], applied: NDArray[Any], drained: NDArray[Any]) -> None:
        assert len(nodes) == len(applied) == len(drained) > 0, "columns of witnesses have the same length"
        self.nodes = nodes
        self.applied = applied
        self.drained = drained
        self._made = None

    def _make(self) -> tuple[Witness, ...]:
        return tuple(map(Witness, self.nodes, self.applied.tolist(), self.drained.tolist()))

    def lie_within(self, epoch: Epoch) -> bool:
        """Return True if all numbers are between 0 and ``epoch``."""
        low, high = min(self.applied.min(), self.drained.min()), max(self.applied.max(), self.drained.max())
        return bool(low >= 0 and high <= epoch)

    def nodes_acknowledging(self, epoch: Epoch) -> frozenset[NodeId]:
        """Return the nodes that have applied and drained ``epoch``."""
        has = (self.applied >= epoch) & (self.drained >= epoch)
        assert len(has) == len(self.nodes), "the mask covers all nodes"
        if not has.all():
            return frozenset(compress(self.nodes, has.tolist()))
        # All nodes is the usual result at the end of a stage. The cache avoids a set of a thousand ids per entry.
        nodes = _node_sets.get(self.nodes)
        return _node_sets.put(self.nodes, frozenset(self.nodes)) if nodes is None else nodes

    def are_in(self, nodes: Map[NodeId, Any]) -> bool:
        """Return True if the directory contains all nodes."""
        known = _there.get(self.nodes)
        if known is not nodes:
            if not all(map(nodes.__contains__, self.nodes)):
                return False
            _there.put(self.nodes, nodes)
        return True

    def __len__(self) -> int:
        return len(self.nodes)
