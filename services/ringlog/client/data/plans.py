"""Replica plans: whom a read or a write of one key asks, and which answers make it a success.

A plan is made on one state. It names the replicas to ask and its *needs*: a number of answers of this group. ``count``
judges the answers; it is to be asked again after each answer and after each new state.

- **Write quorum.** While a range moves, a write needs a quorum of the group as it was *and* of the group as it will be
  (``kernel.operations.moving``). Where one replica takes the place of another this is the same as counting both as one
  slot that votes when both have answered.
- **Re-check.** With K the newest state that the coordinator knows, an answer counts only if its node has been a
  member of the group at *every* epoch from the answer's to K's: ``since <= answer.epoch <= K.epoch``. What counts must
  meet K's needs, not the plan's. To compare the final groups is not enough: a node may have left, lost its rows and
  come back.
- **Reads of another time.** What a read got before the range last changed hands counts no more: it is asked again.
  Membership alone would not do. Where a group shrinks, a member that stays is given what a quorum of the others knew;
  alone it is a quorum from then on, and an answer that it gave before may miss a write that was done.
- **Another keyspace of that name.** Keyspaces with one replication share a placement, so membership says nothing of
  when the keyspace was made: an answer from before that is of its namesake.
- **What a replica must have reached.** A request names the last epoch that mattered for it (``RequestPlan.mattered``):
  the groups of its range are since then what they are now, so is its keyspace, and its table. A replica that has
  folded that far gives an answer that counts, whatever else it has not heard of; one that has not waits for its log,
  instead of an answer in vain. Safety rests on the re-check alone.
- **Answers from the future.** An answer of an epoch above K's counts when that epoch is known, not before.
- **Answers of another history.** An epoch does not name a state, its id does: an answer whose state was not the one of
  that epoch in the log that the coordinator knows is no answer (``is_of_this_log``).

A read needs its quorum of the read group alone. What it found must then be as safe as a write before it is given away,
or a later read could miss it: ``repair`` says whether those who had it already meet a *write's* needs, which during a
movement is more than a read quorum.

Source: CEP-21, the sections on the coordination of reads and writes, and CASSANDRA-21200 for the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ringlog.kernel.history import contradicts
from ringlog.kernel.model.state import ClusterState, Replica
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.moving import write_groups
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.groups import serving
from ringlog.kernel.values import Epoch, NodeId, Token
from ringlog.wire.data import Key


class Level(StrEnum):
    """Consistency level: how many replicas must have answered."""

    ONE = "ONE"
    TWO = "TWO"
    THREE = "THREE"
    QUORUM = "QUORUM"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"


class Access(StrEnum):
    """What is done to a key."""

    READ = "read"
    WRITE = "write"


_NUMBER = {Level.ONE: 1, Level.TWO: 2, Level.THREE: 3}


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client wants. ``datacenter``: the coordinator's own, which LOCAL_QUORUM is about.

    ``table``: its bare name; it says who serves the token where the keyspace is in tablets.
    """

    keyspace: str
    token: Token
    access: Access
    level: Level
    datacenter: str
    table: str = ""


def request_of(key: Key, access: Access, level: Level, datacenter: str) -> ClientRequest:
    """The request of a register: where it is in tablets its keyspace names the table, too (``keyspace.table``)."""
    keyspace, _, table = key.keyspace.partition(".")
    return ClientRequest(keyspace, key.token, access, level, datacenter, table)


@dataclass(frozen=True, slots=True)
class AnswersNeeded:
    """``count`` of ``members`` must have answered. ``datacenter``: empty where the group counts as a whole."""

    group: str
    datacenter: str
    members: tuple[NodeId, ...]
    count: int


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Whom to ask, in the order of the ring, and what must be met.

    ``epoch``: of the state it was made on. ``changed``: the epoch that last changed who serves the range. ``replicas``:
    everyone whose answer may count, with the epoch since which he has been a member. ``state_id``: of the state it was
    made on. ``mattered``: the epoch that each of them must have reached to answer. ``made``: the epoch that made the
    keyspace.
    """

    request: ClientRequest
    epoch: Epoch
    changed: Epoch
    asked: tuple[NodeId, ...]
    needs: tuple[AnswersNeeded, ...]
    replicas: tuple[Replica, ...]
    state_id: str = ""
    mattered: Epoch = 0
    made: Epoch = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replica said. ``epoch``: that at which it admitted the request, or refused it; ``refused``: why, if so.

    ``state_id``: of the state at that epoch, in the replica's log; empty if it does not say.
    """

    node: NodeId
    epoch: Epoch
    refused: str = ""
    state_id: str = ""


