"""Operations in flight must compose: whichever of them finish, the layout is the canonical one.

Every plan leads from the canonical layout of the token map to that of the map with its own change; it knows nothing of
the other plans. That they lock disjoint ranges is not enough: with several racks, the change of one can alter what the
strategy gives for a range that only the other touches. So an operation is admitted only if every subset of those in
flight, together with it, ends in the canonical layout of the token map that results, and if that map can hold every
replica: each of them may still be cancelled.

Only ranges that the walk connects with a changed token can differ, and only those are compared. The number of
operations in flight is bounded by a setting, for the subsets are 2 to the power of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ringlog.kernel.commands.model import Replication
from ringlog.kernel.operations.stages import (
    ALTER,
    LEAVE,
    REBUILD,
    REMOVE,
    in_flight,
    resulting_owners,
)
from ringlog.kernel.outcome import Rejected
from ringlog.kernel.ownership.placements import replications_in_use
from ringlog.kernel.ownership.shifts import affected_ends
from ringlog.kernel.ownership.strategies import Ring, census_of, impossible, natural
from ringlog.kernel.state import ClusterState, Operation
from ringlog.kernel.values import NodeId, Token

Groups = Mapping[Token, frozenset[NodeId]]


def refused_composition(state: ClusterState, operation: Operation) -> Rejected | None:
    """Why ``operation``, with its plan made, cannot be in flight together with the others; None if it can."""
    shrinks = operation.kind in (LEAVE, REMOVE)
    others = [other for other in in_flight(state) if other.kind not in (REBUILD, ALTER)]
    if not others and not shrinks:
        return None
    settings = replications_in_use(state)
    tokens = set(state.token_owners)
    members = frozenset(state.token_owners.values())
    before = Ring(sorted(tokens), state.token_owners, state.nodes, census_of(members, state.nodes))
    for subset in _subsets(others):
        together = (*subset, operation)
        after = _ring_after(state, tokens, members, together)
        for key, replication in settings:
            if shrinks and (why := impossible(replication, after.census)):
                return Rejected("replication_impossible", f"node: {key}: {why}{_beside(state, subset)}")
            if subset and (range_end := _differing(key, replication, before, after, together)) is not None:
                where = f"the range that ends at {range_end} under {key} would not be laid out by its strategy"
                return Rejected("plans_conflict", f"node: {where}{_beside(state, subset)}")
    return None


def _subsets(operations: Sequence[Operation]) -> Iterator[tuple[Operation, ...]]:
    """All subsets, small ones first, so that the first one that fails names no bystander."""
    for size in range(len(operations) + 1):
        yield from combinations(operations, size)


def _beside(state: ClusterState, subset: Sequence[Operation]) -> str:
    """The other operations in words; empty if there are none."""
    if not subset:
        return ""
    names = (f"{other.id} of {state.nodes[other.node].name} ({other.stage})" for other in subset)
    return f", together with {', '.join(names)} in flight"


def _ring_after(
    state: ClusterState, tokens: set[Token], members: frozenset[NodeId], operations: Sequence[Operation]
) -> Ring:
    """The ring when all of them have finished; its tokens include those that are gone then."""
    owners, added = state.token_owners, set(tokens)
    left = set(members)
    for operation in operations:
        owners = resulting_owners(owners, operation)
        added.update(operation.tokens)
        if operation.tokens:
            left.add(operation.node)
            left.discard(operation.replaced)
        elif operation.gone:
            left.discard(operation.node)
    return Ring(sorted(added), owners, state.nodes, census_of(left, state.nodes))


def _differing(
    key: str, replication: Replication, before: Ring, after: Ring, operations: Sequence[Operation]
) -> Token | None:
    """The end of a range that the plans together do not lay out as the strategy does, None if there is none."""
    added, removed = _changes(key, operations, "write_added"), _changes(key, operations, "write_removed")
    changed = [token for operation in operations for token in (*operation.tokens, *operation.gone)]
    ends = affected_ends(replication, (before, after), after.tokens, changed).union(added, removed)
    nobody: frozenset[NodeId] = frozenset()
    for end in sorted(ends):
        planned = (set(natural(replication, before, end)) - removed.get(end, nobody)) | added.get(end, nobody)
        if planned != set(natural(replication, after, end)):
            return end
    return None


def _changes(key: str, operations: Sequence[Operation], group: str) -> Groups:
    """Range end to the nodes that enter (or leave) its write group by one of the plans."""
    found: dict[Token, frozenset[NodeId]] = {}
    for operation in operations:
        deltas = operation.plan.start if group == "write_added" else operation.plan.finish
        for change in getattr(deltas, group):
            if change.replication == key:
                found[change.end] = found.get(change.end, frozenset()) | {change.node}
    return found
