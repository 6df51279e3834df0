"""Acknowledgements of many nodes in columns: a step of an operation brings one of each node, a thousand of them.

The fold asks which nodes they are of, whether an epoch lies in the future, who has acknowledged one. Columns answer
that for all at once. ``PackedWitnesses`` stands where a tuple of ``Witness`` does and is equal to it; single ones are
made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, Final, overload

from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.remembered import Remembered
from ringlog.kernel.values import Epoch, NodeId, Witness

PACKED_FROM: Final = 32
"""Fewer are quicker one by one."""

_everybody: Final = Remembered[tuple[NodeId, ...], frozenset[NodeId]](2)
_there: Final = Remembered[tuple[NodeId, ...], Map[NodeId, Any]](2)
"""Of the nodes of witnesses, which are those of the step before, as a rule: all of them, and a directory that has them.
"""


class PackedWitnesses(Sequence[Witness]):
    """At least one. ``applied``, ``drained``: ``int64``, one a node; nobody changes them."""

    __slots__ = ("_made", "applied", "drained", "nodes")

    def __init__(self, nodes: tuple[NodeId, ...], applied: NDArray[Any], drained: NDArray[Any]) -> None:
        assert len(nodes) == len(applied) == len(drained) > 0, "a witness has one of each"
        self.nodes = nodes
        self.applied = applied
        self.drained = drained
        self._made: tuple[Witness, ...] | None = None

    def as_tuple(self) -> tuple[Witness, ...]:
        """The witnesses, the same objects each time."""
        if self._made is None:
            self._made = tuple(map(Witness, self.nodes, self.applied.tolist(), self.drained.tolist()))
        return self._made

    def lie_within(self, epoch: Epoch) -> bool:
        """True if no number lies below 0 or above ``epoch``."""
        low, high = min(self.applied.min(), self.drained.min()), max(self.applied.max(), self.drained.max())
        return bool(low >= 0 and high <= epoch)

    def who_acknowledged(self, epoch: Epoch) -> frozenset[NodeId]:
        """The nodes that have applied and drained it."""
        has = (self.applied >= epoch) & (self.drained >= epoch)
        assert len(has) == len(self.nodes), "each is asked"
        if not has.all():
            return frozenset(compress(self.nodes, has.tolist()))
        everybody = _everybody.get(self.nodes)
        return _everybody.put(self.nodes, frozenset(self.nodes)) if everybody is None else everybody

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

    @overload
    def __getitem__(self, at: int) -> Witness: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Witness, ...]: ...
    def __getitem__(self, at: int | slice) -> Witness | tuple[Witness, ...]:
        return self.as_tuple()[at]

    def __iter__(self) -> Iterator[Witness]:
        return iter(self.as_tuple())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedWitnesses):
            return self.as_tuple() == other.as_tuple()
        return self.as_tuple() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        return repr(self.as_tuple())