@dataclass(frozen=True, slots=True)
class Satisfied:
    """Success, as of ``epoch``; ``counted``: the nodes whose answers count."""

    epoch: Epoch
    counted: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class AwaitedAnswers:
    """For answers of ``nodes`` and, if ``epoch`` is above the newest state known, for that state."""

    nodes: tuple[NodeId, ...]
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Replan:
    """The plan cannot succeed any more, a new one may: the answers of ``kept`` count for it."""

    kept: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """No plan can succeed on this state.

    ``code``: unknown_keyspace, unknown_table, no_tablets, no_replicas, no_local_replicas or too_few_replicas.
    """

    code: str
    detail: str


Outcome = Satisfied | AwaitedAnswers | Replan | Failed


# ---------------------------------------------------------------------------------------------------- planning


def plan(state: ClusterState, request: ClientRequest) -> RequestPlan | Failed:
    """The plan of a request on ``state``."""
    if request.keyspace not in state.keyspaces:
        return Failed("unknown_keyspace", f"epoch {state.epoch} has no keyspace {request.keyspace}")
    served = serving(state, request.keyspace, request.table, request.token)
    if served is None:
        in_ring = strategy_of(state.keyspaces[request.keyspace].replication).in_ring
        tables = "" if in_ring else "; its tables are in tablets: name one"
        return Failed("no_replicas", f"nobody serves {request.keyspace} at epoch {state.epoch}{tables}")
    live, moving = served
    if request.access is Access.READ:
        replicas, groups = live.read, {"readers": tuple(replica.node for replica in live.read)}
    else:
        replicas, groups = live.write, write_groups(tuple(replica.node for replica in live.write), moving)
    needs: list[AnswersNeeded] = []
    for name, members in groups.items():
        if members:
            found = _needs(state, request, name, members)
            if isinstance(found, Failed):
                return found
            needs += found
    if not needs:
        return Failed("no_replicas", f"nobody may be asked for token {request.token} at epoch {state.epoch}")
    useful = {node for need in needs for node in need.members}
    local = request.level is Level.LOCAL_QUORUM and request.access is Access.READ
    asked = tuple(replica.node for replica in replicas if replica.node in useful or not local)
    made = _made(state, request)
    mattered = _mattered(state, request, max(live.changed, made))
    whole = tuple(needs)
    return RequestPlan(request, state.epoch, live.changed, asked, whole, replicas, state.state_id, mattered, made)


def _mattered(state: ClusterState, request: ClientRequest, found: Epoch) -> Epoch:
    """The last epoch that mattered for a request; ``found``: for its keyspace and its range.

    Not below what the history remembers: the id of that epoch's state goes with the request.
    """
    table = state.tables.get(f"{request.keyspace}.{request.table}") if request.table else None
    found = max(found, table.changed if table is not None else 0)
    return min(max(found, state.history.first), state.epoch)


def _made(state: ClusterState, request: ClientRequest) -> Epoch:
    """Return the epoch that created the table, or the keyspace if the request names no table."""
    table = state.tables.get(f"{request.keyspace}.{request.table}")
    return max(state.keyspaces[request.keyspace].made, 0 if table is None else table.made)


