"""Nodes' rows and answers, compared with every accepted write: none is missing, and none is added.

Newer writes of a partition supersede older ones. The model of that covers only the writes of the simulated load: no
static columns, no collections, no times to live.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import combinations
from typing import TYPE_CHECKING

from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Placement, RangeGroup
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.tablets.groups import group_of, map_of
from ringlog.node.rows.replica import NotReady, NotServed, RowFetch
from ringlog.protocol.rebalancer.zone_groups import SESSIONS
from ringlog.wire.data import RowVersion
from ringlog.wire.records import Mutation, NodeAck
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.cdc.accepted import NAME, AcceptedWrites
from ringlog_sim.checks.ring.movements import movements
from ringlog_sim.devices.memo import cached_mutation
from ringlog_testing.placement.layout import holds, key_of

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.simulation import Simulation


def lost_writes(needed: Iterable[bytes], kept: Set[bytes]) -> list[bytes]:
    """Return the needed writes of a table that are neither stored nor superseded by stored ones."""
    absent = [value for value in needed if value not in kept]
    if not absent:
        return []
    of_partition: dict[tuple[bytes | None, ...], list[Mutation]] = {}
    for write in map(cached_mutation, kept):
        of_partition.setdefault(write.partition_key, []).append(write)
    return [value for value in absent if not _has_newer(cached_mutation(value), of_partition)]


def _has_newer(write: Mutation, of_partition: Mapping[tuple[bytes | None, ...], Sequence[Mutation]]) -> bool:
    return is_superseded(write, of_partition.get(write.partition_key, ()))


def is_superseded(write: Mutation, others: Iterable[Mutation]) -> bool:
    """Return True if every part of a write has a newer counterpart in the others."""
    newer = [other for other in others if other.timestamp >= write.timestamp]
    of_row = [other for other in newer if other.clustering_key == write.clustering_key]
    if any(other.operation == "PARTITION_DELETE" for other in newer):
        return True
    if write.operation == "PARTITION_DELETE":
        return False
    if any(other.operation == "ROW_DELETE" for other in of_row):
        return True
    if write.operation not in ("INSERT", "UPDATE"):
        return False
    if write.operation == "INSERT" and all(other.operation != "INSERT" for other in of_row):
        return False
    return all(
        any(
            cell.column == given.column
            and (other.timestamp, given.value or b"") >= (write.timestamp, cell.value or b"")
            for other in of_row
            for given in other.cells
        )
        for cell in write.cells
    )


RING = ((0, 0),)
ACCEPTED = "accepted writes"
"""The key under which other checks find the accepted writes."""


class RowsCheck(Check):
    """A read replica has every accepted write of its ranges below its positions. No node has rows of other ranges.

    A stream has every accepted write below the receiver's positions, and its report must match. A superseded write may
    be missing (``is_superseded``).
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._writes = sim.shared[ACCEPTED] = AcceptedWrites(sim)
        self._placed: dict[str, tuple[object, object] | None] = {}
        self._parts: dict[tuple[str, str], dict[tuple[str, str], Sequence[RowVersion]]] = {}
        self._has_been_down = False
        self._probed = 0

    def begin(self, state: ClusterState) -> None:
        """Record the rules at the start of the run."""
        self._writes.changed(EMPTY_STATE, state)

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Record changed rules."""
        self._writes.changed(before, after)
        self._has_been_down |= before.nodes is not after.nodes and any(
            node.down or node.state == "left" for node in after.nodes.values()
        )

    def began(self, node: str) -> None:
        """Forget the rows received before a restart."""
        self._placed[node] = None
        for key in [key for key in self._parts if key[0] == node]:
            del self._parts[key]

    def adopted(self, node: str, state: ClusterState) -> None:
        """Check the rows after every change of groups, and read one partition."""
        placed = self._placed[node]
        if placed is None or placed[0] is not state.placements or placed[1] is not state.tablets:
            self._placed[node] = (state.placements, state.tablets)
            self._inspect(self.node(node))
        self._probe(self.node(node))

    def read(self, node: str, table: str, key: bytes, epoch: int, found: frozenset[bytes]) -> None:
        """Check that a reader sees exactly the accepted writes."""
        if table != NAME:
            return
        self._writes.observe()
        state = self.node(node).row_replica.state
        group = _group(_groups(state), token_of(key))
        if group is None or node not in [replica.node for replica in group.read]:
            self._broken(node, f"answered {key!r} at {epoch}, but is not a read replica")
        positions = self.node(node).row_replica.positions
        writes = [written for written in self._writes.records if written.key == key]
        if not found <= {written.value for written in writes if written.counts}:
            self._broken(node, f"answered {key!r} with writes that no client sent or that were rejected")
        needed = {w.value: w for w in writes if w.counts and w.offset < positions.get(w.partition, 0)}
        for value in lost_writes(needed, found):
            self._lacks(node, f"{needed[value].write} in its answer of {key!r} at {epoch}")

    def received(self, node: str, fetch: RowFetch, versions: Sequence[RowVersion]) -> None:
        """Check a stream: it has only rows of the requested ranges, and every accepted one that the receiver will not
        read.
        """
        self._writes.observe()
        for version in versions:
            if not any(holds(start, end, version.token) for start, end in fetch.ranges):
                self._broken(node, f"received {version.partition_key!r} of another range for {fetch.operation}")
        sent, positions = {version.value for version in versions}, dict(fetch.positions)
        placement = _placement(self.node(node).row_replica.state)
        if placement is not None and placement.key == fetch.replication:
            needed = {
                written.value: written
                for written in self._writes.records
                if written.counts
                and written.offset < positions.get(written.partition, 0)
                and any(holds(start, end, written.token) for start, end in fetch.ranges)
            }
            for written in map(needed.__getitem__, lost_writes(needed, sent)):
                self._lacks(node, f"{written.key!r} of offset {written.offset}, not sent for {fetch.operation}")
        self._parts.setdefault((node, fetch.operation), {})[fetch.source, fetch.replication] = versions
        self._inspect(self.node(node))

    def acked(self, ack: NodeAck) -> None:
        """Check a report: it describes the last rows of each source.

        If a node was declared down, it may describe a part of the sources, because sources are then chosen again.
        """
        for report in ack.reports:
            if report.operation.startswith(SESSIONS):
                continue
            parts = self._parts.get((ack.node, report.operation), {})
            may_lack = list(parts) if self._has_been_down else []
            wanted = []
            for count in range(len(may_lack) + 1):
                for lacks in combinations(may_lack, count):
                    some = [part for stream, part in parts.items() if stream not in lacks]
                    wanted.append((sum(map(len, some)), _digest(some)))
            if (report.rows, report.checksum) not in wanted:
                rows, digest = wanted[0]
                self._broken(ack.node, f"reports {report}, but received {rows} rows with checksum {digest}")

    def quiet(self) -> None:
        """Check that every running node has everything."""
        self._writes.observe()
        for _, node in sorted(self.sim.shared["nodes"].items()):
            if node.starts:
                self._inspect(node)

    # ------------------------------------------------------------------------------------------- internals

    def _probe(self, node: SimNode) -> None:
        """Read one of the known partitions, each time another one."""
        if not self._writes.records:
            return
        self._probed += 1
        key = self._writes.records[self._probed % len(self._writes.records)].key
        try:
            epoch, versions = node.row_replica.read(NAME, key)
        except (NotReady, NotServed):
            return
        found = frozenset(version.value for version in versions)
        for check in self.sim.on_read:
            check.read(node.registration.id, NAME, key, epoch, found)

    def _inspect(self, node: SimNode) -> None:
        """Check all rows of a node at the epoch that it serves."""
        self._writes.observe()
        row_replica, state = node.row_replica, node.row_replica.state
        me = node.registration.id
        stored = [version for version in row_replica.store.versions(RING) if version.table == NAME]
        groups = _groups(state)
        for version in stored:
            group = _group(groups, version.token)
            if group is None or me not in [replica.node for replica in group.write]:
                self._broken(me, f"stores {version.partition_key!r} at epoch {state.epoch}, but is not a replica")
        values = {version.value for version in stored}
        if not values <= self._writes.must():
            self._broken(me, "stores rows that no client wrote or that were rejected")
        positions = row_replica.positions
        needed = {
            one.value: one
            for one in self._writes.records
            if one.counts and one.offset < positions.get(one.partition, 0)
        }
        for written in map(needed.__getitem__, lost_writes(needed, values)):
            group = _group(groups, written.token)
            if group is not None and me in [replica.node for replica in group.read]:
                self._lacks(me, f"{written.key!r} of {written.partition}/{written.offset} at epoch {state.epoch}")

    def _lacks(self, node: str, detail: str) -> None:
        """Report missing rows, unless a node was assassinated, which ends the guarantee."""
        if not movements(self.sim).forfeited:
            self._broken(node, f"lacks {detail}")

    def _broken(self, node: str, detail: str) -> None:
        self.sim.broken("rows", f"{self.node(node).name} {detail}")


def _placement(state: ClusterState) -> Placement | None:
    """Return the placement of the load's keyspace, or None if it has no ranges."""
    keyspace = state.keyspaces.get(NAME.split(".", 1)[0])
    return state.placements.get(keyspace.placement or key_of(keyspace.replication)) if keyspace is not None else None


