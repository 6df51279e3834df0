"""Nodes of a fake cluster. They have no data: each acknowledges every state and reports that its work is done."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ringlog.client.node_reports import RowsSum
from ringlog.client.participant.folder import IdentityFolder
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.operations.gates import REPORTED_STAGES
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import NodeId
from ringlog.log.folding import follow
from ringlog.log.kafka.topics import ACKS
from ringlog.log.port import MetadataLog
from ringlog.protocol.coordinator.tablet_steps import tablet_reports
from ringlog.protocol.nodes.groups import Member
from ringlog.wire.acks import incarnation
from ringlog.wire.records import NodeAck, decode_node_ack


class _NoData:
    """The partition replicas of a node without data."""

    def has_caught_up(self, partition: ZonePartition) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def failure(self) -> int | None:
        """Return None."""
        return None

    def log_length(self, partition: ZonePartition) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def retain_steps(self, steps: Collection[object]) -> None:
        """Do nothing."""


class FakeTopics:
    """The topics that a participant writes (``NodeTopics``). Each acknowledgement goes to ``acknowledge``."""

    def __init__(self, acknowledge: Callable[[NodeAck], None]) -> None:
        self._acknowledge = acknowledge

    def send(self, suffix: str, node: NodeId, value: bytes) -> None:
        """Take a record."""
        if suffix == ACKS.suffix:
            ack = decode_node_ack(value)
            assert ack.node == node, "the key is the node that writes"
            self._acknowledge(ack)

    def duplicate_check(self, folder: IdentityFolder) -> None:
        """Return None: no other process has the folder."""

    def close(self) -> None:
        """Do nothing."""


class FakeNode:
    """A node that reads ``log``, its own view of the metadata log."""

    def __init__(self, node: NodeId, log: MetadataLog) -> None:
        self._node = node
        self._tail = log.tail(0)
        self._state = EMPTY_STATE
        self._acked = ""
        self._member = Member(node, _NoData())

    def acknowledge(self, now: int) -> NodeAck | None:
        """Read the log. Return the acknowledgement of its newest state, or None if there is nothing new."""
        while records := self._tail.poll(0.0):
            for made in follow(records, self._state):
                self._state = made.after
        state = self._state
        if state.state_id == self._acked or self._node not in state.nodes:
            return None
        self._acked = state.state_id
        reports = [
            RowsSum().report(self._node, operation.id)
            for operation in in_flight(state)
            if operation.stage in REPORTED_STAGES
            and self._node in {operation.node, *(one.target for one in operation.plan.sources)}
        ]
        reports += tablet_reports(state, self._node)
        reports += self._member.reports(state, state.epoch)
        run = incarnation(1, self._node)
        return NodeAck(
            state.cluster_id, self._node, run, state.epoch, state.epoch, tuple(reports), 0, now, (), state.state_id
        )
