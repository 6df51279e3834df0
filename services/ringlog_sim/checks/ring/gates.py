"""Gates, checked against the truth: an operation leaves a stage only after the required nodes have acknowledged it.

A node's acknowledgements are those that it sent, for adopted epochs that are on its disk. Claims of the coordinator and
messages in transit do not count. The required nodes are computed here from the independent model of movements: for each
changed range, a quorum of the old and of the new group, in each datacenter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.commands.topology.operations import AdvanceOperation, RetryOperation
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import StreamReport
from ringlog.wire.records import NodeAck
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.movements import movements
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_testing.placement.movements import Movements, SeenMovement

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

GATED = ("prepared", "write_both_read_old", "write_both_read_new")
GAINING_ASKED = ("prepared", "streaming", "write_both_read_old")
REPORTED = ("streaming", "write_both_read_old")


class Acknowledgements(Check):
    """A node sends only true acknowledgements, keeps them across restarts, and answers only from acknowledged data.

    ``acknowledged``: node id to its newest acknowledged epoch.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self.acknowledged: dict[str, int] = {}
        self.reported: dict[tuple[str, str], set[StreamReport]] = {}
        self._adopted: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._ends: dict[str, list[int]] = {}
        sim.shared["acknowledgements"] = self

    def began(self, node: str) -> None:
        """Forget the node's memory after a restart. Only data on its disk survives."""
        self._adopted[node] = self._acknowledged[node] = 0
        self._ends[node] = [partition.high for partition in self.sim.broker.topics[MUTATIONS]]
        on_disk = self.node(node).host.disk.get("acknowledged", 0)
        if on_disk < self.acknowledged.get(node, 0):
            self.acknowledged[node] = on_disk

    def adopted(self, node: str, state: ClusterState) -> None:
        """Check that a node's epochs increase."""
        if state.epoch <= self._adopted[node]:
            self.sim.broken("epochs", f"{self._name(node)} went from {self._adopted[node]} to {state.epoch}")
        if state.epoch >= len(self.sim.log.states) or self.sim.log.states[state.epoch].state_id != state.state_id:
            self.sim.broken("epochs", f"{self._name(node)} adopted {state.epoch}, which the log does not have")
        self._adopted[node] = state.epoch

    def acked(self, ack: NodeAck) -> None:
        """Check an acknowledgement before it is published: adopted, on disk, caught up, and not decreasing."""
        node, name = ack.node, self._name(ack.node)
        if ack.applied > self._adopted[node] or ack.drained > self._adopted[node]:
            self.sim.broken("ack", f"{name} acknowledges {ack.applied}/{ack.drained}, but serves {self._adopted[node]}")
        if self.node(node).host.disk.get("acknowledged", 0) < ack.applied:
            self.sim.broken("ack", f"{name} acknowledges {ack.applied} before it is durable")
        if ack.applied < self._acknowledged[node]:
            self.sim.broken("ack", f"{name} acknowledges {ack.applied} after {self._acknowledged[node]}")
        if not self.caught_up(node):
            self.sim.broken("ack", f"{name} acknowledges {ack.applied} before it has caught up")
        self._acknowledged[node] = ack.applied
        self.acknowledged[node] = max(self.acknowledged.get(node, 0), min(ack.applied, ack.drained))
        for report in ack.reports:
            self.reported.setdefault((node, report.operation), set()).add(report)

    def read(self, node: str, table: str, key: bytes, epoch: int, found: frozenset[bytes]) -> None:
        """Check an answer: its epoch is current and not below the acknowledged one, and the node has caught up."""
        if epoch != self._adopted[node] or epoch < self.acknowledged.get(node, 0):
            acknowledged = self.acknowledged.get(node, 0)
            self.sim.broken("serving", f"{self._name(node)} answered at {epoch}, but has acknowledged {acknowledged}")
        if not self.caught_up(node):
            self.sim.broken("serving", f"{self._name(node)} answered before it has caught up")

    def caught_up(self, node: str) -> bool:
        """Return True if the node has passed the ends that the mutations had when it started."""
        positions = self.node(node).row_replica.positions
        return all(positions.get(number, 0) >= end for number, end in enumerate(self._ends[node]))

    def _name(self, node: str) -> str:
        return self.node(node).name


