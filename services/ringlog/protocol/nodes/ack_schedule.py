"""The schedule of a node's acknowledgements: immediate if a process waits for one, otherwise at a low rate.

A node sends an acknowledgement in these cases:

=====================  ===============================================================================================
First                  The node has started and reports its incarnation.
Barrier                A stage began at an epoch that the node has and has not acknowledged, and its barrier counts this
                       node. Operations: ``kernel.operations.gates.gate_nodes``. Tablets: the current and next replicas.
                       Metadata service: the write group.
Streams                Rows have arrived, or a stream failed. The coordinator acts on either.
History                The last acknowledged epoch is in the older half of the history that the log remembers. The log
                       could soon no longer verify it.
Idle                   Anything newer, ``SELDOM_US`` after the last acknowledgement. Displays and restarts need no more.
=====================  ===============================================================================================

So a node sends one record for each stage that concerns it, and one in ``SELDOM_US``, at any rate of epochs. With 10,000
nodes and 100 epochs a second, the topic receives 3,400 records a second instead of a million.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.model.modes import ServiceMember
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.model.tablet_map import TabletMap, Transition
from ringlog.kernel.operations.gates import gate_nodes
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.service import MEMBER
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import Epoch, Micros, NodeId, OperationId

SELDOM_US: Final[Micros] = 3_000_000
"""The longest time that a newer epoch remains unacknowledged if no process waits for it."""

AckContent = tuple[object, ...]
"""The parts of an acknowledgement, other than its epoch, that other processes act on."""


class AckSchedule:
    """The acknowledgement schedule of one node, from one start to the next. Not thread-safe."""

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
        """The lowest epoch that the next acknowledgement may name, because it may already be published. 0: no limit."""
        return self._attempted

    def attempted(self, epoch: Epoch) -> None:
        """Record that ``epoch`` is on disk and may be published from now on, even if the broker does not answer."""
        self._attempted = max(self._attempted, epoch)

    def is_due(self, state: ClusterState, epoch: Epoch, content: AckContent, now: Micros) -> bool:
        """Return True if ``epoch`` of ``state`` is to be acknowledged now.

        Args:
            now: Microseconds of a monotonic clock.
        """
        if epoch == 0 or (epoch, content) == (self._epoch, self._content):
            return False
        if self._epoch == 0 or content != self._content or now - self._at >= SELDOM_US:
            return True
        if 2 * self._epoch < state.history.oldest + epoch and state.history.oldest > 0:
            return True
        return any(self._epoch < one <= epoch for one in self._gates(state))

    def sent(self, epoch: Epoch, content: AckContent, now: Micros) -> None:
        """Record an acknowledgement that the broker confirmed."""
        self._epoch, self._content, self._at = epoch, content, now

    def _gates(self, state: ClusterState) -> tuple[Epoch, ...]:
        """Return the epochs of the stages whose barriers count this node.

        The results are cached: most epochs change none of the three state sections.
        """
        if state.operations is not self._operations:
            flying = (one for one in in_flight(state) if one.stage_epoch > self._epoch)
            self._awaited = tuple(one.stage_epoch for one in flying if self._node in gate_nodes(state, one))
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
