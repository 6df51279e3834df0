"""Cancel: a cancelled operation leaves the placements as if it had never been admitted.

Steps are undone in reverse order: the inverse of the start delta, then the splits. Every range that the operation had
locked is then the same as before, with the same members since the same epochs; ``changed`` is restored from the lock.
Other operations changed other ranges meanwhile; those stay as they are.

This is safe. Requests planned meanwhile wrote to the old group and to more nodes. If the gaining node returns later, it
is a member since a later epoch, so its earlier answers do not count.

A joining or replacing node that already has tablets cannot return to ``none``: it becomes ``left``.

The generation started for the operation is dropped, unless it is committed (a finer generation is still correct) or
serves another operation. Requests for a check that wait for it end as dropped. A requested generation is dropped, too,
if no token is left. From ``write_both_read_new`` on a cancel is not possible: clients may have read from the new owner.
"""

from __future__ import annotations

from typing import Any

from immutables import Map

from ringlog.kernel.columns.blocks import with_items
from ringlog.kernel.generations import requests
from ringlog.kernel.model.outcome import EntryContext
from ringlog.kernel.model.state import ClusterState, LockedRange, Operation, Placement, RangeGroup, advance
from ringlog.kernel.movements.progress import moved, nodes_during, record, without_orphan
from ringlog.kernel.operations.kinds import Changes, kind_of
from ringlog.kernel.operations.rings import walk_order
from ringlog.kernel.operations.stages import CANCELLED, POINT_OF_NO_RETURN, PREPARED, WRITE_BOTH_READ_OLD, has_reached
from ringlog.kernel.ownership.deltas import apply_deltas
from ringlog.kernel.ownership.placements import merge
from ringlog.kernel.ring.ranges import index_at
from ringlog.kernel.tablets.mutual_exclusion import tables_on
from ringlog.kernel.values import replace


def cancel(state: ClusterState, operation: Operation, reason: str, context: EntryContext) -> ClusterState:
    """Return the state without the operation's effects. The operation must not have passed the point of no return."""
    assert not has_reached(operation, POINT_OF_NO_RETURN), "a replica that may have been read is not removed"
    prepared, generation = state.prepared, operation.generation
    if prepared is not None and prepared.operation == operation.id:
        state = requests.end_requests(state, prepared.id, requests.DROPPED, context)
        prepared = None
        generation = None
    ended = replace(moved(operation, CANCELLED, context), reason=reason, generation=generation)
    nodes = nodes_during(state.nodes, operation, "cancelled")
    if kind_of(operation).brings_node and tables_on(state, operation.node):
        nodes = nodes.set(operation.node, replace(nodes[operation.node], state="left"))
    parts: dict[str, Any] = {"keyspaces": state.keyspaces, "nodes": nodes}
    if kind_of(operation).changes is Changes.SETTING:
        keyspace = state.keyspaces[operation.keyspace]
        parts["placements"] = state.placements.delete(keyspace.placement) if keyspace.placement else state.placements
        parts["keyspaces"] = state.keyspaces.set(keyspace.name, replace(keyspace, placement=""))
    else:
        parts["placements"] = _undone(state, operation, context)
    cancelled = advance(state, context.epoch, operations=record(state, ended), prepared=prepared, **parts)
    return without_orphan(cancelled, context)


def _undone(state: ClusterState, operation: Operation, context: EntryContext) -> Map[str, Placement]:
    placements = state.placements
    if has_reached(operation, WRITE_BOTH_READ_OLD):
        placements = apply_deltas(placements, operation.plan.start.inverse(), walk_order(state), context.epoch)
    if kind_of(operation).changes is Changes.ROWS or not has_reached(operation, PREPARED):
        return placements
    for key, placement in sorted(placements.items()):
        locks = tuple(lock for lock in operation.locks if lock.replication == key)
        placements = placements.set(key, _unlocked(merge(placement, operation.plan.split_at), locks))
    return placements


def _unlocked(placement: Placement, locks: tuple[LockedRange, ...]) -> Placement:
    """Return the placement with the ``changed`` that its ranges had when they were locked."""
    before: dict[int, RangeGroup] = {}
    for lock in locks:
        index = index_at(placement.ends, lock.end)
        group = placement.ranges[index]
        assert (group.start, group.end) == (lock.start, lock.end), "a cancel restores the locked ranges"
        # A lock in a forced state may have any epoch. No range may have one that is still to come.
        before[index] = replace(group, changed=min(group.changed, lock.changed))
    places = sorted(before)
    return replace(placement, ranges=with_items(placement.ranges, places, [before[at] for at in places]))
