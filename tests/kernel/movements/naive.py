"""A reference model of the planner that checks each range, not only those near changed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ringlog.kernel.model.state import Change, ClusterState, Deltas, Operation, Placement, Plan, RangeGroup, Source
from ringlog.kernel.operations.rings import resulting_owners
from ringlog.kernel.operations.sources import sources_of
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ownership.kinds import ENTIRE
from ringlog.kernel.ownership.placements import replications_in_use
from ringlog.kernel.ownership.strategies import ENTIRE_END, natural, ring_of


def plan(state: ClusterState, operation: Operation) -> Plan:
    """Return the plan of an operation, by a comparison of both full layouts."""
    before = ring_of(state.token_owners, state.nodes)
    after = ring_of(resulting_owners(state.token_owners, operation), state.nodes)
    dead = frozenset(name for name, node in state.nodes.items() if node.down).union(operation.ignored)
    gained: list[Change] = []
    lost: list[Change] = []
    sources: list[Source] = []
    for key, replication in replications_in_use(state):
        cuts = [ENTIRE_END] if replication.strategy == ENTIRE.name else sorted({*before.tokens, *after.tokens})
        for index, end in enumerate(cuts):
            place = key, cuts[index - 1], end
            old, new = natural(replication, before, end), natural(replication, after, end)
            gained += [Change(*place, node) for node in new if node not in old]
            lost += [Change(*place, node) for node in old if node not in new]
            if set(old) != set(new):
                found = sources_of(old, new, state.nodes, dead, replication.strategy == "simple")
                sources += [Source(*place, source, node) for source, node in found]
    return Plan(
        split_at=tuple(sorted(set(operation.tokens).difference(before.tokens))),
        start=Deltas(write_added=tuple(gained)),
        middle=Deltas(read_added=tuple(gained), read_removed=tuple(lost)),
        finish=Deltas(write_removed=tuple(lost)),
        sources=tuple(sources),
        merge_at=tuple(sorted(operation.gone)),
    )


def composes(state: ClusterState, operation: Operation) -> bool:
    """Return True if each subset of the operations in flight, with the new one, ends in the canonical layout."""
    before = ring_of(state.token_owners, state.nodes)
    others = in_flight(state)
    for subset in (subset for size in range(1, len(others) + 1) for subset in combinations(others, size)):
        together = (*subset, operation)
        owners = state.token_owners
        for one in together:
            owners = resulting_owners(owners, one)
        after = ring_of(owners, state.nodes)
        for key, replication in replications_in_use(state):
            cuts = {ENTIRE_END} if replication.strategy == ENTIRE.name else {*before.tokens, *after.tokens}
            for end in cuts:
                added = _nodes([one.plan.start.write_added for one in together], key, end)
                removed = _nodes([one.plan.finish.write_removed for one in together], key, end)
                planned = set(natural(replication, before, end)) - removed | added
                if planned != set(natural(replication, after, end)):
                    return False
    return True


def _nodes(lists: Sequence[Sequence[Change]], key: str, end: int) -> set[str]:
    return {change.node for changes in lists for change in changes if (change.replication, change.end) == (key, end)}


def split(placement: Placement, token: int) -> Placement:
    """Return the placement with one more range end."""
    if token in placement.ends or placement.key == ENTIRE.name:
        return placement
    ends = sorted((*placement.ends, token))
    groups = {group.end: group for group in placement.ranges}
    host = next((end for end in placement.ends if end > token), placement.ends[0] if placement.ends else None)
    groups[token] = groups[host] if host is not None else RangeGroup(token, token, (), (), 0)
    ranges = [(ends[index - 1], end, groups[end]) for index, end in enumerate(ends)]
    made = tuple(RangeGroup(start, end, group.read, group.write, group.changed) for start, end, group in ranges)
    return Placement(placement.key, made, tuple(ends))
