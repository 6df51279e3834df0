"""Operators: they submit commands, through the validator or as direct authors, and wait for the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ringlog.kernel.commands.cdc.clock import LowerCdcWriter
from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Remove
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.commands.topology.operations import CancelOperation, FailOperation
from ringlog.kernel.model.principals import Principal
from ringlog.kernel.model.state import in_order
from ringlog.kernel.operations.stages import JOIN_STAGES, in_flight
from ringlog.kernel.values import Command, Micros, NodeId, OperationId, Position
from ringlog.operator.errors import Refused
from ringlog.operator.views.clocks import lowest_horizon, settled_lowering
from ringlog.protocol.fencing import CdcEndOffsets, RevokeWriteAccess, fence
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.protocol.submission.submission import NoAnswer, encoded_request
from ringlog.wire.errors import WireError
from ringlog.wire.requests import SignedRequest
from ringlog_sim.client import SimClient
from ringlog_sim.devices.broker import CDC, MUTATIONS, REQUESTS
from ringlog_sim.devices.keys import ADMIN_NAME, KeyRing
from ringlog_sim.devices.memo import cached_requests
from ringlog_sim.devices.world import MS, SECOND, Chance, SimHost
from ringlog_sim.replica import Step, perform
from ringlog_sim.runner.rest import helpless

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.simulation import Simulation

TIMEOUT_US: Micros = 8 * SECOND
AGAIN_US: Micros = 700 * MS
HASTE_US: Micros = 20 * MS
"""A short timeout, after which the operator withdraws a request that may be in progress."""
BURIALS, LATER = 4, ("timed out", "range_locked", "wrong_node_state")
"""Maximum attempts to remove a node, and the answers that lead to another attempt."""
COMPANIONS_MAX = 6
"""Maximum number of additional commands next to another one, plus one."""
TRIES = 3
"""Maximum attempts of a table change without an answer."""
CLOSINGS = 3
"""Maximum attempts to close a generation without a writer."""
WATCH_US: Micros = 3 * SECOND
WATCHED = (*JOIN_STAGES[:-1], *JOIN_STAGES[-3:-1], *JOIN_STAGES[-3:-1])
"""Stages of an operation that operators wait for. The stages around the last possible cancel are more frequent."""


class SimOperator:
    """One operator's machine. ``unfinished``: number of open requests."""

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self.unfinished = 0
        self._starts = 0
        self._insisted: list[Command] = []

    def start(self) -> None:
        """Start the operator. Commands of ``insist`` that were not applied are submitted again."""
        self._starts += 1
        self.unfinished = 0
        name = f"operator/{self._starts}"
        self._client = SimClient(self.sim, self.host, name, principal=ADMIN_NAME)
        self._other = SimClient(self.sim, self.host, f"{name}b", self._client.replica, ADMIN_NAME)
        self._ready = False
        self.sim.world.spawn(self.host, "operator.start", self._start())

    def insist(self, commands: Sequence[Command]) -> None:
        """Submit these commands, in this order, until they are applied."""
        self._insisted = list(commands)

    def _start(self) -> Step:
        yield from self._client.start()
        yield from self._other.start()
        self._ready = True
        while self._insisted:
            try:
                answer = yield from self._client.submit(self._insisted[0], TIMEOUT_US)
            except NoAnswer:
                continue
            done = isinstance(answer, AppliedResult) or (
                isinstance(answer, RejectedResult)
                and answer.code in ("duplicate_name", "keyspace_exists", "table_exists")
            )
            if done:
                self._insisted.pop(0)
            else:
                yield AGAIN_US

    def command(self, number: int, kind: str, way: str) -> None:
        """Submit a command of ``kind``, drawn for the state that this operator has folded."""
        if self.host.up and self._ready:
            self.unfinished += 1
            self.sim.world.spawn(self.host, f"operator.{kind}", self._ask(number, kind, way), self._ended)

    def change(self, name: str, value: int) -> None:
        """Change a setting. Repeat until there is an answer."""
        if self.host.up and self._ready:
            self.unfinished += 1
            self.sim.world.spawn(self.host, "operator.change", self._change(name, value), self._ended)

    def _change(self, name: str, value: int) -> Step:
        request, since = self._client.new_request_id(), self._client.replica.state.epoch
        while True:
            with suppress(NoAnswer):
                return (yield from self._client.submit(ChangeSettings(((name, value),)), TIMEOUT_US, request, since))

    def cancel(self) -> None:
        """Cancel every operation that this operator sees in flight."""
        if self.host.up and self._ready:
            for operation in in_flight(self._client.replica.state):
                self.unfinished += 1
                self.sim.world.spawn(self.host, "operator.cancel", self._cancel(operation.id), self._ended)

    def _cancel(self, operation: OperationId) -> Step:
        with suppress(NoAnswer):
            yield from self._client.submit(CancelOperation(operation, "cancelled"), TIMEOUT_US)

    def bury(self, node: NodeId, what: str) -> None:
        """Declare a node down. Then remove it, assassinate it, or declare it up."""
        if self.host.up and self._ready:
            self.unfinished += 1
            self.sim.world.spawn(self.host, "operator.bury", self._bury(node, what), self._ended)

    def _bury(self, node: NodeId, what: str) -> Step:
        commands: dict[str, Command] = {
            "Remove": Remove(node),
            "Assassinate": Assassinate(node),
            "DeclareUp": DeclareUp(node, "it is back"),
        }
        yield from self._outcome(DeclareDown(node, "no heartbeat"))
        for _ in range(BURIALS):
            outcome = yield from self._outcome(commands[what])
            if outcome not in LATER:
                return
            yield AGAIN_US

    def _outcome(self, command: Command) -> Step:
        """Submit a command. Return and count the answer as one word."""
        outcome = "timed out"
        with suppress(NoAnswer):
            answer = yield from self._client.submit(command, TIMEOUT_US)
            outcome = answer.code if isinstance(answer, RejectedResult) else type(answer).__name__
        self.sim.did["command", type(command).__name__, outcome] += 1
        return outcome

    def images(self, commands: Sequence[Command]) -> None:
        """Submit changes of tables, one after the other, with a few attempts each."""
        if self.host.up:
            self.unfinished += 1
            self.sim.world.spawn(self.host, "operator.images", self._images(commands), self._ended)

    def _images(self, commands: Sequence[Command]) -> Step:
        while not self._ready:
            yield 20 * MS
        for command in commands:
            for _ in range(TRIES):
                if (yield from self._outcome(command)) != "timed out":
                    break

    def send_as(self, name: str, way: str, commands: Sequence[Command]) -> None:
        """Submit commands at once, with codes that claim to be of this principal. ``way``: the kind of code."""
        known = self.sim.log.state.principals.get(name)
        if self.host.up and self._ready and known is not None:
            for command in commands:
                self.unfinished += 1
                self.sim.world.spawn(self.host, "operator.send_as", self._send_as(known, way, command), self._ended)

    def _send_as(self, known: Principal, way: str, command: Command) -> Step:
        """Submit through the second client, which never writes the log itself."""
        ring: KeyRing = self.sim.shared["keys"]
        outcome = "timed out"
        with suppress(NoAnswer):
            sign = partial(ring.send_as, known=known, way=way)
            answer = yield from self._other.submit(command, TIMEOUT_US, sign=sign)
            outcome = answer.code if isinstance(answer, RejectedResult) else type(answer).__name__
        self.sim.did["command", type(command).__name__, outcome] += 1
        self.sim.did["principals", way, outcome] += 1

    def exchange_code(self, chance: Chance, command: Command) -> None:
        """Send a command with a code that is already in the topic."""
        records = self.sim.broker.partition(REQUESTS).records
        found = [one for record in records for one in cached_requests(record.value) if isinstance(one, SignedRequest)]
        if found and self.host.up and self._ready:
            ring: KeyRing = self.sim.shared["keys"]
            stolen = chance.pick(found)
            sign = partial(ring.exchange, stolen.coded)
            since, name = stolen.since_epoch, stolen.submitter
            data = encoded_request(command, self._other.new_request_id(), since, name, sign=sign).data
            self._append(data)

    def replay(self, chance: Chance) -> None:
        """Send a record of the topic again."""
        records = self.sim.broker.partition(REQUESTS).records
        if records and self.host.up and self._ready:
            self._append(chance.pick(records).value)

    def _append(self, data: bytes) -> None:
        appended = self.sim.broker.try_append(self.host, REQUESTS, [("", data)])
        self.sim.world.spawn(self.host, "operator.append", appended)

    def fence(self, take_rights: Callable[[], None], again: Callable[[], None], *, closes: bool) -> None:
        """End the CDC writer, as ``ringlog cdc fence`` does, with ``take_rights`` in place of the broker's ACLs.

        ``again`` starts the job if it waits for that. ``closes``: also close the oldest generation without the writer,
        which is the only one.
        """
        if self.host.up and self._ready:
            self.unfinished += 1
            self.sim.world.spawn(self.host, "operator.fence", self._fence(take_rights, again, closes), self._ended)

    def _fence(self, take_rights: Callable[[], None], again: Callable[[], None], closes: bool) -> Step:
        def revoke_write_access(_: RevokeWriteAccess) -> str:
            take_rights()
            return "rights taken"

        # A process that registers from here on is another incarnation, for which the log rejects the fence.
        state = yield from self._client.replica.barrier()
        for _, writer in in_order(state.writers):
            at_once: dict[type, Callable[[Any], Any]] = {RevokeWriteAccess: revoke_write_access}
            steps = fence(writer, "gone for good")
            command: Command = yield from perform(steps, at_once, {CdcEndOffsets: lambda _: self._ends_of_rows()})
            outcome = yield from self._outcome(command)
            for _ in range(CLOSINGS if closes and outcome == "AppliedResult" else 0):
                generations = self._client.replica.state.generations
                oldest = next((found.id for found in generations if found.closed is None), "none")
                command = CloseCdcGeneration(oldest, True, self.sim.world.clock(self.host))
                if (yield from self._outcome(command)) == "AppliedResult":
                    break
                yield AGAIN_US
            if outcome == "AppliedResult":
                yield from self._lower(writer.name, writer.incarnation)
            again()

    def _ends_of_rows(self) -> Step:
        found = None
        while found is None:
            found = yield from self.sim.broker.ends(self.host, CDC)
        return tuple(Position(*one) for one in sorted(found.items()))

    def _lower(self, name: str, incarnation: str) -> Step:
        """Lower the fenced writer's lease to the used timestamps, as ``ringlog cdc lower`` does."""
        found = self._client.replica.state.writers[name]
        appended = [record.time for partition in self.sim.broker.topics[MUTATIONS] for record in partition.records]
        horizon = lowest_horizon(self._client.replica.state, found, max(appended, default=None))
        if found.incarnation == incarnation and horizon < found.horizon:
            yield from self._outcome(LowerCdcWriter(name, incarnation, horizon, "a clock was ahead"))

    def lower_settled(self) -> None:
        """Lower the validation watermark after a wrong clock, as ``ringlog cdc lower`` does."""
        if self.host.up and self._ready:
            self.unfinished += 1
            self.sim.world.spawn(self.host, "operator.lower_settled", self._lower_settled(), self._ended)

    def _lower_settled(self) -> Step:
        state = yield from self._client.replica.barrier()
        appended = [record.time for partition in self.sim.broker.topics[MUTATIONS] for record in partition.records]
        now = self.sim.world.clock(self.host)
        try:
            command = settled_lowering(state, now, max(appended, default=None), None, "a clock was ahead")
        except Refused as refused:
            self.sim.did["command", "LowerSettledTime", refused.code] += 1
            return
        yield from self._outcome(command)

    def call_off(self, nodes: Mapping[str, SimNode]) -> None:
        """After the faults, check that the cluster answers, and cancel operations that wait for a node that does not
        run.
        """
        self.unfinished += 1
        self.sim.world.spawn(self.host, "operator.call_off", self._call_off(nodes))

    def _call_off(self, nodes: Mapping[str, SimNode]) -> Step:
        yield from self._probe()
        self.unfinished -= 1
        while True:
            for operation in in_flight(self._client.replica.state):
                if helpless(operation, nodes):
                    try:
                        yield from self._client.submit(
                            CancelOperation(operation.id, "a node that gains does not run"), TIMEOUT_US
                        )
                    except NoAnswer:
                        continue
            yield AGAIN_US

    def _probe(self) -> Step:
        while True:
            try:
                if self._ready and isinstance((yield from self._client.submit(Noop(), TIMEOUT_US)), AppliedResult):
                    return
            except NoAnswer:
                pass
            yield AGAIN_US

    def _wait_for(self, stage: str) -> Step:
        """Wait for a limited time until an operation is in this stage. Some stages are too short for a random hit."""
        replica, deadline = self._client.replica, self.sim.world.now + WATCH_US
        while self.sim.world.now < deadline:
            if any(operation.stage == stage for operation in in_flight(replica.state)):
                return
            yield replica.changed, deadline - self.sim.world.now

    def _reuse(self, request: str, since: int) -> Step:
        """Use a request id a second time, for another command."""
        with suppress(NoAnswer):
            yield from self._other.submit(ChangeSettings((("ranges_max", 60_000),)), TIMEOUT_US, request, since)

    def _ended(self, _: str) -> None:
        self.unfinished -= 1

    def _ask(self, number: int, kind: str, way: str) -> Step:
        from ringlog_sim.families import FAMILIES
        from ringlog_sim.families.schema import batched

        drawn = next(family.commands[kind] for family in FAMILIES if kind in family.commands)
        assert drawn is not None, "the drawn command is an operator's command"
        chance = Chance(self.sim.world.seed, f"command/{number}")
        if kind in ("AdvanceOperation", "CancelOperation", "FailOperation"):
            yield from self._wait_for(chance.pick(WATCHED))
        command = drawn[1](self._client.replica.state, chance)
        if command is None:
            self.sim.did["command", kind, "nothing to ask"] += 1
            return
        command = batched(command, Chance(self.sim.world.seed, f"batch/{number}"))
        if self.sim.world.tracing:
            self.sim.world.tell("operator", f"asks for {command} ({way})"[:300])
        if isinstance(command, Remove) and chance.happens(0.7):
            with suppress(NoAnswer):
                yield from self._client.submit(DeclareDown(command.node, "no heartbeat"), TIMEOUT_US)
        request, since = self._client.new_request_id(), self._client.replica.state.epoch
        timeout = chance.pick([TIMEOUT_US, TIMEOUT_US, HASTE_US])
        try:
            if way == "direct":
                answer = yield from self._client.direct.submit(command)
            else:
                if chance.happens(0.1):
                    self.sim.world.spawn(self.host, "operator.twice", self._reuse(request, since))
                companions = Chance(self.sim.world.seed, f"beside/{number}")
                for _ in range(companions.below(COMPANIONS_MAX) if companions.happens(0.3) else 0):
                    also = Noop() if companions.happens(0.7) else DropKeyspace("nowhere")
                    self.sim.world.spawn(self.host, "operator.beside", self._submit_companion(also))
                answer = yield from self._client.submit(command, timeout, request, since)
        except NoAnswer:
            self.sim.did["command", kind, "timed out"] += 1
            yield from self._client.withdraw(command, request, since)
            return
        except WireError:
            self.sim.did["command", kind, "not encodable"] += 1
            return
        what = answer.code if isinstance(answer, RejectedResult) else type(answer).__name__
        self.sim.did["command", kind, what] += 1
        if isinstance(command, FailOperation) and isinstance(answer, AppliedResult):
            yield from self._decide(chance)

    def _submit_companion(self, command: Command) -> Step:
        """Submit another command at the same time, so that the requests are sent together."""
        with suppress(NoAnswer):
            yield from self._client.submit(command, TIMEOUT_US)

    def _decide(self, chance: Chance) -> Step:
        """Retry an operation that may have stopped, sometimes late and rarely never."""
        from ringlog_sim.families.operations import retry

        yield chance.pick([1 * MS, 300 * MS, 2 * SECOND])
        state = self._client.replica.state
        command = retry(state, chance)
        if command is None or chance.happens(0.1):
            return
        yield from self._outcome(command)
