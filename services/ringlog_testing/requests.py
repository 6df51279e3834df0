"""The request coordinator on scripted replicas: their answers, with epochs that change within a request.

    script = ScriptedReplicas(state, {"n1": [ScriptedReply(b"old", 1)], "n2": [ScriptedReply(b"new", 2)], "n3": [None]})
    found = script.read("ks", b"seat-12A")

The steps of ``ringlog.client.data`` run unchanged: plans, retries, the re-check of answers on each new state, digests,
and write-backs. A script replaces connections, clock and log. It has the answers of each replica in order, and the
epochs that the coordinator learns meanwhile. Time is virtual and passes only while the coordinator waits.

``ringlog_testing.cluster`` makes states: keep ``cluster.state`` between its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ringlog.client.data import registers, row_reads
from ringlog.client.data.plans import Answer, Level
from ringlog.client.data.registers import (
    AskReplica,
    AwaitReplies,
    FoundAnswer,
    FoundCell,
    ReadNewest,
    RegisterRequest,
    RegisterResult,
)
from ringlog.client.data.row_reads import FoundPartition, FoundRows, Positions, ReadEnds
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.protocol.effects import Newest, Now, Steps, Until, run_steps
from ringlog.wire.data import RegisterCell, digest_of, digest_of_writes, key_of
from ringlog.wire.records import Mutation, encode_mutation

T = TypeVar("T")
REPLY: Micros = 1_000
"""The time from a request to its answer, if the script names none."""


class ScriptedReply(Value):
    """The answer of a replica.

    ``value``, ``timestamp``: of its register; None: no value. An answer to a write ignores them. ``rows``: the writes
    of its partition, for reads of rows. ``positions``: of the replica in the mutations topic. ``state``: the state that
    the replica has applied, None: the coordinator's newest one when the answer arrives. ``refused``: code of a refusal,
    such as ``behind`` (``ringlog.wire.data``). ``after``: microseconds from the request. ``learns``: a state that the
    coordinator learns together with the answer.
    """

    value: bytes | None = None
    timestamp: Micros = 0
    rows: tuple[Mutation, ...] = ()
    positions: tuple[tuple[int, int], ...] = ()
    state: ClusterState | None = None
    refused: str = ""
    after: Micros = REPLY
    learns: ClusterState | None = None


class ScriptedRequest(NamedTuple):
    """A request that a replica got. ``node``: its name. ``at``: virtual time. ``epoch``: of the plan."""

    at: Micros
    node: str
    method: str
    epoch: Epoch
    is_digest: bool


class UnscriptedRequest(AssertionError):
    """A replica got a request, and its script is empty."""


class _Due(NamedTuple):
    at: Micros
    number: int
    asked: AskReplica
    reply: ScriptedReply | None


class ScriptedReplicas:
    """The replicas of one request. ``asked``: the requests that they got. ``now``: the virtual time in microseconds.

    Args:
        state: The state that the coordinator knows at first.
        replies: For each node name its answers in order. None: the answer is lost. The last one is repeated.
        learns: States that the coordinator learns at a virtual time, whether or not an answer arrives.
        has_log: Whether read barriers succeed.
        ends: End offsets of the mutations topic, by partition. None: unknown.
    """

    def __init__(
        self,
        state: ClusterState,
        replies: Mapping[str, Sequence[ScriptedReply | None]],
        *,
        learns: Iterable[tuple[Micros, ClusterState]] = (),
        has_log: bool = True,
        ends: Positions | None = None,
    ) -> None:
        self.state = state
        self.now: Micros = 0
        self.asked: list[ScriptedRequest] = []
        self._replies = {node: list(given) for node, given in replies.items()}
        self._learns = sorted(learns, key=lambda one: one[0])
        self._has_log, self._ends = has_log, ends
        self._due: list[_Due] = []

    # ------------------------------------------------------------------------------------------- requests

    def write(
        self,
        keyspace: str,
        name: bytes,
        value: bytes | None,
        *,
        timestamp: Micros,
        level: Level = Level.QUORUM,
        datacenter: str = "",
        timeout_s: float = 10.0,
    ) -> RegisterResult:
        """Write a register (None: delete it), as ``ringlog.client.data.coordinator`` does. Raises its errors."""
        cell = RegisterCell(timestamp, value or b"", value is None)
        steps = registers.write(key_of(keyspace, name), cell, level, datacenter, _micros(timeout_s))
        return self.perform(steps)

    def read(
        self,
        keyspace: str,
        name: bytes,
        *,
        level: Level = Level.QUORUM,
        datacenter: str = "",
        timeout_s: float = 10.0,
    ) -> RegisterResult:
        """Read a register. Raises RequestTimedOut, RequestImpossible."""
        return self.perform(registers.read(key_of(keyspace, name), level, datacenter, _micros(timeout_s)))

    def read_rows(
        self,
        table: str,
        partition_key: bytes,
        *,
        at: Positions | None = None,
        level: Level = Level.QUORUM,
        datacenter: str = "",
        timeout_s: float = 10.0,
    ) -> FoundPartition:
        """Read a partition of ``table`` by its composed key. Raises RequestTimedOut, RequestImpossible."""
        return self.perform(row_reads.read(table, partition_key, at or {}, level, datacenter, _micros(timeout_s)))

    # -------------------------------------------------------------------------------------------- effects

    def perform(self, steps: Steps[T]) -> T:
        """Run the steps of a request."""
        return run_steps(steps, self._perform)

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Newest():
                return self.state
            case Now():
                return self.now
            case AskReplica():
                self._ask(effect)
            case AwaitReplies(timeout):
                return self._await(timeout)
            case ReadNewest():
                return self._has_log
            case ReadEnds():
                return self._ends
            case Until():
                return self._until(effect)
            case _:
                raise AssertionError(f"a script does not perform {effect}")

    def _ask(self, asked: AskReplica) -> None:
        name = self.state.nodes[asked.node].name if asked.node in self.state.nodes else asked.node
        planned = asked.planned.epoch
        self.asked.append(ScriptedRequest(self.now, name, asked.request.method, planned, asked.is_digest))
        script = self._replies.get(name)
        if not script:
            raise UnscriptedRequest(f"{name} got a {asked.request.method} at epoch {planned}, and has no script")
        reply = script.pop(0) if len(script) > 1 else script[0]
        at = self.now + (asked.timeout if reply is None else min(reply.after, asked.timeout))
        is_late = reply is not None and reply.after > asked.timeout
        self._due.append(_Due(at, len(self.asked), asked, None if is_late else reply))

    def _await(self, timeout: Micros) -> list[tuple[AskReplica, FoundAnswer | None]]:
        """Pass the time until answers or a state arrive, or ``timeout`` is over."""
        until = min([self.now + timeout, *(due.at for due in self._due), *(at for at, _ in self._learns)])
        self._pass_to(until)
        arrived = sorted(due for due in self._due if due.at <= self.now)
        self._due = [due for due in self._due if due.at > self.now]
        found = []
        for due in arrived:
            if due.reply is not None and due.reply.learns is not None:
                self.state = due.reply.learns
            found.append((due.asked, None if due.reply is None else self._found(due.asked, due.reply)))
        return found

    def _until(self, effect: Until[T]) -> T | None:
        """Pass the time until the wanted state is known, or the timeout is over."""
        end = self.now + effect.timeout
        while (found := effect.found(self.state)) is None and self._learns and self._learns[0][0] <= end:
            self._pass_to(self._learns[0][0])
        if found is None:
            self._pass_to(end)
        return found

    def _pass_to(self, at: Micros) -> None:
        self.now = max(self.now, at)
        while self._learns and self._learns[0][0] <= self.now:
            self.state = self._learns.pop(0)[1]

    def _found(self, asked: AskReplica, reply: ScriptedReply) -> FoundAnswer:
        applied = reply.state or self.state
        answer = Answer(asked.node, applied.epoch, reply.refused, applied.state_id, "scripted")
        if not isinstance(asked.request, RegisterRequest):
            writes = tuple(sorted(map(encode_mutation, reply.rows)))
            digest = digest_of_writes(writes) if asked.is_digest else b""
            return FoundRows(answer, () if digest else writes, digest, dict(reply.positions))
        if reply.refused or asked.request.cell is not None:
            return FoundCell(answer)
        if reply.value is None:
            return FoundCell(answer, None)
        cell = RegisterCell(reply.timestamp, reply.value)
        shown = RegisterCell(cell.timestamp, b"") if asked.is_digest else cell
        return FoundCell(answer, shown, digest_of(cell) if asked.is_digest else b"")


def _micros(seconds: float) -> Micros:
    return int(seconds * 1e6)
