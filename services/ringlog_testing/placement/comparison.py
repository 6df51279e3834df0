"""The comparison of a state with the independent model, and the share of the ring that each node has."""

from __future__ import annotations

from collections.abc import Iterator

from ringlog.kernel.model.state import ClusterState, Replica
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Value
from ringlog_testing.placement.layout import SeenRange
from ringlog_testing.placement.movements import Movements

RING = 2**64
"""The number of tokens."""


class RingShares(Value):
    """The shares of the ring that the nodes of a placement read, as fractions. A node in each range has 1."""

    key: str
    nodes: int
    least: float
    mean: float
    most: float


def shares(state: ClusterState) -> Iterator[RingShares]:
    """Yield the shares of each placement of a state, over all nodes that own tokens."""
    members = sorted(set(state.token_owners.values()))
    for key, placement in sorted(state.placements.items()):
        owned = dict.fromkeys(members, 0)
        for group in placement.ranges:
            size = (group.end - group.start) % RING or RING
            for replica in group.read:
                owned[replica.node] = owned.get(replica.node, 0) + size
        found = [size / RING for size in owned.values()]
        if found:
            yield RingShares(key, len(found), min(found), sum(found) / len(found), max(found))


def unsafe_groups(state: ClusterState) -> Iterator[str]:
    """Yield the ranges that break an invariant of any ring, without the model.

    Readers are also writers, no group has a node twice, and a write group is a read group if nothing is in flight.
    """
    is_quiet = not in_flight(state)
    for key, placement in sorted(state.placements.items()):
        for group in placement.ranges:
            where = f"epoch {state.epoch}, {key}: the range to {group.end}"
            read, write = [one.node for one in group.read], [one.node for one in group.write]
            if not set(read) <= set(write):
                yield f"{where} is read from nodes that are not written"
            if len(set(write)) != len(write) or len(set(read)) != len(read):
                yield f"{where} has a node twice"
            if is_quiet and set(read) != set(write):
                yield f"{where} is written to other nodes than it is read from, without an operation in flight"


def placement_faults(state: ClusterState, record: Movements) -> Iterator[str]:
    """Yield differences between the live placements and those of the model."""
    if set(state.placements) != set(record.layouts):
        yield f"epoch {state.epoch}: there are placements of {sorted(state.placements)}"
        return
    for key, layout in sorted(record.layouts.items()):
        placement = state.placements[key]
        ends = tuple(sorted(layout))
        where = f"epoch {state.epoch}, {key}"
        if placement.ends != ends or tuple(group.end for group in placement.ranges) != ends:
            yield f"{where}: the ranges end at {placement.ends}, not at {ends}"
            continue
        for index, group in enumerate(placement.ranges):
            if group.start != ends[index - 1]:
                yield f"{where}: the range to {group.end} begins at {group.start}"
            span = layout[group.end]
            found = SeenRange(_members(group.read), _members(group.write), group.changed)
            if _listed(found) != _listed(span):
                yield f"{where}: the range to {group.end} is {found}, expected {span}"


def owner_faults(state: ClusterState, record: Movements) -> Iterator[str]:
    """Yield differences between the owned tokens and those of the model."""
    if dict(state.token_owners) != record.owners:
        yield f"epoch {state.epoch}: token owners differ from the entries"
    for node in state.nodes.values():
        own = tuple(sorted(token for token, owner in record.owners.items() if owner == node.id))
        if node.tokens != own:
            yield f"epoch {state.epoch}: {node.name} shows the tokens {node.tokens}"


def _members(group: tuple[Replica, ...]) -> dict[str, int]:
    return {replica.node: replica.since for replica in group}


def _listed(span: SeenRange) -> tuple[object, ...]:
    """Return the range as tuples, including the order of the members."""
    return tuple(span.read.items()), tuple(span.write.items()), span.changed
