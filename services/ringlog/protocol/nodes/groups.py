"""Reports of a node on its zone partitions: those that have it as a member.

The kinds of reports are those of ``protocol.rebalancer.zone_groups``. A member has a replica of the partition, behind
the port ``GroupReplicas``; ``node.protocol.followers`` implements it on the node's rows. Reports follow from the folded
state and from the progress of the replica. Rows of a zone belong to tablets, which have their own stages and reports. A
step waits for both (``kernel.zones.data``).

Invariant: a node reports *has* for a step only when its replica follows the step and the step's revision is at most the
epoch on disk. Otherwise a node that crashes after the report could return without knowing the step.

A report is repeated as long as it holds, for at most ``REPORTS_MAX`` partitions in the order of name and number. Others
follow as these finish. Partitions whose step waits for dead nodes come last, because they may never finish. After a
failure of its replicas, a node reports only the failure, and only for steps that add it to a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final, Protocol

from immutables import Map

from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.model.zones import Zone, ZonePartition, mode_of, partition_key
from ringlog.kernel.values import Epoch, NodeId, StreamReport
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.resets import is_viable, members
from ringlog.protocol.coordinator.tablet_steps import NOTHING
from ringlog.protocol.rebalancer.zone_groups import COPY, FAILED, HAS, RETURNED, added_nodes, previous_nodes, session
from ringlog.protocol.rebalancer.zone_waits import blocking_dead_nodes

REPORTS_MAX: Final = 5_000
"""The limit of reports in one acknowledgement, so that it fits into one record."""

Step = tuple[str, int]
"""The key of a partition, and the revision of its pending step."""


def step_of(partition: ZonePartition) -> Step:
    """Return the pending step of a partition."""
    return partition_key(partition.zone, partition.number), partition.revisions.pending


class GroupReplicas(Protocol):
    """The replicas of partitions on one node: a port."""

    def has_caught_up(self, partition: ZonePartition) -> bool:
        """Return True once the replica has everything that its group had when the pending step began.

        Starts the replica if necessary. The caller is woken periodically.
        """

    def failure(self) -> int | None:
        """Return the number of the cause after which no replica of this node can follow a step, or None.

        The caller is woken when the replicas fail.
        """

    def log_length(self, partition: ZonePartition) -> int:
        """Return the length of this node's log of a partition. It never decreases."""

    def retain_steps(self, steps: Collection[Step]) -> None:
        """Limit the work to these steps. Anything started for other steps may stop."""


class Member:
    """One node as a member of groups, from one start to the next. Not thread-safe."""

    def __init__(self, node: NodeId, replicas: GroupReplicas) -> None:
        self._node = node
        self._replicas = replicas
        self._of: tuple[Map[str, ZonePartition], Map[str, Node]] = (Map(), Map())
        self._own: tuple[tuple[Zone, ZonePartition], ...] = ()

    def reports(self, state: ClusterState, epoch: Epoch) -> tuple[StreamReport, ...]:
        """Return the reports under ``state``.

        Args:
            epoch: The newest epoch that is on disk.
        """
        if not state.zones:
            return ()
        if self._of[0] is not state.zone_partitions or self._of[1] is not state.nodes:
            # Scanning all zones is expensive. Repeat it only when partitions or nodes have changed.
            concerned = list(self._concerned(state))
            if len(concerned) > REPORTS_MAX:
                concerned.sort(key=lambda own: _waits_for_dead_nodes(state, own[1]))
            self._of, self._own = (state.zone_partitions, state.nodes), tuple(concerned)
            self._replicas.retain_steps([step_of(one) for _, one in self._own if one.pending])
        return tuple(islice(self._step_reports(state, epoch), REPORTS_MAX))

    def _concerned(self, state: ClusterState) -> Iterator[tuple[Zone, ZonePartition]]:
        """Yield the partitions that may need a report of this node."""
        for _, zone in in_order(state.zones):
            if not (zone.moving or mode_of(zone).resets_itself):
                continue
            for one in partitions_of(state, zone):
                if self._node in members(one):
                    yield zone, one

    def _step_reports(self, state: ClusterState, epoch: Epoch) -> Iterator[StreamReport]:
        failure = self._replicas.failure()
        for zone, one in self._own:
            if failure is not None:
                if one.pending and one.cancel is None and self._node in added_nodes(one):
                    yield StreamReport(self._node, session(one, FAILED), failure, NOTHING)
                continue
            kind = self._report_kind(one, epoch) if one.pending else ""
            if kind:
                length = self._replicas.log_length(one) if kind == HAS else 0
                yield StreamReport(self._node, session(one, kind), length, NOTHING)
            lost = mode_of(zone).resets_itself and one.reached is not None and not is_viable(state, zone, one)
            if lost and self._node in members(one):
                yield StreamReport(self._node, session(one, COPY), self._replicas.log_length(one), NOTHING)

    def _report_kind(self, one: ZonePartition, epoch: Epoch) -> str:
        """Return the kind of the report on the pending step, or an empty string."""
        if self._node not in (*previous_nodes(one), *one.pending[0].nodes):
            return ""
        if one.cancel is not None:
            return RETURNED
        return HAS if one.revisions.pending <= epoch and self._replicas.has_caught_up(one) else ""


def _waits_for_dead_nodes(state: ClusterState, one: ZonePartition) -> bool:
    """Return True if the pending step of a partition waits for nodes that are dead."""
    return bool(one.pending) and one.cancel is None and bool(blocking_dead_nodes(state, one))
