"""Request plans: the replicas that a read or write of one key asks, and the answers that make it a success.

A plan is made on one state. It names the replicas to ask and the answers that it *needs* from each group. ``count``
evaluates the answers. Call it after each answer and after each new state.

Invariants:

- **Write quorum.** While a range moves, a write needs a quorum of the old group *and* of the new group
  (``kernel.operations.moving``). If one replica replaces another, this equals one shared slot that votes when both have
  answered.

- **Re-check.** Let K be the newest state that the coordinator knows. An answer counts only if its node was a member of
  the group at *every* epoch from the answer's to K's: ``since <= answer.epoch <= K.epoch``. The counted answers must
  meet K's needs, not the plan's. It is not enough to compare the final groups: a node may have left, lost its rows and
  returned.

- **Reads before a change of the range.** An answer from before the last change of the range's replicas does not count,
  and the read is repeated. Membership alone is not safe here. If a group shrinks, a remaining member receives the
  writes that a quorum of the others had. From then on it is a quorum alone, but its earlier answer may lack an
  acknowledged write.

- **Recreated keyspaces and tables.** An answer from before the creation of the keyspace or table belongs to an earlier
  one of that name. Membership does not show this, because keyspaces with the same replication share a placement.

- **Required epoch of a replica.** A request names the last epoch that mattered for it (``RequestPlan.mattered``). Since
  then the groups of its range, its keyspace and its table have not changed. The answer of a replica that has applied
  this epoch counts, even if the replica does not know newer epochs. Any other replica waits for its log before it
  answers. This only avoids answers that would not count: safety depends on the re-check alone.

- **Answers from a newer epoch.** An answer with an epoch above K's counts when the coordinator knows that epoch.

- **Answers of another history.** A state id identifies a state; an epoch does not. If the answer's state id differs
  from the id of that epoch in the coordinator's log, the answer is ignored (``is_of_this_log``).

A read needs only its quorum of the read group. Before it returns a value, the value must be stored as safely as a
write, or a later read could miss it. ``repair`` checks whether the replicas that have the value meet a *write's* needs.
During a range movement these are more than a read quorum.

Source: CEP-21, the sections on the coordination of reads and writes; CASSANDRA-21200 for the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from ringlog.kernel.history import contradicts
from ringlog.kernel.model.state import ClusterState, Replica
from ringlog.kernel.operations.gates import quorum
from ringlog.kernel.operations.moving import write_groups
from ringlog.kernel.ownership.kinds import strategy_of
from ringlog.kernel.tablets.groups import serving
from ringlog.kernel.values import Epoch, NodeId, Token, Value, replace
from ringlog.wire.data import Key


class Level(StrEnum):
    """Consistency level: the number of replicas that must answer."""

    ONE = "ONE"
    TWO = "TWO"
    THREE = "THREE"
    QUORUM = "QUORUM"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    EACH_QUORUM = "EACH_QUORUM"
    ALL = "ALL"


class Access(StrEnum):
    """The kind of access to a key."""

    READ = "read"
    WRITE = "write"


_NUMBER = {Level.ONE: 1, Level.TWO: 2, Level.THREE: 3}


class ClientRequest(Value):
    """A request of a client.

    ``datacenter``: the coordinator's own; LOCAL_QUORUM refers to it. ``table``: name without keyspace. With tablets, it
    determines the replicas of the token.
    """

    keyspace: str
    token: Token
    access: Access
    level: Level
    datacenter: str
    table: str = ""


def request_of(key: Key, access: Access, level: Level, datacenter: str) -> ClientRequest:
    """Return the request for a register. With tablets, the keyspace of the key also names the table
    (``keyspace.table``).
    """
    keyspace, _, table = key.keyspace.partition(".")
    return ClientRequest(keyspace, key.token, access, level, datacenter, table)


class AnswersNeeded(Value):
    """``count`` of ``members`` must answer. ``datacenter``: empty if the group counts as a whole."""

    group: str
    datacenter: str
    members: tuple[NodeId, ...]
    count: int


class RequestPlan(Value):
    """The replicas to ask, in ring order, and the answers that are needed.

    ``epoch``, ``state_id``: of the state that the plan was made on. ``changed``: the epoch that last changed the
    replicas of the range. ``replicas``: all replicas whose answers may count, each with the epoch since which it has
    been a member. ``mattered``: the epoch that a replica must have applied to answer. ``made``: the epoch that created
    the table or keyspace.
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


class Answer(Value):
    """The answer of a replica.

    ``epoch``: the replica's epoch when it admitted or refused the request. ``refused``: code of the refusal, or empty.
    ``state_id``: id of the state of that epoch in the replica's log; empty if not named. ``detail`` explains a refusal.
    """

    node: NodeId
    epoch: Epoch
    refused: str = ""
    state_id: str = ""
    detail: str = ""


class Satisfied(Value):
    """Success as of ``epoch``; ``counted``: the nodes whose answers count."""

    epoch: Epoch
    counted: tuple[NodeId, ...]


class AwaitedAnswers(Value):
    """More answers are needed: those of ``nodes``, and the state of ``epoch`` if it is above the newest known state."""

    nodes: tuple[NodeId, ...]
    epoch: Epoch


class Replan(Value):
    """The plan can no longer succeed, but a new plan may. Answers in ``kept`` count for the new plan."""

    kept: tuple[Answer, ...]


class Failed(Value):
    """No plan can succeed on this state.

    ``code``: unknown_keyspace, unknown_table, no_tablets, no_replicas, no_local_replicas or too_few_replicas.
    """

    code: str
    detail: str


Outcome = Satisfied | AwaitedAnswers | Replan | Failed


