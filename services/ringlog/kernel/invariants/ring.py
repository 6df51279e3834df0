"""Invariants of placements: ranges that cover the ring, groups that readers and writers can rely on.

Every operation in flight is seen through its plan: the nodes that *enter* a group and those that *leave*. Without these
changes, the groups of every range are those of the strategy for the present token map (``canonical``). This is the
strongest invariant here. Together with ``views`` it implies that each read quorum intersects each write quorum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from ringlog.kernel.invariants.shape import Details, changed_items, invariant
from ringlog.kernel.model.state import NO_MEMBER, ClusterState, Operation, Placement, RangeGroup
from ringlog.kernel.operations.plan import alteration_ends, alteration_key
from ringlog.kernel.operations.rings import walk_order
from ringlog.kernel.operations.stages import (
    PREPARED,
    WRITE_BOTH_READ_NEW,
    WRITE_BOTH_READ_OLD,
    has_reached,
    in_flight,
)
from ringlog.kernel.ownership.deltas import touched
from ringlog.kernel.ownership.kinds import ENTIRE
from ringlog.kernel.ownership.placements import replications_in_use
from ringlog.kernel.ownership.strategies import natural, ring_of
from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.values import NodeId, Replication, Token, is_token


def settings_of(state: ClusterState) -> dict[str, Replication]:
    """Return the key of every required placement, with the setting of its present groups."""
    own = {found.placement: found.replication for found in state.keyspaces.values() if found.placement}
    return {**dict(replications_in_use(state)), **own}


def new_groups(placement: Placement, known: ClusterState) -> Iterator[RangeGroup]:
    """Yield the ranges that the placement does not share with the known state, by end."""
    before = known.placements.get(placement.key)
    if before is None:
        yield from placement.ranges
    elif before is not placement:
        seen = set(map(id, before.ranges))
        yield from (group for group in placement.ranges if id(group) not in seen)


@invariant(
    "placements exist exactly for each replication in use and each keyspace that changes its own",
    "placements",
    "keyspaces",
    "operations",
)
def placed(state: ClusterState, known: ClusterState) -> Details:
    """Check the keys of placements and their keyspaces."""
    wanted = settings_of(state)
    if set(state.placements) != wanted.keys():
        yield f"there are placements of {sorted(state.placements)}, required are {sorted(wanted)}"
    yield from (f"{found.key} has the key {key}" for key, found in sorted(state.placements.items()) if found.key != key)
    altered = {
        operation.keyspace: alteration_key(state.keyspaces[operation.keyspace].replication, operation.replication)
        for operation in in_flight(state)
        if operation.replication is not None and has_reached(operation, PREPARED)
    }
    for name, keyspace in sorted(state.keyspaces.items()):
        if keyspace.placement != altered.get(name, ""):
            yield f"{name} has the private placement {keyspace.placement!r}, its operation is {altered.get(name)!r}"


@invariant("ranges tile the ring: each begins at the end of the previous one, cyclically", "placements")
def tiling(state: ClusterState, known: ClusterState) -> Details:
    """Check the ends and starts of every changed placement."""
    for key, placement in sorted(state.placements.items()):
        if known.placements.get(key) is placement:
            continue
        ends = tuple([group.end for group in placement.ranges])
        if placement.ends != ends or any(low >= high for low, high in pairwise(ends)) or not all(map(is_token, ends)):
            yield f"{key}: the ends {placement.ends} differ from the ordered ends of its ranges"
        for index, group in enumerate(placement.ranges):
            if group.start != ends[index - 1]:
                yield f"{key}: the range to {group.end} begins at {group.start}, not at {ends[index - 1]}"


@invariant(
    "range ends are the tokens, and the tokens at which prepared operations split ranges",
    "placements",
    "token_owners",
    "operations",
    "keyspaces",
)
def cuts(state: ClusterState, known: ClusterState) -> Details:
    """Compare the ends of all ranges with the token map."""
    ends = set(state.token_owners)
    for operation in in_flight(state):
        if has_reached(operation, PREPARED):
            ends.update(operation.plan.split_at)
    for key, placement in sorted(state.placements.items()):
        if key == ENTIRE.name:
            if len(placement.ends) != (1 if state.token_owners else 0):
                yield f"{key} has {len(placement.ends)} ranges instead of one"
        elif ">" not in key and set(placement.ends) != ends:
            yield f"{key}: unexpected or missing range ends: {sorted(ends.symmetric_difference(placement.ends))[:4]}"
    for keyspace in state.keyspaces.values():
        if keyspace.placement:
            new = next(one.replication for one in in_flight(state) if one.keyspace == keyspace.name)
            assert new is not None
            if state.placements[keyspace.placement].ends != alteration_ends(state, keyspace.replication, new):
                yield f"{keyspace.placement} is not split at the range ends of both replications"


@invariant(
    "readers of a range are writers since the same epoch or an earlier one; members are unique, and not newer than the "
    "last change of the range",
    "placements",
)
def groups(state: ClusterState, known: ClusterState) -> Details:
    """Check each group of the changed ranges separately."""
    for key, placement in sorted(state.placements.items()):
        for group in new_groups(placement, known):
            where = f"{key} ({group.start}, {group.end}]"
            since = {replica.node: replica.since for replica in group.write}
            readers = {replica.node for replica in group.read}
            if len(since) != len(group.write) or len(readers) != len(group.read):
                yield f"{where} has a member twice"
            for replica in group.read:
                if not since.get(replica.node, group.changed + 1) <= replica.since <= group.changed:
                    yield f"{where} is read from {replica.node}, which writes since {since.get(replica.node)}"
            if not all(1 <= epoch <= group.changed for epoch in since.values()) or group.changed > state.epoch:
                yield f"{where} changed at epoch {group.changed}, but has members since {since}"


@invariant("members of groups are registered nodes that have not left", "placements", "nodes")
def members(state: ClusterState, known: ClusterState) -> Details:
    """Check all groups if a node has left, otherwise those of changed ranges."""
    gone = any(node.state in NO_MEMBER for _, node in changed_items(state.nodes, known.nodes)) and known.nodes
    for key, placement in sorted(state.placements.items()):
        for group in placement.ranges if gone else new_groups(placement, known):
            nodes = [state.nodes.get(replica.node) for replica in group.write]
            if any(node is None or node.state in NO_MEMBER for node in nodes):
                yield f"{key} ({group.start}, {group.end}] has a member that is not a node of the cluster"


@invariant("members of a group have the order of a clockwise walk of the ring", "placements", "token_owners")
def order(state: ClusterState, known: ClusterState) -> Details:
    """Check all groups if token owners changed, otherwise those of changed ranges."""
    walk = walk_order(state)
    moved = state.token_owners is not known.token_owners
    for key, placement in sorted(state.placements.items()):
        for group in placement.ranges if moved else new_groups(placement, known):
            for members in (group.read, group.write):
                if len(members) > 1 and walk.sorted(group.end, members) != members:
                    yield f"the members of {key} ({group.start}, {group.end}] do not have the walk's order"


# ------------------------------------------------------------------------------------------ operations in flight

Seen = tuple[str, frozenset[NodeId], frozenset[NodeId]]
"""Stage of an operation, and the nodes that enter and leave a range by it."""


def _changes(state: ClusterState, operation: Operation) -> Iterator[tuple[str, Token, Seen]]:
    """Yield (setting, range end, change) for all ranges that the operation changes."""
    plan = operation.plan
    for key, ranges in touched(plan.start, plan.middle, plan.finish).items():
        placement = state.placements.get(key)
        if placement is not None and placement.ends:
            for (_, end), change in ranges:
                seen = operation.stage, frozenset(change.write_added), frozenset(change.write_removed)
                yield key, placement.ends[index_at(placement.ends, end)], seen


def _by_range(state: ClusterState) -> Mapping[str, Mapping[Token, list[Seen]]]:
    found: dict[str, dict[Token, list[Seen]]] = {}
    for operation in in_flight(state):
        for key, end, seen in _changes(state, operation):
            found.setdefault(key, {}).setdefault(end, []).append(seen)
    return found


@invariant(
    "readers and writers of a range follow from the stages of operations: an entering node is a writer from "
    "write_both_read_old on, and a reader from write_both_read_new on, when a leaving node is only a writer",
    "placements",
    "operations",
)
def views(state: ClusterState, known: ClusterState) -> Details:
    """Check every range. Then a write, which needs quorums of both views, intersects every read quorum."""
    changing = _by_range(state)
    for key, placement in sorted(state.placements.items()):
        here = changing.get(key, {})
        for group in placement.ranges:
            seen = here.get(group.end)
            if seen is None:
                if len(group.read) != len(group.write):
                    yield f"{key} ({group.start}, {group.end}]: readers and writers differ without an operation"
                continue
            readers = {replica.node for replica in group.read}
            only_writers = {replica.node for replica in group.write} - readers
            expected: set[NodeId] = set()
            for stage, entering, leaving in seen:
                if stage == WRITE_BOTH_READ_OLD:
                    expected |= entering
                elif stage == WRITE_BOTH_READ_NEW:
                    expected |= leaving
                inside = entering if stage == WRITE_BOTH_READ_NEW else leaving
                if not inside <= readers:
                    yield f"{key} ({group.start}, {group.end}] lacks readers that {stage} requires"
            if only_writers != expected:
                yield f"{key} ({group.start}, {group.end}] has unexpected pending writers {sorted(only_writers)}"


@invariant(
    "without the changes of operations in flight, each group is that of the strategy for the token map",
    "placements",
    "token_owners",
)
def canonical(state: ClusterState, known: ClusterState) -> Details:
    """Check all ranges if token owners changed, otherwise the changed ones."""
    ring = ring_of(state.token_owners, state.nodes)
    moved = state.token_owners is not known.token_owners
    changing = _by_range(state)
    for key, replication in sorted(settings_of(state).items()):
        placement = state.placements.get(key)
        if placement is None:
            continue
        here = changing.get(key, {})
        for group in placement.ranges if moved else new_groups(placement, known):
            old = {replica.node for replica in group.read}
            for stage, entering, leaving in here.get(group.end, ()):
                old = (old - entering) | leaving if stage == WRITE_BOTH_READ_NEW else old
            if old != set(natural(replication, ring, group.end)):
                yield f"{key} ({group.start}, {group.end}] was {sorted(old)}, unlike the strategy's group"


INVARIANTS = (placed, tiling, cuts, groups, members, order, views, canonical)
