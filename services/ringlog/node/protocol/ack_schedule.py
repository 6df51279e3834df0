"""The schedule of a node's acknowledgements: at once if a process waits for one, else at a low rate.

=====================  ===============================================================================================
the first one          of a life: who this node is, and that it is back
a gate waits           a stage of an operation or of a tablet began at an epoch that this node has now, and had not
                       acknowledged; and the gate counts this node (``kernel.operations.gates.awaited``; of a tablet,
                       all that have it or are to have it); or a node enters a stage of the metadata service that a
                       quorum must acknowledge, and this one is in its write group
streams                rows have arrived, or were asked for in vain: the coordinator acts on either
the history            the last acknowledged epoch is in the older half of what is remembered: the log cannot vouch for
                       it much longer
now and then           anything newer, ``SELDOM_US`` after the last one: displays and restarts need no more
=====================  ===============================================================================================

So the topic gets one record of a node for each stage that concerns it and one in ``SELDOM_US``, however many epochs a
second there are: 10,000 nodes under 100 epochs a second send 3,400 records a second, not a million.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.model.modes import ServiceMember
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.model.tablet_map import TabletMap, Transition
from ringlog.kernel.operations.gates import awaited
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import MEMBER
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import Epoch, Micros, NodeId, OperationId

SELDOM_US: Final[Micros] = 3_000_000

AckContent = tuple[object, ...]
"""The parts of an acknowledgement, beside its epoch, on which other processes act."""


class AckSchedule:
    """The rule for one life of node ``node``; for one thread."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._epoch: Epoch = 0
        self._attempted: Epoch = 0
        self._content: AckContent = ()
        self._at: Micros = 0
        self._operations: Map[OperationId, Operation] = Map()
        self._awaited: tuple[Epoch, ...] = ()
        self._tablets: Map[str, TabletMap] = Map()
        self._moving: tuple[Epoch, ...] = ()
        self._service: Map[str, ServiceMember] = Map()
        self._reconfigured: tuple[Epoch, ...] = ()

    @property
    def least(self) -> Epoch:
        """The next acknowledgement names no lower epoch: one of this epoch may have been published. 0: none."""
        return self._attempted

    def attempted(self, epoch: Epoch) -> None:
        """``epoch`` is on the disk, and may be published from now on, whatever the broker answers."""
        self._attempted = max(self._attempted, epoch)

    def is_due(self, state: ClusterState, epoch: Epoch, content: AckContent, now: Micros) -> bool:
        """Return True if ``epoch`` of ``state`` is to be acknowledged now. ``now``: of a monotonic clock."""
        if epoch == 0 or (epoch, content) == (self._epoch, self._content):
            return False
        if self._epoch == 0 or content != self._content or now - self._at >= SELDOM_US:
            return True
        if 2 * self._epoch < state.history.oldest + epoch and state.history.oldest > 0:
            return True
        return any(self._epoch < one <= epoch for one in self._gates(state))

    def sent(self, epoch: Epoch, content: AckContent, now: Micros) -> None:
        """This was acknowledged."""
        self._epoch, self._content, self._at = epoch, content, now

    def _gates(self, state: ClusterState) -> tuple[Epoch, ...]:
        """The epochs of the stages whose gates count this node; looked up anew when one of them has changed."""
        if state.operations is not self._operations:
            flying = (one for one in in_flight(state) if one.stage_epoch > self._epoch)
            self._awaited = tuple(one.stage_epoch for one in flying if self._node in awaited(state, one))
            self._operations = state.operations
        if state.tablets is not self._tablets:
            stages = {one.stage_epoch for tablets, one in transitions(state) if self._has(tablets, one)}
            self._moving, self._tablets = tuple(stages), state.tablets
        if state.service is not self._service:
            passing = (one.since for one in state.service.values() if one.stage != MEMBER)
            self._reconfigured = tuple(passing) if self._node in state.service else ()
            self._service = state.service
        return self._awaited + self._moving + self._reconfigured

    def _has(self, tablets: TabletMap, one: Transition) -> bool:
        return any(replica.node == self._node for replica in (*one.next, *tablets.replicas(one.tablet)))
