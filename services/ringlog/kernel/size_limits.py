"""Size limits: everything that follows from an accepted command must fit its readers.

An applied entry cannot be reverted, and every epoch is published in order. A change record above the limit of its topic
would stop all change topics permanently, and no later command could help. So ``decide`` weighs the changes of each
command here, in one place.

A *weight* is an upper bound of the bytes of an item's Avro record and key as the change publisher writes them
(``kernel.changes``, ``wire.changes``). The kernel does not know Avro. ``tests/wire/test_size_weights.py`` compares the
encoder with the weights, and with the largest of the items that are not weighed. Weights are part of the fold: they
follow from the state alone, never from the schemas. So a field that a later release adds to a record changes no
decision. ``CHANGE_BYTES_MAX`` leaves half a megabyte below the limit of the topics (2 MiB) for such fields, for keys
and for the broker's framing.

===============  ====================================================================================================
schema           see ``kernel.schema.sizes``
writers          positions: the next generation to be closed records the greatest position of each partition
placements       ranges under ``entire``, which all nodes have: weighed as nodes come, so no later stage is refused
zones            all partitions that one entry changes, since they are published in one transaction; and the number of
                 data nodes that all zones name, which each snapshot contains
generations      tables in tablets that a new table would join: dropped ones stay described until a generation closes
===============  ====================================================================================================

Other items have their own bounds, which keep their records small:

- tokens and features of a node, tokens and texts of an operation;
- 4,096 streams in a range;
- 64 replicas in each of 64 datacenters, twice during a change;
- 64 nodes in each of at most 24 configurations of a zone partition, 10,000 data nodes in a zone;
- the key of a replication, which is in every record of a range (``commands.schema.keyspaces``).

A step of an operation in flight, or the close of a generation, never exceeds the weight at its admission or at the
report of the position. So started work is never refused for its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ringlog.kernel.commands.control.plans import ApprovePlan
from ringlog.kernel.commands.rules import REASON_LENGTH_MAX
from ringlog.kernel.commands.schema.keyspaces import REPLICATION_BYTES_MAX
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import NO_MEMBER, ClusterState
from ringlog.kernel.model.zones import REPLICAS_MAX, ZoneLink, ZonePartition, ZoneStep, partition_key
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.schema import sizes
from ringlog.kernel.values import Command

CHANGE_BYTES_MAX: Final = sizes.RECORD_BYTES_MAX
"""The maximum weight of one record of a change topic."""

PARTITIONS_BYTES_MAX: Final = sizes.CHANGED_BYTES_MAX
"""The maximum weight of all zone partitions that one entry changes."""

NAMED_NODES_MAX: Final = 1_000_000
"""The maximum number of data nodes that all zones name together."""

DESCRIBED_RANGES_MAX: Final = 1 << 22
"""The maximum number of ranges of tables in tablets in a generation, including a new table."""

_RECORD, _MEMBER, _POSITION = sizes.RECORD, 128, 24
"""Bytes for the small fields of a record; for a node in the read and in the write group of a range; for a position."""
assert _RECORD + 4 * REPLICATION_BYTES_MAX < CHANGE_BYTES_MAX, "a record of a range has room for members"


def too_large(before: ClusterState, after: ClusterState, command: Command) -> Rejected | None:
    """Return a rejection with size and bound if ``command`` made anything too large. Only changes are weighed."""
    if after.writers is not before.writers and (refused := _positions(after)) is not None:
        return refused
    if sizes.is_changed(before, after) and (refused := sizes.too_large(before, after, command)) is not None:
        return refused
    if after.generations is not before.generations and (refused := _described(before, after)) is not None:
        return refused
    if after.zones is not before.zones and (refused := _zones(before, after, command)) is not None:
        return refused
    came = after.nodes is not before.nodes or after.keyspaces is not before.keyspaces
    return _placements_too_large(after) if came or after.operations is not before.operations else None


def _refusal(subject: str, size: int, most: int, then: str) -> Rejected | None:
    if size <= most:
        return None
    return Rejected("too_large", f"{subject} could have {size:,} bytes, the limit is {most:,}: {then}")


# ------------------------------------------------------------------------------------- positions and everybody


def _positions(state: ClusterState) -> Rejected | None:
    """Check the positions that the close of a generation could record: one for each partition that a writer names."""
    count = sum([len(writer.positions) for writer in state.writers.values()])
    if _RECORD + _POSITION * count <= CHANGE_BYTES_MAX:
        return None
    # Positions are sorted by partition, so ``highest + 1`` bounds the partitions that many writers name together.
    highest = max(writer.positions[-1].partition for writer in state.writers.values() if writer.positions)
    subject, then = "positions: the record of the generation that closes next", "name only partitions of the CDC topic"
    return _refusal(subject, _RECORD + _POSITION * min(count, highest + 1), CHANGE_BYTES_MAX, then)


def _described(before: ClusterState, after: ClusterState) -> Rejected | None:
    """Check the last generation if a new table was added to it. A new generation is never rejected for its size."""
    if not (before.generations and after.generations):
        return None
    known, last = before.generations[-1], after.generations[-1]
    if known.timestamp != last.timestamp or len(last.tables) <= len(known.tables):
        return None
    count = sum([len(one.ends) for one in last.tables])
    if count <= DESCRIBED_RANGES_MAX:
        return None
    why = (
        f"generations: the last generation would have {count:,} ranges of tables, the limit is {DESCRIBED_RANGES_MAX:,}"
    )
    return Rejected("too_many", f"{why}: start the CDC job, which lets a generation without dropped tables follow")


def _placements_too_large(state: ClusterState) -> Rejected | None:
    """Check the record of a range that all nodes replicate, for the largest groups that its members can form."""
    keys = 4 * REPLICATION_BYTES_MAX
    if _RECORD + keys + _MEMBER * len(state.nodes) <= CHANGE_BYTES_MAX:
        return None
    used = [keyspace.replication for keyspace in state.keyspaces.values()]
    used += [operation.replication for operation in state.operations.values() if operation.replication is not None]
    if not any(strategy_of(replication).is_everywhere for replication in used):
        return None
    members = sum(node.state not in NO_MEMBER for node in state.nodes.values())
    subject = f"placement: the record of a range with {members:,} members"
    then = "the cluster has too many nodes for a keyspace with the strategy entire"
    return _refusal(subject, _RECORD + keys + _MEMBER * members, CHANGE_BYTES_MAX, then)


# --------------------------------------------------------------------------------------------------------- zones

_PARTITION, _NAMED = 512, 64
"""Bytes for the small fields of a zone partition, its key included; for the id of a node, or the marks of a
configuration.
"""

_PARTITION_MOST = _PARTITION + 26 * _NAMED * (REPLICAS_MAX + 1) + 4 * REASON_LENGTH_MAX
"""The maximum weight of a partition: 24 configurations, nodes to remove and to add back, a reason."""
assert _PARTITION_MOST <= CHANGE_BYTES_MAX <= PARTITIONS_BYTES_MAX, "the record of one partition is within the limit"


def weight_of_partition(partition: ZonePartition) -> int:
    """Return an upper bound of the record of a zone partition."""
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
    """Return the partitions that are new or replaced. Only a plan changes those of several zones."""
    if after.zone_partitions is before.zone_partitions:
        return ()
    if isinstance(command, ApprovePlan):
        return [one for key, one in after.zone_partitions.items() if before.zone_partitions.get(key) is not one]
    named = getattr(command, "partition", None)  # such a command changes only this partition
    numbers = range(after.zones[command.zone].partitions) if named is None else (named,)
    keys = [partition_key(command.zone, number) for number in numbers]
    pairs = [(after.zone_partitions[key], before.zone_partitions.get(key)) for key in keys]
    return [one for one, known in pairs if one is not known]


def _zones(before: ClusterState, after: ClusterState, command: Command) -> Rejected | None:
    if isinstance(command, ApprovePlan):
        return _partitions_too_large(before, after, command)  # its commands were checked one by one
    zone = after.zones.get(getattr(command, "zone", ""))
    if zone is None:
        return None  # it was dropped
    known = before.zones.get(zone.name)
    if len(zone.nodes) > (0 if known is None else len(known.nodes)):
        named = sum([len(one.nodes) for one in after.zones.values()])
        if named > NAMED_NODES_MAX:
            why = f"nodes: all zones would name {named:,} data nodes, the limit is {NAMED_NODES_MAX:,}"
            return Rejected("too_many", why)
    small = zone.partitions * _PARTITION_MOST <= PARTITIONS_BYTES_MAX
    return None if small else _partitions_too_large(before, after, command)


def _partitions_too_large(before: ClusterState, after: ClusterState, command: Command) -> Rejected | None:
    total = sum([weight_of_partition(one) for one in changed_partitions(before, after, command)])
    then = "name fewer partitions, or create a smaller zone"
    return _refusal("partitions: the records that change", total, PARTITIONS_BYTES_MAX, then)
