"""A node's reports on the partitions of zones that it is a member of; their kinds are those of
``protocol.rebalancer.zone_groups``.

A node that is a member has a replica. What that is, the port ``GroupReplicas`` leaves open; ``node.protocol.followers``
is it, on the rows of the node. Words follow from the folded state, and from what the replica has: nobody says *has* of
a step before his replica follows it, nor of a revision above the epoch that is on the disk. A node that crashes after
its word would else come back as one that never saw the step. Rows of a zone are in tablets, which have stages and
reports of their own; a step waits for these beside the words (``kernel.zones.data``).

A word is said as long as it is so, for at most ``REPORTS_MAX`` partitions, the first ones by name and number: as these
come to rest, others follow. Last come those whose step waits for the dead, which may never rest. A node whose replicas
have failed says that alone, where it is the one that comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final, Protocol

from immutables import Map

from ringlog.kernel.model.state import ClusterState, Node, in_order
from ringlog.kernel.model.zones import Zone, ZonePartition, mode_of
from ringlog.kernel.values import Epoch, NodeId, StreamReport
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.resets import can_go_on, members
from ringlog.node.protocol.followers import Step, step_of
from ringlog.protocol.coordinator.tablet_steps import NOTHING
from ringlog.protocol.rebalancer.zone_groups import COPY, FAILED, HAS, RETURNED, before, coming, session
from ringlog.protocol.rebalancer.zone_waits import hopeless

REPORTS_MAX: Final = 5_000


class GroupReplicas(Protocol):
    """The replicas of partitions on one node: a port."""

    def follows(self, partition: ZonePartition) -> bool:
        """True once this node's replica has everything that its group had when the pending step began; starts it if it
        must. Who asks is woken now and then.
        """

    def failure(self) -> int | None:
        """The number of the cause why no replica of this node can ever follow anything more; None as long as they can.
        Who asks is woken when they fail.
        """

    def log(self, partition: ZonePartition) -> int:
        """The length of the log that this node has of a partition; 0 or more, and never less than before."""

    def only(self, steps: Collection[Step]) -> None:
        """The node takes part in these steps, and in no others any more: what else runs may stop."""


class Member:
    """One node as a member of groups, for one life of it and for one thread."""

    def __init__(self, node: NodeId, replicas: GroupReplicas) -> None:
        self._node = node
        self._replicas = replicas
        self._of: tuple[Map[str, ZonePartition], Map[str, Node]] = (Map(), Map())
        self._own: tuple[tuple[Zone, ZonePartition], ...] = ()

    def reports(self, state: ClusterState, epoch: Epoch) -> tuple[StreamReport, ...]:
        """Return the reports under this state, with ``epoch`` on the disk."""
        if not state.zones:
            return ()
        if self._of[0] is not state.zone_partitions or self._of[1] is not state.nodes:
            concerned = list(self._concerned(state))
            if len(concerned) > REPORTS_MAX:
                concerned.sort(key=lambda own: _waits_for_dead_nodes(state, own[1]))
            self._of, self._own = (state.zone_partitions, state.nodes), tuple(concerned)
            self._replicas.only([step_of(one) for _, one in self._own if one.pending])
        return tuple(islice(self._step_reports(state, epoch), REPORTS_MAX))

    def _concerned(self, state: ClusterState) -> Iterator[tuple[Zone, ZonePartition]]:
        """Yield the partitions on which this node may have to report."""
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
                if one.pending and one.cancel is None and self._node in coming(one):
                    yield StreamReport(self._node, session(one, FAILED), failure, NOTHING)
                continue
            kind = self._report_kind(one, epoch) if one.pending else ""
            if kind:
                length = self._replicas.log(one) if kind == HAS else 0
                yield StreamReport(self._node, session(one, kind), length, NOTHING)
            lost = mode_of(zone).resets_itself and one.reached is not None and not can_go_on(state, zone, one)
            if lost and self._node in members(one):
                yield StreamReport(self._node, session(one, COPY), self._replicas.log(one), NOTHING)

    def _report_kind(self, one: ZonePartition, epoch: Epoch) -> str:
        """Return the kind of the report on the pending step, or the empty text while there is none."""
        if self._node not in (*before(one), *one.pending[0].nodes):
            return ""
        if one.cancel is not None:
            return RETURNED
        return HAS if one.revisions.pending <= epoch and self._replicas.follows(one) else ""


def _waits_for_dead_nodes(state: ClusterState, one: ZonePartition) -> bool:
    """True if the pending step of a partition waits for nodes that are dead."""
    return bool(one.pending) and one.cancel is None and bool(hopeless(state, one))