# ---------------------------------------------------------------------------------------------------- planning


def plan(state: ClusterState, request: ClientRequest) -> RequestPlan | Failed:
    """Plan a request on ``state``."""
    if request.keyspace not in state.keyspaces:
        return Failed("unknown_keyspace", f"keyspace {request.keyspace} does not exist at epoch {state.epoch}")
    served = serving(state, request.keyspace, request.table, request.token)
    if served is None:
        in_ring = strategy_of(state.keyspaces[request.keyspace].replication).in_ring
        tables = "" if in_ring else "; its tables are in tablets: pass a table"
        return Failed("no_replicas", f"no node serves {request.keyspace} at epoch {state.epoch}{tables}")
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
        return Failed("no_replicas", f"no node is allowed to serve token {request.token} at epoch {state.epoch}")
    # A LOCAL_QUORUM read asks only the local replicas. A LOCAL_QUORUM write still goes to all replicas.
    useful = {node for need in needs for node in need.members}
    local = request.level is Level.LOCAL_QUORUM and request.access is Access.READ
    asked = tuple(replica.node for replica in replicas if replica.node in useful or not local)
    made = _made(state, request)
    mattered = _mattered(state, request, max(live.changed, made))
    whole = tuple(needs)
    return RequestPlan(request, state.epoch, live.changed, asked, whole, replicas, state.state_id, mattered, made)


def _mattered(state: ClusterState, request: ClientRequest, found: Epoch) -> Epoch:
    """Return the last epoch that mattered for a request; ``found``: the one for its keyspace and range.

    The result is not below the first epoch in the history, because the request also carries that epoch's state id.
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
    """Return the answers that the consistency level needs from one group."""
    level = request.level
    if level in _NUMBER:
        if len(members) < _NUMBER[level]:
            return Failed("too_few_replicas", f"{level} needs more than {len(members)} replicas at epoch {state.epoch}")
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
            return Failed("no_local_replicas", f"{request.datacenter} has no replica at epoch {state.epoch}")
        local = {request.datacenter: local[request.datacenter]}
    return tuple(AnswersNeeded(group, name, tuple(some), quorum(len(some))) for name, some in sorted(local.items()))


# ---------------------------------------------------------------------------------------------------- counting


def count(made: RequestPlan, answers: Iterable[Answer], newest: ClusterState) -> Outcome:
    """Evaluate the answers to ``made`` on ``newest``, the newest state that the coordinator knows.

    A node may have several answers. Include the kept answers of an earlier plan.
    """
    answers = tuple(answers)
    now = replanned(made, newest)
    if isinstance(now, Failed):
        return now
    good = tuple(answer for answer in answers if counts(now, answer))
    counted = {answer.node for answer in good}
    if meets_needs(now.needs, counted):
        return Satisfied(newest.epoch, tuple(sorted(counted)))
    ahead = max((answer.epoch for answer in answers), default=0)
    # Nodes of the plan that have not answered. ``Replan`` follows if even their answers could not meet the needs.
    silent = set(made.asked).difference(answer.node for answer in answers)
    if ahead > newest.epoch:
        return AwaitedAnswers(tuple(sorted(silent)), ahead)
    if meets_needs(now.needs, counted | silent):
        return AwaitedAnswers(tuple(sorted(silent)), newest.epoch)
    return Replan(good)


def replanned(made: RequestPlan, newest: ClusterState) -> RequestPlan | Failed:
    """Plan the same request on ``newest``."""
    return made if (made.epoch, made.state_id) == (newest.epoch, newest.state_id) else plan(newest, made.request)


def is_of_this_log(answer: Answer, newest: ClusterState) -> bool:
    """Return whether the answer's state id matches the log that the coordinator knows.

    Refusals always pass: they never count as answers, and their code is reported.
    """
    return bool(answer.refused) or not contradicts(newest, answer.epoch, answer.state_id)


def counts(now: RequestPlan, answer: Answer) -> bool:
    """Return whether the answer's node was a member at every epoch from the answer's to the plan's.

    An answer to a read must also not be older than the last change of the group.
    """
    if answer.refused or answer.epoch > now.epoch:
        return False
    if answer.epoch < now.made:
        return False
    if now.request.access is Access.READ and answer.epoch < now.changed:
        return False
    return any(replica.node == answer.node and replica.since <= answer.epoch for replica in now.replicas)


def meets_needs(needs: Iterable[AnswersNeeded], nodes: set[NodeId]) -> bool:
    """Return whether ``nodes`` meet every need."""
    return all(len(nodes.intersection(need.members)) >= need.count for need in needs)


_REPAIRED: Mapping[Level, Level] = {
    Level.QUORUM: Level.QUORUM,
    Level.ALL: Level.QUORUM,
    Level.LOCAL_QUORUM: Level.LOCAL_QUORUM,
    Level.EACH_QUORUM: Level.EACH_QUORUM,
}
"""The level of a read to the level of its repair. A read at ALL needs no more than a quorum to be safe."""


def repair(read: RequestPlan, holders: Iterable[Answer], newest: ClusterState) -> RequestPlan | Failed | None:
    """Return the write that must succeed before a read may return its newest cell, or None.

    ``holders``: counted answers of the replicas that had the cell. Reads below a quorum level are not repaired.
    """
    level = _REPAIRED.get(read.request.level)
    if level is None:
        return None
    asked = replace(read.request, access=Access.WRITE, level=level)
    write = plan(newest, asked)
    if isinstance(write, Failed):
        return write
    has = {answer.node for answer in holders if counts(write, answer)}
    return None if meets_needs(write.needs, has) else write
