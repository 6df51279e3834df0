"""Reads and writes of registers: in which order a program plans, asks, judges, plans again and repairs.

Each request is planned on the newest state (``ringlog.client.data.plans``), carried out, and judged again on the newest
state before it counts as a success; where the plan cannot succeed any more, a new one is made, within the deadline. A
node that gave no answer is asked again after a while, one that is behind at once: it has held the request for a moment
before it says so, and what it waits for is its own log.

A read asks one replica for the cell and the others for digests; if they differ, all are asked for their cells. A read
at a quorum level makes sure, before it answers, that what it found is where a write at that level would be: where it
is not, it is written there first. So reads never go back (Attiya, Bar-Noy, Dolev).

``ringlog.client.data.coordinator`` performs these steps with threads, the simulator's applications on virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from ringlog.client.data import plans
from ringlog.client.data.plans import (
    Access,
    Answer,
    AwaitedAnswers,
    Failed,
    Level,
    Outcome,
    Replan,
    RequestPlan,
    Satisfied,
)
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId
from ringlog.protocol.effects import Newest, Now, Steps, Until
from ringlog.wire.data import BEHIND, Key, ReadReply, RegisterCell, WriteReply, digest_of, rank

RESEND: Micros = 300_000
CALL: Micros = 3_000_000
HELD: Micros = 100_000
"""A replica that is behind and has held the request this long is asked again at once: it sets the pace."""
BACKOFF: Micros = 50_000
BARRIER_LEAST: Micros = 100_000
WAIT_LEAST: Micros = 1_000


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """What is asked of each replica. ``method``: Write, Repair or Read; ``cell``: what to write; ``is_lean``: digests
    will do, but for one replica.

    ``timeout``: what its client gave it, ``deadline``: when that is over.
    """

    wanted: plans.ClientRequest
    key: Key
    method: str
    timeout: Micros
    deadline: Micros
    cell: RegisterCell | None = None
    is_lean: bool = False

    def planned(self, state: ClusterState) -> RequestPlan | Failed:
        """The plan; registers are those of a table just where the table is in tablets."""
        keyspace = self.key.keyspace
        table = state.tables.get(keyspace)
        if self.wanted.table and table is None:
            return Failed("unknown_table", f"epoch {state.epoch} has no table {keyspace}")
        if table is not None and table.tablets is None:
            return Failed("no_tablets", f"{table.full_name} is not in tablets: name its keyspace alone")
        return plans.plan(state, self.wanted)

    def __str__(self) -> str:
        return f"{self.method.lower()} of {self.key.keyspace} {self.key.name[:40]!r} at {self.wanted.level}"


class ReplicaRequest(Protocol):
    """What ``succeed`` knows of a request: one of a register, or of rows (``ringlog.client.data.row_reads``)."""

    @property
    def method(self) -> str: ...
    @property
    def timeout(self) -> Micros: ...
    @property
    def deadline(self) -> Micros: ...
    @property
    def is_lean(self) -> bool: ...
    def planned(self, state: ClusterState) -> RequestPlan | Failed: ...


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """What a replica replied."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class FoundCell(FoundAnswer):
    """An answer, and what it says of the register. ``digest``: in place of the cell's value, if not empty."""

    cell: RegisterCell | None = None
    digest: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class AskReplica:
    """Send ``request``, planned on ``planned``, to ``node``, once; ``is_digest``: the value may stay away. No outcome:
    ``AwaitReplies`` has the reply, or None where there will be none, after ``timeout`` at the latest. ``mattered``: as
    the plan says.
    """

    node: NodeId
    request: ReplicaRequest
    planned: ClusterState
    mattered: Epoch
    is_digest: bool
    timeout: Micros

    @property
    def head(self) -> tuple[str, NodeId, Epoch, str]:
        """How its message begins: cluster, replica, the epoch that this one must have reached, the id of its state."""
        planned = self.planned
        return planned.cluster_id, self.node, self.mattered, state_id_at(planned, self.mattered)

    @property
    def newest(self) -> tuple[Epoch, str]:
        """How it ends: the newest epoch that the coordinator knows, and the id of its state."""
        return self.planned.epoch, self.planned.state_id


@dataclass(frozen=True, slots=True)
class AwaitReplies:
    """Wait for replies or a newer state, at most ``timeout``; outcome: the replies since the last time, each with what
    it replies to.
    """

    timeout: Micros


F = TypeVar("F", bound=FoundAnswer)