def _groups(state: ClusterState) -> tuple[RangeGroup, ...]:
    """Return the read and write groups of the load's table: ranges of its keyspace, or its own tablets."""
    table = state.tables.get(NAME)
    tablets = map_of(state, table) if table is not None else None
    if tablets is not None:
        return tuple(group_of(tablets.tablet(index)) for index in range(tablets.count))
    placement = _placement(state)
    return placement.ranges if placement is not None else ()


def group_of_token(state: ClusterState, token: int) -> RangeGroup | None:
    """Return the read and write group of a key of the load's table."""
    return _group(_groups(state), token)


def _group(groups: tuple[RangeGroup, ...], token: int) -> RangeGroup | None:
    """Return the range with the token, by linear search."""
    return next((group for group in groups if holds(group.start, group.end, token)), None)


def _digest(parts: Iterable[Sequence[RowVersion]]) -> str:
    """Return the checksum for a report of streams: one hash over their hashes, also without streams."""
    each = sorted(map(_checksum, parts))
    return hashlib.sha256("".join(each).encode()).hexdigest()


def _checksum(versions: Iterable[RowVersion]) -> str:
    """Return the hash of every field of every version.

    Each field has its length in front (four bytes). Three numbers of eight bytes follow.
    """
    data = b""
    for version in versions:
        keys = [b"\0" if part is None else b"\1" + part for part in version.clustering_key]
        for part in (version.table.encode(), version.partition_key, version.value, *keys):
            data += len(part).to_bytes(4, "big") + part
        for number in (len(keys), version.token, version.timestamp):
            data += (number % 2**64).to_bytes(8, "big")
    return hashlib.sha256(data).hexdigest()
