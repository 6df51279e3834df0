"""Admission of operations that run together: whichever of them finish, the layout must be the canonical one.

A plan leads from the canonical layout of the token map to that of the map with its own change. It ignores all other
plans. Disjoint locks are not enough: with several racks, one operation can alter the strategy's result for a range that
only another operation changes. Each operation may still be cancelled. So an operation is admitted on two conditions.
Each subset of those in flight, together with it, must end in the canonical layout of the resulting token map. That map
must be able to hold every replica.

Only ranges that a changed token can alter are compared (``ownership.shifts``). Each datacenter is compared separately,
because only operations of its nodes count there. So a result for some of them holds for each subset that adds
operations elsewhere. A setting bounds the number n of operations in flight, because there are 2^n subsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.kinds import Changes, kind_of
from ringlog.kernel.operations.rings import ring_after
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.ownership.placements import replications_in_use
from ringlog.kernel.ownership.shifts import part_in, shifts
from ringlog.kernel.ownership.strategies import Ring, census_of, impossible, natural, ring_of
from ringlog.kernel.values import NodeId, OperationId, Replication, Token, Value, field

Replicas = tuple[NodeId, ...]
Together = tuple[Operation, ...]


def refused_composition(state: ClusterState, operation: Operation) -> Rejected | None:
    """Return why ``operation``, which has its plan, cannot be in flight together with the others; None if it can."""
    must_fit = kind_of(operation).must_fit
    assert kind_of(operation).changes is not Changes.SETTING or not in_flight(state), "an exclusive operation is alone"
    others = [other for other in in_flight(state) if kind_of(other).changes is Changes.TOKENS]
    if not others and not must_fit:
        return None
    settings = replications_in_use(state)
    composition = _Composition(ring_of(state.token_owners, state.nodes))
    members = composition.before.counts.keys()
    for subset in _subsets(others):
        together = (*subset, operation)
        census = census_of(_members_after(members, together), state.nodes) if must_fit else {}
        for key, replication in settings:
            if must_fit and (why := impossible(replication, census)):
                return Rejected("replication_impossible", f"node: {key}: {why}{_describe_others(state, subset)}")
            if subset and (range_end := composition.differing(key, replication, together)) is not None:
                where = f"the range that ends at {range_end} under {key} would not match its strategy"
                return Rejected("plans_conflict", f"node: {where}{_describe_others(state, subset)}")
    return None


def _subsets(operations: Sequence[Operation]) -> Iterator[Together]:
    """Yield all subsets, small ones first, so that the first one that fails names only operations that matter."""
    for size in range(len(operations) + 1):
        yield from combinations(operations, size)


def _describe_others(state: ClusterState, subset: Sequence[Operation]) -> str:
    """Return the other operations in words; empty if there are none."""
    if not subset:
        return ""
    names = (f"{other.id} of {state.nodes[other.node].name} ({other.stage})" for other in subset)
    return f", together with {', '.join(names)} in flight"


def _members_after(members: Iterable[NodeId], operations: Together) -> set[NodeId]:
    """Return the nodes that own tokens after all operations have finished."""
    left = set(members)
    for operation in operations:
        if operation.tokens:
            left.add(operation.node)
            left.discard(operation.replaced)
        elif operation.gone:
            left.discard(operation.node)
    return left


class _Composition(Value):
    """The layouts of several plans together, compared with those that the strategies want. Each result is cached.

    ``before``: the present ring. A scope is a datacenter, or "" for the whole ring.
    """

    before: Ring
    wanted: dict[tuple[Replication, tuple[OperationId, ...]], Mapping[Token, tuple[Replicas, Replicas]]] = field(
        default_factory=dict
    )
    planned: dict[tuple[str, OperationId], _Changes] = field(default_factory=dict)
    verdicts: dict[tuple[str, str, tuple[OperationId, ...]], Token | None] = field(default_factory=dict)

    def differing(self, key: str, replication: Replication, operations: Together) -> Token | None:
        """Return the first range end that the plans lay out differently from the strategy; None if there is none."""
        nodes = self.before.nodes
        by_scope: dict[str, Together] = {}
        for operation in operations:
            scope = nodes[operation.node].datacenter if strategy_of(replication).has_datacenters else ""
            by_scope[scope] = (*by_scope.get(scope, ()), operation)
        ends = []
        for scope, concerned in sorted(by_scope.items()):
            known = key, scope, tuple(operation.id for operation in concerned)
            if known not in self.verdicts:
                part = part_in(replication, scope)
                self.verdicts[known] = None if part is None else self._differing_in(key, part, scope, concerned)
            if (end := self.verdicts[known]) is not None:
                ends.append(end)
        return min(ends, default=None)

    def _differing_in(self, key: str, part: Replication, scope: str, operations: Together) -> Token | None:
        wanted = self._wanted(part, scope, operations)
        added: dict[Token, set[NodeId]] = {}
        removed: dict[Token, set[NodeId]] = {}
        for operation in operations:
            for changes, merged in zip(self._planned(key, operation), (added, removed), strict=True):
                for end, node in changes:
                    merged.setdefault(end, set()).add(node)
        for end in sorted({*wanted, *added, *removed}):
            if end in wanted:
                old, new = wanted[end]
            else:
                old = new = natural(part, self.before, end)
            if set(old).difference(removed.get(end, ())).union(added.get(end, ())) != set(new):
                return end
        return None

    def _wanted(self, part: Replication, scope: str, operations: Together) -> Mapping[Token, tuple[Replicas, Replicas]]:
        """Return the replicas before and after all operations, by range end, for the ranges whose replicas change."""
        known = part, tuple(operation.id for operation in operations)
        if known not in self.wanted:
            changed = [token for operation in operations for token in (*operation.tokens, *operation.gone)]
            found = shifts([part], scope, self.before, ring_after(self.before, *operations), changed)[part]
            self.wanted[known] = {end: (old, new) for (_, end), old, new in found}
        return self.wanted[known]

    def _planned(self, key: str, operation: Operation) -> _Changes:
        if (key, operation.id) not in self.planned:
            plan = operation.plan
            self.planned[key, operation.id] = (
                tuple((change.end, change.node) for change in plan.start.write_added if change.replication == key),
                tuple((change.end, change.node) for change in plan.finish.write_removed if change.replication == key),
            )
        return self.planned[key, operation.id]


_Changes = tuple[tuple[tuple[Token, NodeId], ...], tuple[tuple[Token, NodeId], ...]]
"""The (range end, node) pairs that enter and that leave the write groups under a setting by a plan."""
