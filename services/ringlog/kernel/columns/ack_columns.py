"""Acknowledgements of many nodes in columns: a step of an operation brings one of each node, a thousand of them.

The fold asks which nodes they are of, whether an epoch lies in the future, who has acknowledged one. Columns answer
that for all at once. ``AckColumns`` stands in for a tuple of ``Witness``.
"""

from __future__ import annotations

from itertools import compress
from typing import Any, Final

from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.columns.lazy_tuple import IdentityCache, LazyTuple
from ringlog.kernel.values import Epoch, NodeId, Witness

PACKED_FROM: Final = 32
"""Fewer are quicker one by one."""

_node_sets: Final = IdentityCache[tuple[NodeId, ...], frozenset[NodeId]](2)
_there: Final = IdentityCache[tuple[NodeId, ...], Map[NodeId, Any]](2)
"""Of the nodes of witnesses, which are those of the step before, as a rule: all of them, and a directory that has them.
"""


class AckColumns(LazyTuple[Witness]):
    """At least one. ``applied``, ``drained``: ``int64``, one a node; nobody changes them."""

    __slots__ = ("applied", "drained", "nodes")

    def __init__(self, nodes: tuple[NodeId, ...], applied: NDArray[Any], drained: NDArray[Any]) -> None:
        assert len(nodes) == len(applied) == len(drained) > 0, "a witness has one of each"
        self.nodes = nodes
        self.applied = applied
        self.drained = drained
        self._made = None

    def _make(self) -> tuple[Witness, ...]:
        return tuple(map(Witness, self.nodes, self.applied.tolist(), self.drained.tolist()))

    def lie_within(self, epoch: Epoch) -> bool:
        """True if no number lies below 0 or above ``epoch``."""
        low, high = min(self.applied.min(), self.drained.min()), max(self.applied.max(), self.drained.max())
        return bool(low >= 0 and high <= epoch)

    def nodes_acknowledging(self, epoch: Epoch) -> frozenset[NodeId]:
        """The nodes that have applied and drained it."""
        has = (self.applied >= epoch) & (self.drained >= epoch)
        assert len(has) == len(self.nodes), "each is asked"
        if not has.all():
            return frozenset(compress(self.nodes, has.tolist()))
        nodes = _node_sets.get(self.nodes)
        return _node_sets.put(self.nodes, frozenset(self.nodes)) if nodes is None else nodes

    def are_in(self, nodes: Map[NodeId, Any]) -> bool:
        """True if all of them are in this directory."""
        known = _there.get(self.nodes)
        if known is not nodes:
            if not all(map(nodes.__contains__, self.nodes)):
                return False
            _there.put(self.nodes, nodes)
        return True

    def __len__(self) -> int:
        return len(self.nodes)