class Gates(Check):
    """When an operation leaves a gated stage, the true acknowledgements meet the gate, and counted ones are true."""

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check an applied step of an operation."""
        if isinstance(item.command, RetryOperation):
            self._left_out(after, item.command)
        if not isinstance(item.command, AdvanceOperation):
            return
        command, record = item.command, movements(self.sim).upto(after.epoch)
        move = record.flying.get(command.operation) or record.ended.get(command.operation)
        if move is None or len(move.marks) < 2:
            self.sim.broken("gate", f"epoch {after.epoch}: {command.operation} is not an operation that can advance")
            return
        stage, since = move.marks[-2]
        if stage not in GATED and stage not in REPORTED:
            return
        truth: Acknowledgements = self.sim.shared["acknowledgements"]
        where = f"epoch {after.epoch}: {move.id} left {stage} (epoch {since})"
        for witness in command.witnesses:
            claimed = min(witness.applied, witness.drained)
            if claimed >= since and claimed > truth.acknowledged.get(witness.node, 0):
                self.sim.broken("gate", f"{where}: {witness} is not true")
        informed = {node for node, epoch in truth.acknowledged.items() if epoch >= since}
        lacking = _lacking(move, stage, informed, record)
        if lacking:
            self.sim.broken("gate", f"{where}, but {lacking}")
        if stage in REPORTED:
            self._reports(where, move, command, truth)

    def _left_out(self, after: ClusterState, command: RetryOperation) -> None:
        """Check the nodes that are left out of a movement past its point of no return.

        They must be declared down, and must not be a quorum of a group.
        """
        record = movements(self.sim).upto(after.epoch)
        move = record.flying.get(command.operation)
        if move is None or not command.ignore_nodes:
            return
        where = f"epoch {after.epoch}: {move.id} continues without {sorted(command.ignore_nodes)}"
        if not record.down.issuperset(command.ignore_nodes) or not move.reached("write_both_read_new"):
            self.sim.broken("gate", f"{where}, which may not be ignored")
        excused = _excused(move, record)
        for exchange in move.exchanges if not command.admits_loss else ():
            for group in (exchange.old, exchange.new):
                for datacenter in {record.places[node][0] for node in group}:
                    local = [node for node in group if record.places[node][0] == datacenter]
                    if sum(node in excused for node in local) >= len(local) // 2 + 1:
                        self.sim.broken("gate", f"{where}: a quorum of {local} has not acknowledged it")

    def _reports(self, where: str, move: SeenMovement, command: AdvanceOperation, truth: Acknowledgements) -> None:
        """Check that every gaining node has reported its rows, with the same content."""
        for node in sorted(move.gaining()):
            given = [report for report in command.reports if report.node == node]
            if not given:
                self.sim.broken("gate", f"{where} without a report of the rows of {node}")
            for report in given:
                if report not in truth.reported.get((node, move.id), set()):
                    self.sim.broken("gate", f"{where} with {report}, which its node did not send")


def _excused(move: SeenMovement, record: Movements) -> frozenset[str]:
    """Return the nodes left out, and the leaving node if it was declared down."""
    return move.ignored | record.down.intersection({move.parting})


def _lacking(move: SeenMovement, stage: str, informed: set[str], record: Movements) -> str:
    """Return a description of the missing acknowledgement, or empty text if the gate is met."""
    if stage in GAINING_ASKED and (silent := move.gaining() - informed):
        return f"the gaining {sorted(silent)} have not acknowledged it"
    excused = _excused(move, record)
    asked_all = stage in GATED and (stage != "prepared" or record.gate_prepared)
    for exchange in move.exchanges if asked_all else ():
        for group in (exchange.old, exchange.new):
            for datacenter in sorted({record.places[node][0] for node in group}):
                local = [node for node in group if record.places[node][0] == datacenter]
                asked = [node for node in local if node not in excused]
                if len(local) - len(asked) > len(local) // 2:  # otherwise a quorum would be left out without a decision
                    asked = [node for node in local if node not in move.ignored]
                have = sum(node in informed for node in asked)
                if have < min(len(local) // 2 + 1, len(asked)):
                    return f"only {have} of {len(local)} in {datacenter} of {exchange} have acknowledged it"
    return ""