@dataclass(frozen=True, slots=True)
class ReadNewest:
    """A read barrier; outcome: False if there was none within ``timeout``."""

    timeout: Micros


ReceivedReply = tuple[AskReplica, FoundAnswer | None]


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """A success. ``cell``: what was written, or found (None: nothing is there; one that is ``deleted``: a tombstone).

    ``plan``: the one that succeeded; ``epoch``: at which its answers were judged; ``answers``: those that counted;
    ``attempts``: plans that were tried; ``repair``: the plan of the write that a read did before it answered.
    """

    key: Key
    cell: RegisterCell | None
    plan: RequestPlan
    epoch: Epoch
    answers: tuple[Answer, ...]
    attempts: int
    repair: RequestPlan | None = None


@dataclass(frozen=True, slots=True)
class JudgedAttempt(Generic[F]):
    """The verdict on an attempt, the answers that it was made on, and the state that they were judged on."""

    made: RequestPlan
    outcome: Outcome
    found: tuple[F, ...]
    state: ClusterState


@dataclass(frozen=True, slots=True)
class Success(Generic[F]):
    """``good``: the answers that count, as of ``state``; ``attempts``: plans that were tried."""

    made: RequestPlan
    state: ClusterState
    good: tuple[F, ...]
    attempts: int


# ---------------------------------------------------------------------------------------------------- requests


def write(key: Key, cell: RegisterCell, level: Level, datacenter: str, timeout: Micros) -> Steps[RegisterResult]:
    """Write ``cell``. Raises RequestTimedOut (nobody knows whether it will be seen), RequestImpossible."""
    wanted = plans.request_of(key, Access.WRITE, level, datacenter)
    deadline = (yield Now()) + timeout
    done: Success[FoundCell] = yield from succeed(RegisterRequest(wanted, key, "Write", timeout, deadline, cell))
    return _result(done, key, cell)


def read(key: Key, level: Level, datacenter: str, timeout: Micros) -> Steps[RegisterResult]:
    """Read a register. Raises RequestTimedOut, RequestImpossible."""
    wanted = plans.request_of(key, Access.READ, level, datacenter)
    deadline = (yield Now()) + timeout
    request = RegisterRequest(wanted, key, "Read", timeout, deadline, is_lean=True)
    done: Success[FoundCell] = yield from succeed(request)
    if _differ(done.good):
        whole: Success[FoundCell] = yield from succeed(replace(request, is_lean=False))
        done = replace(whole, attempts=done.attempts + whole.attempts)
    cells = (found.cell for found in done.good if found.cell is not None and not found.digest)
    best = max(cells, key=rank, default=None)
    if best is None:
        return _result(done, key, None)
    holders = [found.answer for found in done.good if _digest(found) == digest_of(best)]
    repair = plans.repair(done.made, holders, done.state)
    if isinstance(repair, Failed):
        raise RequestImpossible(f"repair of {key.keyspace}", repair.code, repair.detail)
    if repair is not None:
        write_back = RegisterRequest(repair.request, key, "Repair", timeout, deadline, best)
        yield from succeed(write_back, [FoundCell(answer) for answer in holders])
    return _result(done, key, best, repair)


def _result(
    done: Success[FoundCell], key: Key, cell: RegisterCell | None, repair: RequestPlan | None = None
) -> RegisterResult:
    answers = tuple(found.answer for found in done.good)
    return RegisterResult(key, cell, done.made, done.state.epoch, answers, done.attempts, repair)


def found_in(reply: WriteReply | ReadReply) -> FoundCell:
    """What a replica replied, as it is judged."""
    answer = Answer(reply.node, reply.epoch, reply.refused, reply.state_id)
    return FoundCell(answer, reply.cell, reply.digest) if isinstance(reply, ReadReply) else FoundCell(answer)


def _differ(good: Sequence[FoundCell]) -> bool:
    """True unless all answers have the same cell, and one of them the whole of it."""
    return len({_digest(found) for found in good}) > 1 or all(found.digest for found in good)


def _digest(found: FoundCell) -> bytes:
    return found.digest or digest_of(found.cell)


# ---------------------------------------------------------------------------------------------------- plans


