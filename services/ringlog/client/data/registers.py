"""Reads and writes of registers: the protocol of a request coordinator, as steps over effects.

Each request is planned on the newest state (``ringlog.client.data.plans``) and sent to replicas. Its answers are
evaluated on the newest state before it counts as a success. If the plan can no longer succeed, a new plan is made,
until the deadline.

A node without an answer is asked again every ``RESEND``. A node that refuses because it is behind is asked again at
once if it held the request for ``HELD``: it has then waited for its log. A request fails if a replica refuses it for a
missing right, unless that replica is older than the newest state.

A read asks one replica for the cell and the others for digests. If the digests differ, it asks all replicas for cells.

Invariant: reads at a quorum level are monotonic. Before such a read returns a cell, it ensures that the replicas of a
write at that level have the cell, and writes the cell to them if necessary.

``ringlog.client.data.coordinator`` runs these steps with threads, the simulator runs them in virtual time.

Source: Attiya, Bar-Noy, Dolev, "Sharing Memory Robustly in Message-Passing Systems" (the write-back of reads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ringlog.client.errors import NotAuthorized, RequestImpossible, RequestTimedOut
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, NodeId, Value, replace
from ringlog.protocol.effects import Effect, Newest, Now, Until
from ringlog.wire.data import BEHIND, NOT_AUTHORIZED, Key, ReadReply, RegisterCell, WriteReply, digest_of, rank

RESEND: Micros = 300_000
CALL: Micros = 3_000_000
HELD: Micros = 100_000
"""A replica that is behind and held the request at least this long is asked again without a pause."""
BACKOFF: Micros = 50_000
BARRIER_LEAST: Micros = 100_000
WAIT_LEAST: Micros = 1_000


class RegisterRequest(Value):
    """The request to each replica.

    ``method``: Write, Repair or Read. ``timeout``: the time limit that the client gave. ``deadline``: the end of that
    time. ``cell``: the cell to write. ``is_lean``: one replica returns the cell, the others may return digests.
    """

    wanted: plans.ClientRequest
    key: Key
    method: str
    timeout: Micros
    deadline: Micros
    cell: RegisterCell | None = None
    is_lean: bool = False

    def planned(self, state: ClusterState) -> RequestPlan | Failed:
        """Plan the request on ``state``. A register belongs to a table if and only if its keyspace uses tablets."""
        keyspace = self.key.keyspace
        table = state.tables.get(keyspace)
        if self.wanted.table and table is None:
            return Failed("unknown_table", f"table {keyspace} does not exist at epoch {state.epoch}")
        if table is not None and table.tablets is None:
            return Failed("no_tablets", f"{table.full_name} is not in tablets: pass its keyspace only")
        return plans.plan(state, self.wanted)

    def __str__(self) -> str:
        return f"{self.method.lower()} of {self.key.keyspace} {self.key.name[:40]!r} at {self.wanted.level}"


class ReplicaRequest(Protocol):
    """The part of a request that ``succeed`` needs, for registers and for rows (``ringlog.client.data.row_reads``)."""

    @property
    def method(self) -> str: ...
    @property
    def timeout(self) -> Micros: ...
    @property
    def deadline(self) -> Micros: ...
    @property
    def is_lean(self) -> bool: ...
    def planned(self, state: ClusterState) -> RequestPlan | Failed: ...


class FoundAnswer(Value):
    """A decoded reply of a replica."""

    answer: Answer


class FoundCell(FoundAnswer):
    """An answer with the state of the register. ``digest``: replaces the cell's value if not empty."""

    cell: RegisterCell | None = None
    digest: bytes = b""


F = TypeVar("F", bound=FoundAnswer)


class AskReplica(Effect[None], Value, eq=False):
    """Effect: send ``request``, planned on ``planned``, to ``node`` once. Has no outcome.

    ``AwaitReplies`` returns the reply, or None if there is none within ``timeout``. ``is_digest``: the reply may omit
    the value. ``mattered``: see ``RequestPlan``.
    """

    node: NodeId
    request: ReplicaRequest
    planned: ClusterState
    mattered: Epoch
    is_digest: bool
    timeout: Micros

    @property
    def head(self) -> tuple[str, NodeId, Epoch, str]:
        """The first fields of the message: cluster, replica, the epoch that it must have applied, that state's id."""
        planned = self.planned
        return planned.cluster_id, self.node, self.mattered, state_id_at(planned, self.mattered)

    @property
    def newest(self) -> tuple[Epoch, str]:
        """The last fields of the message: the newest epoch that the coordinator knows, and the id of its state."""
        return self.planned.epoch, self.planned.state_id


class AwaitReplies(Effect[Sequence[tuple[AskReplica, F | None]]], Value, Generic[F]):
    """Effect: wait for replies or a newer state, at most ``timeout``.

    Outcome: the replies since the last wait, each with its request.
    """

    timeout: Micros