def _needs(
    state: ClusterState, request: ClientRequest, group: str, members: tuple[NodeId, ...]
) -> tuple[AnswersNeeded, ...] | Failed:
    """What the level asks of one group."""
    level = request.level
    if level in _NUMBER:
        if len(members) < _NUMBER[level]:
            return Failed("too_few_replicas", f"{level} of {len(members)} replicas at epoch {state.epoch}")
        return (AnswersNeeded(group, "", members, _NUMBER[level]),)
    if level is Level.ALL:
        return (AnswersNeeded(group, "", members, len(members)),)
    if level is Level.QUORUM:
        return (AnswersNeeded(group, "", members, quorum(len(members))),)
    local: dict[str, list[NodeId]] = {}
    for node in members:
        local.setdefault(state.nodes[node].datacenter, []).append(node)
    if level is Level.LOCAL_QUORUM:
        if request.datacenter not in local:
            return Failed("no_local_replicas", f"no replica in {request.datacenter} at epoch {state.epoch}")
        local = {request.datacenter: local[request.datacenter]}
    return tuple(AnswersNeeded(group, name, tuple(some), quorum(len(some))) for name, some in sorted(local.items()))


# ---------------------------------------------------------------------------------------------------- counting


def count(made: RequestPlan, answers: Iterable[Answer], newest: ClusterState) -> Outcome:
    """What the answers to ``made`` are worth; ``newest``: the newest state that the coordinator knows.

    Several answers of one node may be given. Those of an earlier plan that are kept are given again.
    """
    answers = tuple(answers)
    now = as_of(made, newest)
    if isinstance(now, Failed):
        return now
    good = tuple(answer for answer in answers if counts(now, answer))
    counted = {answer.node for answer in good}
    if met(now.needs, counted):
        return Satisfied(newest.epoch, tuple(sorted(counted)))
    ahead = max((answer.epoch for answer in answers), default=0)
    silent = set(made.asked).difference(answer.node for answer in answers)
    if ahead > newest.epoch:
        return AwaitedAnswers(tuple(sorted(silent)), ahead)
    if met(now.needs, counted | silent):
        return AwaitedAnswers(tuple(sorted(silent)), newest.epoch)
    return Replan(good)


def as_of(made: RequestPlan, newest: ClusterState) -> RequestPlan | Failed:
    """The plan of the same request on ``newest``."""
    return made if (made.epoch, made.state_id) == (newest.epoch, newest.state_id) else plan(newest, made.request)


def is_of_this_log(answer: Answer, newest: ClusterState) -> bool:
    """False if the answer's epoch was another state in the log that the coordinator knows: then it is no answer.

    A refusal counts for nothing, and says why, whatever log it is of.
    """
    return bool(answer.refused) or not contradicts(newest, answer.epoch, answer.state_id)


def counts(now: RequestPlan, answer: Answer) -> bool:
    """True if the answer's node has been a member at every epoch from the answer's to the plan's.

    What a read got must be of the group as it is now.
    """
    if answer.refused or answer.epoch > now.epoch:
        return False
    if answer.epoch < now.made:
        return False
    if now.request.access is Access.READ and answer.epoch < now.changed:
        return False
    return any(replica.node == answer.node and replica.since <= answer.epoch for replica in now.replicas)


def met(needs: Iterable[AnswersNeeded], nodes: set[NodeId]) -> bool:
    """True if the nodes are enough for every need."""
    return all(len(nodes.intersection(need.members)) >= need.count for need in needs)


_REPAIRED: Mapping[Level, Level] = {
    Level.QUORUM: Level.QUORUM,
    Level.ALL: Level.QUORUM,
    Level.LOCAL_QUORUM: Level.LOCAL_QUORUM,
    Level.EACH_QUORUM: Level.EACH_QUORUM,
}


def repair(read: RequestPlan, holders: Iterable[Answer], newest: ClusterState) -> RequestPlan | Failed | None:
    """The write that must succeed before the newest cell of a read is given away; None if none is needed.

    ``holders``: the counted answers of those who had that cell. Levels below a quorum repair nothing.
    """
    level = _REPAIRED.get(read.request.level)
    if level is None:
        return None
    asked = replace(read.request, access=Access.WRITE, level=level)
    write = plan(newest, asked)
    if isinstance(write, Failed):
        return write
    has = {answer.node for answer in holders if counts(write, answer)}
    return None if met(write.needs, has) else write