def succeed(request: ReplicaRequest, kept: Sequence[F] = ()) -> Steps[Success[F]]:
    """Plan and ask until it is a success, or the deadline comes. ``kept``: answers that count already."""
    attempts, has_looked = 0, False
    waited_for: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    while True:
        state: ClusterState = yield Newest()
        made = request.planned(state)
        if isinstance(made, RequestPlan):
            attempts += 1
            judged = yield from _Attempt(request, state, made, kept).run()
            outcome, refused = judged.outcome, _refusals(judged) or refused
            if isinstance(outcome, Satisfied):
                return Success(made, judged.state, _good(judged), attempts)
            if isinstance(outcome, Replan):
                kept = [found for found in judged.found if found.answer in outcome.kept]
            if isinstance(outcome, AwaitedAnswers):
                waited_for = tuple(_name(judged.state, node) for node in outcome.nodes)
        elif has_looked:
            raise RequestImpossible(str(request), made.code, made.detail)
        else:
            has_looked = yield ReadNewest(max(request.deadline - (yield Now()), BARRIER_LEAST))
            waited_for = () if has_looked else ("the metadata log",)
        left = request.deadline - (yield Now())
        if left <= 0:
            epoch = (yield Newest()).epoch
            raise RequestTimedOut(str(request), request.timeout / 1e6, waited_for, epoch, refused)
        yield Until(_later_than(state), min(BACKOFF, max(left, WAIT_LEAST)), "a newer epoch")


def _good(judged: JudgedAttempt[F]) -> tuple[F, ...]:
    now = plans.as_of(judged.made, judged.state)
    assert isinstance(now, RequestPlan), "what is satisfied can be planned"
    return tuple(found for found in judged.found if plans.counts(now, found.answer))


def _later_than(seen: ClusterState) -> Callable[[ClusterState], bool | None]:
    return lambda state: state.epoch > seen.epoch or None


def _refusals(judged: JudgedAttempt[F]) -> tuple[str, ...]:
    """Who refused, and with which code."""
    answers = [found.answer for found in judged.found if found.answer.refused]
    return tuple(sorted({f"{_name(judged.state, answer.node)} {answer.refused}" for answer in answers}))


def _name(state: ClusterState, node: NodeId) -> str:
    found = state.nodes.get(node)
    return node if found is None else found.name


# ---------------------------------------------------------------------------------------------------- answers


class _Attempt(Generic[F]):
    """Carries out one plan, ``made`` on ``planned``. ``kept``: answers of an earlier plan that count for this one."""

    def __init__(self, request: ReplicaRequest, planned: ClusterState, made: RequestPlan, kept: Sequence[F]) -> None:
        self._request = request
        self._planned = planned
        self._made = made
        self._found: list[F] = list(kept)
        self._asking: dict[AskReplica, Micros] = {}
        self._asked: set[NodeId] = set()

    def run(self) -> Steps[JudgedAttempt[F]]:
        """Ask until the answers decide, or the deadline comes: then the outcome is AwaitedAnswers."""
        deadline = self._request.deadline
        again: Micros = yield Now()
        while True:
            state: ClusterState = yield Newest()
            # An answer of another history is none: its node is asked again.
            self._found = [found for found in self._found if plans.is_of_this_log(found.answer, state)]
            outcome = plans.count(self._made, [found.answer for found in self._found], state)
            now: Micros = yield Now()
            if not isinstance(outcome, AwaitedAnswers) or now >= deadline:
                return JudgedAttempt(self._made, outcome, tuple(self._found), state)
            silent = self._silent()
            if silent and now >= again:
                again = now + RESEND
                for node in silent:
                    yield self._ask(node, now)
                silent = []
            until = min(again, deadline) if silent else deadline
            replies: Sequence[tuple[AskReplica, F | None]] = yield AwaitReplies(max(until - now, WAIT_LEAST))
            for asked, reply in replies:
                sent = self._asking.pop(asked, None)
                if sent is None or reply is None:
                    continue
                if reply.answer.refused != BEHIND:
                    self._found.append(reply)
                elif sent + HELD <= (now := (yield Now())) < deadline:
                    yield self._ask(asked.node, now)

    def _silent(self) -> list[NodeId]:
        """The nodes that are to answer, have not, and are not being asked."""
        answered = {found.answer.node for found in self._found} | {asked.node for asked in self._asking}
        return [node for node in self._made.asked if node not in answered]

    def _ask(self, node: NodeId, now: Micros) -> AskReplica:
        """The whole cell comes from one replica, and from any that must be asked twice."""
        request = self._request
        is_digest = request.is_lean and node != self._made.asked[0] and node not in self._asked
        asked = AskReplica(
            node, request, self._planned, self._made.mattered, is_digest, min(request.deadline - now, CALL)
        )
        self._asking[asked] = now
        self._asked.add(node)
        return asked
