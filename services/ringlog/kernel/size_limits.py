"""Whatever is accepted, every reader can carry: the size of what follows from a command is bounded as it is decided.

An applied entry cannot be taken back, and the publisher tells every epoch, in order. A change record above the limit
of its topic would therefore stop all change topics for ever, whatever command came after it. So ``decide`` weighs what
a command changed, here, once for all commands.

A *weight* is an upper bound of the bytes of the Avro record and its key that the publisher makes of an item
(``kernel.changes``, ``wire.changes``). The kernel knows no Avro; ``tests/wire/test_carried.py`` holds the encoder
against the weights, and against the largest of what is not weighed. Weights are part of the fold: they are made of the
state alone, never of the schemas, so that a field that a later release adds to a record changes no decision.
``CHANGE_BYTES_MAX`` leaves half a megabyte below the limit of the topics (2 MiB) for such fields, for keys and for the
broker's own framing.

===============  ====================================================================================================
schema           see ``kernel.schema.sizes``
writers          positions: the generation that closes next records the greatest of all of them
placements       everybody, under ``entire``: weighed as nodes come, so that no later stage is refused for it
zones            all partitions that one entry changes, since they are published in one transaction; and how many data
                 nodes all zones name, which each snapshot carries
===============  ====================================================================================================

The rest has bounds of its own that make its records small enough: tokens and features of a node, tokens and words of
an operation, 4,096 streams in a range, 64 replicas in each of 64 datacenters, twice while they change, 64 nodes in
each configuration of a partition of a zone, of which it has at most 24, 10,000 data nodes in a zone. So is the key of
a replication, which stands in every record of a range (``commands.schema.keyspaces``).

No step of an operation in flight, and no close of a generation, makes anything larger than what was weighed when the
operation was admitted or the position was reported: what has begun is never refused for its size half-way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.commands.schema.keyspaces import REPLICATION_BYTES_MAX
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import NO_MEMBER, ClusterState
from ringlog.kernel.model.zones import REPLICAS_MAX, ZoneLink, ZonePartition, ZoneStep, partition_key
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.schema import sizes
from ringlog.kernel.values import Command

CHANGE_BYTES_MAX: Final = sizes.RECORD_BYTES_MAX
"""The most that one record of a change topic may weigh."""

PARTITIONS_BYTES_MAX: Final = sizes.CHANGED_BYTES_MAX
"""The most that partitions of a zone may weigh that one entry changes."""

NAMED_NODES_MAX: Final = 1_000_000
"""The most data nodes that all zones name together."""

_RECORD, _MEMBER, _POSITION = sizes.RECORD, 128, 24
"""Bytes for the small fields of a record; for a node in the read and in the write group of a range; for a position."""


def too_large(before: ClusterState, after: ClusterState, command: Command) -> Rejected | None:
    """What ``command`` made too large, named with its size and the bound; None if nothing. Costs what it changed."""
    if after.writers is not before.writers and (refused := _positions(after)) is not None:
        return refused
    if sizes.is_changed(before, after) and (refused := sizes.too_large(before, after, command)) is not None:
        return refused
    if after.zones is not before.zones and (refused := _zones(before, after, command)) is not None:
        return refused
    came = after.nodes is not before.nodes or after.keyspaces is not before.keyspaces
    return _placements_too_large(after) if came or after.operations is not before.operations else None


def _refusal(subject: str, size: int, most: int, then: str) -> Rejected | None:
    if size <= most:
        return None
    return Rejected("too_large", f"{subject} could have {size:,} bytes, readers carry at most {most:,}: {then}")


# ------------------------------------------------------------------------------------- positions and everybody


def _positions(state: ClusterState) -> Rejected | None:
    """The positions that the close of a generation could record now: of each partition that any writer names one."""
    count = sum([len(writer.positions) for writer in state.writers.values()])
    if _RECORD + _POSITION * count <= CHANGE_BYTES_MAX:
        return None
    # Positions are kept by ascending partition, thus many writers of the same partitions count once.
    highest = max(writer.positions[-1].partition for writer in state.writers.values() if writer.positions)
    subject, then = "positions: the record of the generation that closes next", "name only partitions of the CDC topic"
    return _refusal(subject, _RECORD + _POSITION * min(count, highest + 1), CHANGE_BYTES_MAX, then)


def _placements_too_large(state: ClusterState) -> Rejected | None:
    """The record of a range that everybody has, as it is at most while those who are there come, stay or go."""
    keys = 4 * REPLICATION_BYTES_MAX
    if _RECORD + keys + _MEMBER * len(state.nodes) <= CHANGE_BYTES_MAX:
        return None
    used = [keyspace.replication for keyspace in state.keyspaces.values()]
    used += [operation.replication for operation in state.operations.values() if operation.replication is not None]
    if not any(strategy_of(replication).is_everywhere for replication in used):
        return None
    members = sum(node.state not in NO_MEMBER for node in state.nodes.values())
    subject = f"placement: the record of a range with {members:,} members"
    then = "with that number of nodes no keyspace can be on all of them"
    return _refusal(subject, _RECORD + keys + _MEMBER * members, CHANGE_BYTES_MAX, then)


# --------------------------------------------------------------------------------------------------------- zones

_PARTITION, _NAMED = 512, 64
"""Bytes for the small fields of a partition of a zone, its key included; for the id of a node, or the marks of a
configuration.
"""

_PARTITION_MOST = _PARTITION + 26 * _NAMED * (REPLICAS_MAX + 1) + 4 * REASON_LENGTH_MAX
"""What a partition weighs at most: 24 configurations, nodes to take out and to put back, a reason."""


def weight_of_partition(partition: ZonePartition) -> int:
    """Upper bound of the record of a partition of a zone."""
    alone = (partition.stable, partition.reached, partition.planned)
    steps: list[ZoneStep | ZoneLink] = [one for one in (*alone, *partition.pending, *partition.chain) if one]
    if partition.cancel is not None:
        steps += [partition.cancel.old, partition.cancel.new]
    named = len(partition.reduce) + len(partition.append)
    return (
        _PARTITION
        + sizes.text(partition.reason)
        + _NAMED * (named + len(steps) + sum([len(one.nodes) for one in steps]))
    )


def changed_partitions(before: ClusterState, after: ClusterState, command: Any) -> Iterable[ZonePartition]:
    """The partitions of a zone that are new, or other objects than before: all are of the zone that is named."""
    if after.zone_partitions is before.zone_partitions:
        return ()
    named = getattr(command, "partition", None)  # which changes no other
    numbers = range(after.zones[command.zone].partitions) if named is None else (named,)
    keys = [partition_key(command.zone, number) for number in numbers]
    pairs = [(after.zone_partitions[key], before.zone_partitions.get(key)) for key in keys]
    return [one for one, known in pairs if one is not known]


def _zones(before: ClusterState, after: ClusterState, command: Command) -> Rejected | None:
    zone = after.zones.get(getattr(command, "zone", ""))
    if zone is None:
        return None  # it was dropped
    known = before.zones.get(zone.name)
    if len(zone.nodes) > (0 if known is None else len(known.nodes)):
        named = sum([len(one.nodes) for one in after.zones.values()])
        if named > NAMED_NODES_MAX:
            why = f"nodes: all zones would name {named:,} data nodes, and {NAMED_NODES_MAX:,} at most"
            return Rejected("too_many", why)
    if zone.partitions * _PARTITION_MOST <= PARTITIONS_BYTES_MAX:
        return None
    total = sum([weight_of_partition(one) for one in changed_partitions(before, after, command)])
    then = "name fewer partitions, or make a smaller zone"
    return _refusal("partitions: the records that change", total, PARTITIONS_BYTES_MAX, then)
