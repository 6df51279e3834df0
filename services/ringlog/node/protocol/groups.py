"""What a node says of the partitions of zones that it is a member of; the words are those of ``protocol.zone_groups``.

A node that is a member starts a replica. What that is, the port ``GroupReplicas`` leaves open: the reference nodes have
``NoRows``, since the rows of a zone are in tablets, which have stages and reports of their own, and a step waits for
these beside the words (``kernel.zones.data``); those of the simulator take their time. Words follow from the
folded state alone, but for two things: a node that comes says *has* only when its replica runs, and nobody says it of a
revision above the epoch that is on the disk. A node that crashes after its word would else come back as one that never
saw the step.

A word is said as long as it is so, for at most ``WORDS_MAX`` partitions, the first ones by name and number: as these
come to rest, others follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

from immutables import Map

from ringlog.kernel.state import ClusterState, Node, in_order
from ringlog.kernel.values import Epoch, NodeId, StreamReport
from ringlog.kernel.zones.change import partitions_of
from ringlog.kernel.zones.model import HIGH_AVAILABILITY, Zone, ZonePartition
from ringlog.kernel.zones.resets import has_quorum, members
from ringlog.protocol.tablet_steps import NOTHING
from ringlog.protocol.zone_groups import COPY, FAILED, HAS, RETURNED, before, coming, session

WORDS_MAX: Final = 5_000


class GroupReplicas(Protocol):
    """The replicas of partitions on one node: a port."""

    def runs(self, partition: ZonePartition) -> bool:
        """True once this node's replica can follow the pending step; starts it if it must. The one who waits is
        woken when it runs.
        """

    def fails(self, partition: ZonePartition) -> bool:
        """True once it is certain that this node's replica, asked for before, can never follow the pending step. The
        one who waits is woken then, too.
        """

    def log(self, partition: ZonePartition) -> int:
        """The length of the log that this node has of a partition; 0 or more."""


class NoRows:
    """Replicas without data: they run as soon as they are asked for."""

    def runs(self, partition: ZonePartition) -> bool:  # noqa: ARG002
        """At once."""
        return True

    def fails(self, partition: ZonePartition) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def log(self, partition: ZonePartition) -> int:  # noqa: ARG002
        """Of nothing."""
        return 0


class Member:
    """One node as a member of groups, for one life of it and for one thread."""

    def __init__(self, node: NodeId, replicas: GroupReplicas) -> None:
        self._node = node
        self._replicas = replicas
        self._of: tuple[Map[str, ZonePartition], Map[str, Node]] = (Map(), Map())
        self._own: tuple[tuple[Zone, ZonePartition], ...] = ()

    def words(self, state: ClusterState, epoch: Epoch) -> tuple[StreamReport, ...]:
        """What there is to say under this state, with ``epoch`` on the disk."""
        if not state.zones:
            return ()
        if self._of[0] is not state.zone_partitions or self._of[1] is not state.nodes:
            self._of, self._own = (state.zone_partitions, state.nodes), tuple(self._concerned(state))
        return tuple(islice(self._words(state, epoch), WORDS_MAX))

    def _concerned(self, state: ClusterState) -> Iterator[tuple[Zone, ZonePartition]]:
        """The partitions that this node may have to say something of."""
        for _, zone in in_order(state.zones):
            if not zone.moving and zone.mode != HIGH_AVAILABILITY:
                continue
            for one in partitions_of(state, zone):
                if self._node in members(one):
                    yield zone, one

    def _words(self, state: ClusterState, epoch: Epoch) -> Iterator[StreamReport]:
        for zone, one in self._own:
            word = self._on_the_step(one, epoch) if one.pending else ""
            if word:
                yield StreamReport(self._node, session(one, word), 0, NOTHING)
            lost = zone.mode == HIGH_AVAILABILITY and one.reached is not None and not has_quorum(state, zone, one)
            if lost and self._node in members(one):
                yield StreamReport(self._node, session(one, COPY), self._replicas.log(one), NOTHING)

    def _on_the_step(self, one: ZonePartition, epoch: Epoch) -> str:
        """The word on the pending step; empty while there is none."""
        comes = self._node in coming(one)
        if not comes and self._node not in (*before(one), *one.pending[0].nodes):
            return ""
        if one.cancel is not None:
            return RETURNED
        if one.revisions.pending > epoch or (comes and not self._replicas.runs(one)):
            return FAILED if comes and self._replicas.fails(one) else ""
        return HAS