class ReadNewest(Effect[bool], Value):
    """Effect: a read barrier. Outcome: False if it did not succeed within ``timeout``."""

    timeout: Micros


ReceivedReply = tuple[AskReplica, FoundAnswer | None]


class RegisterResult(Value):
    """A successful request.

    ``cell``: the written or found cell. None: the register is empty. A cell with ``deleted`` is a tombstone. ``plan``:
    the plan that succeeded. ``epoch``: the epoch of the state that its answers were evaluated on. ``answers``: the
    answers that counted. ``attempts``: number of plans. ``repair``: the plan of the write that a read made before it
    returned.
    """

    key: Key
    cell: RegisterCell | None
    plan: RequestPlan
    epoch: Epoch
    answers: tuple[Answer, ...]
    attempts: int
    repair: RequestPlan | None = None


class JudgedAttempt(Value, Generic[F]):
    """The outcome of an attempt, with its answers and the state that they were evaluated on."""

    made: RequestPlan
    outcome: Outcome
    found: tuple[F, ...]
    state: ClusterState


class Success(Value, Generic[F]):
    """A successful plan. ``good``: the answers that count as of ``state``; ``attempts``: number of plans."""

    made: RequestPlan
    state: ClusterState
    good: tuple[F, ...]
    attempts: int


# ---------------------------------------------------------------------------------------------------- requests


async def write(key: Key, cell: RegisterCell, level: Level, datacenter: str, timeout: Micros) -> RegisterResult:
    """Write ``cell``. Raises RequestTimedOut (a later read may or may not return it), RequestImpossible."""
    wanted = plans.request_of(key, Access.WRITE, level, datacenter)
    deadline = await Now() + timeout
    done: Success[FoundCell] = await retry_request(RegisterRequest(wanted, key, "Write", timeout, deadline, cell))
    return _result(done, key, cell)


async def read(key: Key, level: Level, datacenter: str, timeout: Micros) -> RegisterResult:
    """Read a register. Raises RequestTimedOut, RequestImpossible."""
    wanted = plans.request_of(key, Access.READ, level, datacenter)
    deadline = await Now() + timeout
    request = RegisterRequest(wanted, key, "Read", timeout, deadline, is_lean=True)
    done: Success[FoundCell] = await retry_request(request)
    if _differ(done.good):
        whole: Success[FoundCell] = await retry_request(replace(request, is_lean=False))
        done = replace(whole, attempts=done.attempts + whole.attempts)
    cells = (found.cell for found in done.good if found.cell is not None and not found.digest)
    best = max(cells, key=rank, default=None)
    if best is None:
        return _result(done, key, None)
    # The write-back: without it, a later read could miss the cell and return an older one.
    holders = [found.answer for found in done.good if _digest(found) == digest_of(best)]
    repair = plans.repair(done.made, holders, done.state)
    if isinstance(repair, Failed):
        raise RequestImpossible(f"repair of {key.keyspace}", repair.code, repair.detail)
    if repair is not None:
        write_back = RegisterRequest(repair.request, key, "Repair", timeout, deadline, best)
        await retry_request(write_back, [FoundCell(answer) for answer in holders])
    return _result(done, key, best, repair)


def _result(
    done: Success[FoundCell], key: Key, cell: RegisterCell | None, repair: RequestPlan | None = None
) -> RegisterResult:
    answers = tuple(found.answer for found in done.good)
    return RegisterResult(key, cell, done.made, done.state.epoch, answers, done.attempts, repair)


def found_in(reply: WriteReply | ReadReply) -> FoundCell:
    """Convert a reply to an answer."""
    answer = Answer(reply.node, reply.epoch, reply.refused, reply.state_id, reply.detail)
    return FoundCell(answer, reply.cell, reply.digest) if isinstance(reply, ReadReply) else FoundCell(answer)


def _differ(good: Sequence[FoundCell]) -> bool:
    """Return whether the answers differ, or none of them contains the whole cell."""
    return len({_digest(found) for found in good}) > 1 or all(found.digest for found in good)


def _digest(found: FoundCell) -> bytes:
    return found.digest or digest_of(found.cell)


# ---------------------------------------------------------------------------------------------------- plans


