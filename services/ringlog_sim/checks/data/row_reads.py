"""Reads of rows, compared with every accepted write.

A read at a position must return all accepted writes below it. A read at QUORUM must return everything that an earlier
read at QUORUM returned. The check derives the permitted replicas from the log's own states. A node counts if it was a
read replica of the key at every epoch from its answer to the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ringlog.client.data.plans import Level
from ringlog.client.data.row_reads import FoundPartition
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Micros, NodeId
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.cdc.accepted import AcceptedWrites, WrittenRecord
from ringlog_sim.checks.data.rows import ACCEPTED, group_of_token, lost_writes
from ringlog_sim.checks.ring.movements import movements

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


class RowReadsCheck(Check):
    """The reads of rows of the load's table."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._seen: dict[bytes, list[tuple[Micros, frozenset[bytes]]]] = {}

    def found_rows(self, begun: Micros, at: Mapping[int, int], found: FoundPartition) -> None:
        """Check a read that began at ``begun`` and has now succeeded."""
        accepted: AcceptedWrites = self.sim.shared[ACCEPTED]
        accepted.observe()
        same_key = [written for written in accepted.records if written.key == found.partition_key and written.counts]
        writes = frozenset(found.writes)
        if not writes <= {written.value for written in same_key}:
            self._broken(found, "returns rows that no client wrote or that were rejected")
        below = _below(same_key, found.positions)
        self._lacks(found, lost_writes(_below(same_key, at), writes), f"is read at {dict(at)}")
        self._lacks(found, lost_writes(below, writes), f"reports the positions {dict(found.positions)}")
        if found.lacking:
            self._lacks(found, below, f"reports losses in {found.lacking}")
        if found.plan.request.level is Level.QUORUM:
            before = frozenset[bytes]().union(
                *(seen for ended, seen in self._seen.get(found.partition_key, ()) if ended < begun)
            )
            self._lacks(found, lost_writes(before, writes), "an earlier read returned it")
            self._seen.setdefault(found.partition_key, []).append((self.sim.world.now, writes & below))
        self._check_answers(found)

    def _check_answers(self, found: FoundPartition) -> None:
        token = token_of(found.partition_key)
        for answer in found.answers:
            for epoch in range(answer.epoch, found.epoch + 1):
                if answer.node not in self._readers(epoch, token):
                    self._broken(found, f"counts {answer}, which is not a read replica at epoch {epoch}")
        readers = self._readers(found.epoch, token)
        counted = {answer.node for answer in found.answers} & set(readers)
        needed = len(readers) // 2 + 1 if found.plan.request.level is Level.QUORUM else 1
        if len(counted) < needed:
            self._broken(found, f"counts {sorted(counted)} of {sorted(readers)}")

    def _readers(self, epoch: int, token: int) -> tuple[NodeId, ...]:
        group = group_of_token(self.sim.log.states[epoch], token)
        return () if group is None else tuple(replica.node for replica in group.read)

    def _lacks(self, found: FoundPartition, writes: Iterable[bytes], why: str) -> None:
        """Report a missing row, unless a node was assassinated, which ends the guarantee."""
        if any(True for _ in writes) and not movements(self.sim).forfeited:
            self._broken(found, f"lacks a row, and {why}")

    def _broken(self, found: FoundPartition, detail: str) -> None:
        self.sim.broken("row_reads", f"a read of {found.partition_key!r} at epoch {found.epoch} {detail}")


def _below(records: Iterable[WrittenRecord], positions: Mapping[int, int]) -> frozenset[bytes]:
    return frozenset(one.value for one in records if one.offset < positions.get(one.partition, 0))
