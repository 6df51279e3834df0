"""The change of a keyspace's replication: meanwhile its ranges have a private placement.

Other keyspaces may share the placement of the old or the new setting, and do not move. So when the alteration is
prepared, the keyspace gets a private placement: a copy of the old one, split at the ends of both settings. The steps of
the plan change that copy. When the alteration is finished, the copy becomes the placement of the new setting, or is
merged with it. A cancel drops the copy; the old placement never changed.

No other operation is in flight meanwhile: each of them would also change ranges of the copy.

If the new setting already has a placement, each replica keeps the later of its two ``since``: it may be a member there
for long, but not of this keyspace's range.
"""

from __future__ import annotations

from typing import Any

from ringlog.kernel.model.outcome import EntryContext
from ringlog.kernel.model.state import ClusterState, Operation, Placement, in_order
from ringlog.kernel.operations.plan import alteration_ends, alteration_key
from ringlog.kernel.ownership.deltas import Order
from ringlog.kernel.ownership.placements import later_since, merge, split
from ringlog.kernel.ownership.strategies import ends_of, replication_key
from ringlog.kernel.values import replace


def prepared_alteration(state: ClusterState, operation: Operation) -> dict[str, Any]:
    """Return the changed sections of the state that give the keyspace its private placement."""
    keyspace = state.keyspaces[operation.keyspace]
    assert operation.replication is not None, "an alteration names the new setting"
    key = alteration_key(keyspace.replication, operation.replication)
    assert not keyspace.placement, "a keyspace has at most one alteration"
    assert key not in state.placements, "the private placement does not exist yet"
    shared = state.placements[replication_key(keyspace.replication)]
    ends = alteration_ends(state, keyspace.replication, operation.replication)
    copy = _in_order(state, split(replace(shared, key=key), ends))
    assert copy.ends == ends, "the copy is split at the range ends of both replications"
    return {
        "placements": state.placements.set(key, copy),
        "keyspaces": state.keyspaces.set(keyspace.name, replace(keyspace, placement=key)),
    }


def altered(state: ClusterState, operation: Operation, context: EntryContext) -> dict[str, Any]:
    """Return the changed sections that put the keyspace under its new setting, when its placement has reached that
    layout.
    """
    keyspace = state.keyspaces[operation.keyspace]
    old, new = keyspace.replication, operation.replication
    assert new is not None, "an alteration names the new setting"
    own = state.placements[keyspace.placement]
    wanted = ends_of(new, tuple(sorted(state.token_owners)))
    own = _in_order(state, replace(merge(own, set(own.ends).difference(wanted)), key=replication_key(new)))
    assert own.ends == wanted, "the ranges equal those of the new replication"
    there = state.placements.get(own.key)
    placements = state.placements.delete(keyspace.placement)
    placements = placements.set(own.key, own if there is None else _joined(there, own))
    keyspaces = state.keyspaces.set(
        keyspace.name, replace(keyspace, replication=new, placement="", version=context.state_id)
    )
    if there is not None:
        for name, one in in_order(keyspaces):
            if not one.placement and replication_key(one.replication) == own.key:
                keyspaces = keyspaces.set(name, replace(one, joined=context.epoch))
    if all(replication_key(other.replication) != replication_key(old) for other in keyspaces.values()):
        placements = placements.delete(replication_key(old))
    return {"placements": placements, "keyspaces": keyspaces, "schema_version": context.state_id}


def _in_order(state: ClusterState, own: Placement) -> Placement:
    """Return the placement with every group in the order of a walk from its range: splits and merges moved the ends."""
    order = Order(state.nodes)
    ranges = tuple(
        replace(group, read=order.sorted(group.end, group.read), write=order.sorted(group.end, group.write))
        for group in own.ranges
    )
    return replace(own, ranges=ranges)


def _joined(there: Placement, own: Placement) -> Placement:
    """Return one placement for all keyspaces of a setting, from two with the same layout."""
    assert (there.key, there.ends) == (own.key, own.ends), "equal replications have equal ranges"
    ranges = tuple(
        replace(
            group,
            read=later_since(group.read, other.read),
            write=later_since(group.write, other.write),
            changed=max(group.changed, other.changed),
        )
        for group, other in zip(there.ranges, own.ranges, strict=True)
    )
    return replace(there, ranges=ranges)