async def retry_request(request: ReplicaRequest, kept: Sequence[F] = ()) -> Success[F]:
    """Plan and ask until a plan succeeds or the deadline passes. ``kept``: answers that already count."""
    attempts, has_looked = 0, False
    waited_for: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    while True:
        state = await Newest()
        made = request.planned(state)
        if isinstance(made, RequestPlan):
            attempts += 1
            judged = await _Attempt(request, state, made, kept).run()
            outcome, refused = judged.outcome, _refusals(judged) or refused
            if isinstance(outcome, Satisfied):
                return Success(made, judged.state, _good(judged), attempts)
            if isinstance(outcome, Replan):
                kept = [found for found in judged.found if found.answer in outcome.kept]
            if isinstance(outcome, AwaitedAnswers):
                waited_for = tuple(_name(judged.state, node) for node in outcome.nodes)
            if (denied := _denied(judged)) is not None:
                if has_looked:
                    raise NotAuthorized(str(request), denied.detail, denied.epoch)
                has_looked = await ReadNewest(max(request.deadline - await Now(), BARRIER_LEAST))
        # A read barrier came before this plan, so the failure does not come from a stale state.
        elif has_looked:
            raise RequestImpossible(str(request), made.code, made.detail)
        else:
            has_looked = await ReadNewest(max(request.deadline - await Now(), BARRIER_LEAST))
            waited_for = () if has_looked else ("the metadata log",)
        left = request.deadline - await Now()
        if left <= 0:
            epoch = (await Newest()).epoch
            raise RequestTimedOut(str(request), request.timeout / 1e6, waited_for, epoch, refused)
        await Until(_later_than(state), min(BACKOFF, max(left, WAIT_LEAST)), "a newer epoch")


def _good(judged: JudgedAttempt[F]) -> tuple[F, ...]:
    now = plans.replanned(judged.made, judged.state)
    assert isinstance(now, RequestPlan), "a satisfied consistency level can be planned"
    return tuple(found for found in judged.found if plans.counts(now, found.answer))


def _later_than(seen: ClusterState) -> Callable[[ClusterState], bool | None]:
    return lambda state: state.epoch > seen.epoch or None


def _refusals(judged: JudgedAttempt[F]) -> tuple[str, ...]:
    """Return the refusing nodes with their codes."""
    answers = [found.answer for found in judged.found if found.answer.refused]
    return tuple(sorted({f"{_name(judged.state, answer.node)} {answer.refused}" for answer in answers}))


def _denied(judged: JudgedAttempt[F]) -> Answer | None:
    """Return a refusal for a missing right under the newest state, or None. An older replica may lack a grant."""
    answers = (found.answer for found in judged.found)
    newest = judged.state.epoch
    return next((one for one in answers if one.refused == NOT_AUTHORIZED and one.epoch >= newest), None)


def _name(state: ClusterState, node: NodeId) -> str:
    found = state.nodes.get(node)
    return node if found is None else found.name


# ---------------------------------------------------------------------------------------------------- answers


class _Attempt(Generic[F]):
    """One plan, ``made`` on ``planned``, and its answers. ``kept``: answers of an earlier plan that count for it."""

    def __init__(self, request: ReplicaRequest, planned: ClusterState, made: RequestPlan, kept: Sequence[F]) -> None:
        self._request = request
        self._planned = planned
        self._made = made
        self._found: list[F] = list(kept)
        self._asking: dict[AskReplica, Micros] = {}
        self._asked: set[NodeId] = set()

    async def run(self) -> JudgedAttempt[F]:
        """Ask replicas until the answers decide or the deadline passes. The outcome is then AwaitedAnswers."""
        deadline = self._request.deadline
        again = await Now()
        while True:
            state = await Newest()
            # Drop answers of another history, so that their nodes are asked again.
            self._found = [found for found in self._found if plans.is_of_this_log(found.answer, state)]
            outcome = plans.count(self._made, [found.answer for found in self._found], state)
            now = await Now()
            if not isinstance(outcome, AwaitedAnswers) or now >= deadline:
                return JudgedAttempt(self._made, outcome, tuple(self._found), state)
            silent = self._silent()
            if silent and now >= again:
                again = now + RESEND
                for node in silent:
                    await self._ask(node, now)
                silent = []
            until = min(again, deadline) if silent else deadline
            replies: Sequence[tuple[AskReplica, F | None]] = await AwaitReplies(max(until - now, WAIT_LEAST))
            for asked, reply in replies:
                sent = self._asking.pop(asked, None)
                if sent is None or reply is None:
                    continue
                if reply.answer.refused != BEHIND:
                    self._found.append(reply)
                elif sent + HELD <= (now := await Now()) < deadline:
                    await self._ask(asked.node, now)

    def _silent(self) -> list[NodeId]:
        """Return the nodes of the plan that have not answered and are not being asked."""
        answered = {found.answer.node for found in self._found} | {asked.node for asked in self._asking}
        return [node for node in self._made.asked if node not in answered]

    def _ask(self, node: NodeId, now: Micros) -> AskReplica:
        """Ask a node. The first replica returns the whole cell, and so does each replica that is asked again."""
        request = self._request
        is_digest = request.is_lean and node != self._made.asked[0] and node not in self._asked
        asked = AskReplica(
            node, request, self._planned, self._made.mattered, is_digest, min(request.deadline - now, CALL)
        )
        self._asking[asked] = now
        self._asked.add(node)
        return asked
