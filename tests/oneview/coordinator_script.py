"""A scripted cluster around the coordinator core. The script sets acknowledgements, lost answers and other writers."""

from __future__ import annotations

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD, in_flight, is_ended
from ringlog.kernel.values import Replication, StreamReport, replace
from ringlog.protocol.controller import Proposal
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.wire.records import NodeAck
from tests.agents.operation_runner import NOW, known
from tests.agents.world import World
from tests.oneview.script import Actor, line, names

OTHER_CLUSTER = "99999999-9999-4999-8999-999999999999"


def node_id(name: str) -> str:
    """Return the id of node ``n1``, ``n2``, …"""
    digit = name.removeprefix("n")
    return f"{digit * 8}-1111-4111-8111-111111111111"


class Coordinator(Actor):
    """A coordinator under test. ``log`` contains all entries, ``seen`` is the state that this instance has applied, and
    ``acks`` are the acknowledgements that it has received.
    """

    def __init__(self) -> None:
        self.log = World()
        self.seen: ClusterState = self.log.state
        self.deaf = False
        self.acks: dict[str, NodeAck] = {}
        self.published = 0
        self.asked: tuple[Proposal, ...] = ()

    # Initial cluster

    @line(r"(n.*) are normal, with a keyspace of factor (\d)")
    def _cluster(self, members: str, factor: str) -> None:
        for name in names(members):
            self._registers(name)
            self._joins(name)
            while proposals := propose(known(self.log.state)):
                self.log.direct(proposals[0].command)
        self.log.direct(CreateKeyspace("ks", Replication("simple", int(factor))))
        self._read_log()
        self._publish()

    # Writes of other processes

    @line(r"(n\d) registers")
    def _registers(self, name: str) -> None:
        port = 7_000 + int(name.removeprefix("n"))
        self.log.direct(RegisterNode(name, node_id(name), f"127.0.0.1:{port}", "dc", "r", 2, 12, "1", (), 1))
        self._read_log()

    @line(r"(n\d) asks to join")
    def _joins(self, name: str) -> None:
        number = int(name.removeprefix("n"))
        self.log.direct(Join(node_id(name), (number * 10**15, number * 10**18), bytes(16)))
        self._read_log()

    @line("another process appends a Noop")
    def _noop(self) -> None:
        self.log.direct()
        self._read_log()

    @line("an operator cancels the join")
    def _cancelled(self) -> None:
        self.log.direct(CancelOperation(self.operation.id, "no"))
        self._read_log()

    @line("it stops reading the log")
    def _stop_reading(self) -> None:
        self.deaf = True

    @line("it reads the log again")
    def _resume_reading(self) -> None:
        self.deaf = False
        self._read_log()

    def _read_log(self) -> None:
        if not self.deaf:
            self.seen = self.log.state

    # Acknowledgements of nodes

    @property
    def operation(self) -> Operation:
        """Return the join in flight, as of the end of the log."""
        (found,) = in_flight(self.log.state)
        return found

    def _ack(self, name: str, applied: int, drained: int | None = None, cluster_id: str = "") -> None:
        before = self.acks.get(node_id(name))
        self.acks[node_id(name)] = NodeAck(
            cluster_id or self.log.state.cluster_id,
            node_id(name),
            f"incarnation of {name}",
            applied,
            applied if drained is None else drained,
            before.reports if before is not None else (),
            0,
            NOW,
            state_id=state_id_at(self.log.state, applied),
        )

    @line(r"(n[\dn, and]*) acknowledges?")
    def _acknowledge(self, members: str) -> None:
        for name in names(members):
            self._ack(name, self.log.state.epoch)

    @line(r"(n\d) acknowledges the epoch before this stage")
    def _stale_ack(self, name: str) -> None:
        self._ack(name, self.operation.stage_epoch - 1)

    @line(r"(n\d) has applied this stage, but not the writes before it")
    def _undrained_ack(self, name: str) -> None:
        self._ack(name, self.log.state.epoch, drained=self.operation.stage_epoch - 1)

    @line(r"(n\d) of another cluster acknowledges")
    def _foreign_ack(self, name: str) -> None:
        self._ack(name, self.log.state.epoch, cluster_id=OTHER_CLUSTER)

    @line(r"(n\d) of another history acknowledges")
    def _lost_ack(self, name: str) -> None:
        self._ack(name, self.log.state.epoch)
        self.acks[node_id(name)] = replace(self.acks[node_id(name)], state_id=OTHER_CLUSTER)

    @line(r"(n\d) acknowledges an epoch beyond the log")
    def _ack_of_the_future(self, name: str) -> None:
        self._ack(name, 10**9)

    @line("an unknown node acknowledges")
    def _unknown_ack(self) -> None:
        self._ack("n9", self.log.state.epoch)

    def _report(self, name: str, reports: tuple[StreamReport, ...], cluster_id: str = "") -> None:
        self._ack(name, self.log.state.epoch, cluster_id=cluster_id)
        self.acks[node_id(name)] = replace(self.acks[node_id(name)], reports=reports)

    @line(r"(n\d) reports its stream")
    def _reports(self, name: str) -> None:
        self._report(name, (StreamReport(node_id(name), self.operation.id, 7, "aa"),))

    @line(r"(n\d) reports the stream of (\S+)")
    def _reports_another(self, name: str, operation: str) -> None:
        self._report(name, (StreamReport(node_id(name), operation, 7, "aa"),))

    @line(r"(n\d) reports the stream in the name of (n\d)")
    def _reports_for_another(self, name: str, other: str) -> None:
        self._report(name, (StreamReport(node_id(other), self.operation.id, 7, "aa"),))

    @line(r"(n\d) of another cluster reports its stream")
    def _foreign_report(self, name: str) -> None:
        self._report(name, (StreamReport(node_id(name), self.operation.id, 7, "aa"),), OTHER_CLUSTER)

    @line("the change topics are up to date")
    def _publish(self) -> None:
        self.published = self.log.state.epoch

    # Actions of the coordinator

    def look(self) -> tuple[Proposal, ...]:
        """Return all proposals of the coordinator for the current view."""
        return propose(CoordinatorView(self.seen, dict(self.acks), self.published, NOW))

    @line(r"it asks for (?!nothing|the same|it)(.*)")
    def _asks(self, steps: str) -> None:
        self.asked = self.look()
        assert _steps(self.asked) == names(steps), f"the coordinator proposes {_steps(self.asked)}"

    @line("it forwards no acknowledgement beyond its own epoch")
    def _shows(self) -> None:
        (command,) = (p.command for p in self.asked if isinstance(p.command, AdvanceOperation))
        assert {w.applied for w in command.witnesses} == {w.drained for w in command.witnesses} == {self.seen.epoch}

    @line("it asks for nothing")
    def _asks_nothing(self) -> None:
        assert not self.look(), f"the coordinator proposes {_steps(self.look())}"

    @line("it asks for the same with the same ids")
    def _asks_the_same(self) -> None:
        assert self.asked
        assert self.look() == self.asked

    @line("it asks for it again with another id")
    def _asks_again(self) -> None:
        before, self.asked = self.asked, self.look()
        assert _steps(self.asked) == _steps(before)
        assert not {p.request_id for p in self.asked} & {p.request_id for p in before}
        assert {p.since_epoch for p in self.asked} == {self.seen.epoch}

    @line("another instance takes over with the log and the acknowledgements")
    def _taken_over(self) -> None:
        """Apply the whole log. ``propose`` uses no other memory, so a new instance proposes from the same view."""
        self.seen = self.log.state

    def _land(self) -> list[OutcomeKind]:
        landed = [self.log.land(self.log.entry(p.command, p.request_id)) for p in self.asked]
        self._read_log()
        return landed

    @line("that is applied")
    def _applied(self) -> None:
        assert set(self._land()) == {OutcomeKind.APPLIED}

    @line("that was applied before")
    def _was_applied(self) -> None:
        assert set(self._land()) == {OutcomeKind.DUPLICATE}

    @line("that is rejected")
    def _refused(self) -> None:
        assert set(self._land()) == {OutcomeKind.REFUSED}

    @line("it advances to (.*) with all acknowledgements")
    def _advance_to(self, stage: str) -> None:
        """Advance the operation to that stage."""
        while self.operation.stage != stage:
            self._acknowledge("n1 n2 n3")
            if self.operation.stage == WRITE_BOTH_READ_OLD:
                self._reports("n3")
            self._publish()
            self._apply_next(self.look())

    def _apply_next(self, proposals: tuple[Proposal, ...]) -> None:
        assert proposals, f"no proposal in stage {self.operation.stage}"
        self.asked = proposals[:1]
        self._applied()

    @line(r"(n\d) is (normal|not a member)")
    def _node_is(self, name: str, state: str) -> None:
        assert self.log.state.nodes[node_id(name)].state == {"not a member": "none"}.get(state, state)

    @line(r"the join ended as (\w+)")
    def _ended(self, stage: str) -> None:
        last = max(self.log.state.operations.values(), key=lambda each: each.marks[0].epoch)
        assert is_ended(last)
        assert last.stage == stage


def _steps(proposals: tuple[Proposal, ...]) -> list[str]:
    commands = (proposal.command for proposal in proposals)
    return [each.to if isinstance(each, AdvanceOperation) else type(each).__name__ for each in commands]
