"""Reads of rows: in which order a program plans, asks, judges again and waits for replicas that are behind.

Nobody coordinates the writes of rows: each replica reads the mutations topic, and all come to the same verdicts. So a
replica that has judged a partition of the topic up to a position has every accepted write of its ranges below it, and
what two replicas have differs only by how far they are. A read is one of two:

==================  ================================================================================================
at a position       ``at``: positions that each answer must have reached. One replica is enough: it has all that was
                    accepted below them, its author's own writes (a write's acknowledgement gives its position) too
at a quorum level   what a read found a later one finds, too. The versions of all answers together are what was found;
                    where those who had all of them are less than a *write's* needs (``plans.repair``), others are
                    waited for until they have reached what was found
==================  ================================================================================================

Plans, answers and the re-check are those of registers (``ringlog.client.data.registers``). A read is one of a table, by
its id: what was made anew under the name is another one.

**Replicas that disagree.** Two at the same positions have the same state of the partition, but for versions that
streams brought from above. They may have different versions of it: each removes redundant ones at its own pace. So
where two states differ all are asked again, at the ends that the topic has by then: whatever one of them had is below
these, and each must have it. Who has not has lost it, and the read says so. What it gives is right all the same, since
every version that anybody has was accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringlog.client.data import plans
from ringlog.client.data.plans import Access, Answer, ClientRequest, Failed, Level, RequestPlan
from ringlog.client.data.registers import (
    BARRIER_LEAST,
    AskReplica,
    FoundAnswer,
    ReadNewest,
    RegisterRequest,
    Success,
    succeed,
)
from ringlog.client.data.row_merge import partition_of
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.rows.partition import PartitionState
from ringlog.kernel.values import Epoch, Micros, NodeId
from ringlog.protocol.effects import Newest, Now, Steps
from ringlog.wire.data import ReadRequest, ReadRowsReply, ReadRowsRequest, WriteRequest, digest_of_writes
from ringlog.wire.records import decode_mutation

Positions = Mapping[int, int]
"""Partition of the mutations topic to the offset below which everything is judged."""


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What is asked of each replica: the rows of a partition. ``wanted`` and so on: as in ``RegisterRequest``.

    ``at``: what must be reached; ``is_position``: nothing but that is asked, of write replicas.
    """

    wanted: ClientRequest
    table_id: str
    partition_key: bytes
    timeout: Micros
    deadline: Micros
    at: tuple[tuple[int, int], ...] = ()
    is_lean: bool = False
    is_position: bool = False

    method = "ReadRows"

    @property
    def table(self) -> str:
        """Its full name."""
        return f"{self.wanted.keyspace}.{self.wanted.table}"

    def planned(self, state: ClusterState) -> RequestPlan | Failed:
        """The plan, for the table that is meant."""
        found = state.tables.get(self.table)
        if found is None or found.id != self.table_id:
            return _no_table(state, self.table)
        return plans.plan(state, self.wanted)

    def __str__(self) -> str:
        return f"read of {self.table} {self.partition_key[:40]!r} at {self.wanted.level}"


@dataclass(frozen=True, slots=True)
class FoundRows(FoundAnswer):
    """What a replica has of the partition: encoded writes, ascending, or their ``digest`` in their place; and how far
    it is.
    """

    writes: tuple[bytes, ...] = ()
    digest: bytes = b""
    positions: Positions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadEnds:
    """Where the partitions of the mutations topic end; outcome: Positions, None if nobody says within ``timeout``."""

    timeout: Micros


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A success. ``writes``: encoded; every accepted one of the partition below ``positions`` is among them, unless
    others overwrite it.

    ``plan``, ``epoch``, ``answers``, ``attempts``: as of a register; ``repair``: the plan by which others were waited
    for; ``lacking``: replicas that have lost some of the writes, a defect.
    """

    table: str
    partition_key: bytes
    writes: tuple[bytes, ...]
    positions: Positions
    plan: RequestPlan
    epoch: Epoch
    answers: tuple[Answer, ...]
    attempts: int
    repair: RequestPlan | None = None
    lacking: tuple[NodeId, ...] = ()


def read(
    table: str, partition_key: bytes, at: Positions, level: Level, datacenter: str, timeout: Micros
) -> Steps[FoundPartition]:
    """Read a partition of ``table`` (``keyspace.table``). Raises RequestTimedOut, RequestImpossible."""
    deadline = (yield Now()) + timeout
    keyspace, _, name = table.partition(".")
    wanted = ClientRequest(keyspace, token_of(partition_key), Access.READ, level, datacenter, name)
    table_id = yield from _id_of(table, timeout)
    request = PartitionRequest(wanted, table_id, partition_key, timeout, deadline, tuple(sorted(at.items())))
    done = yield from _found(request)
    attempts, lacking, writes = done.attempts, tuple[NodeId, ...](), _union(done.good)
    states = _States(done.state, table)
    if _differ(done.good, states):
        again = yield from _found_at_ends(request)
        if again is not None:
            states = _States(again.state, table)
            lacking = tuple(sorted(one.answer.node for one in again.good if not states.has_all(one, writes)))
            done, attempts, writes = again, attempts + again.attempts, writes | _union(again.good)
    reached = _together(found.positions for found in done.good)
    holders = [found for found in done.good if states.has_all(found, writes)]
    repair = plans.repair(done.made, [found.answer for found in holders], done.state)
    if isinstance(repair, Failed):
        raise RequestImpossible(f"repair of {table}", repair.code, repair.detail)
    if repair is not None:
        wait = replace(request, wanted=repair.request, at=tuple(sorted(reached.items())), is_position=True)
        yield from succeed(wait, holders)
    answers = tuple(found.answer for found in done.good)
    found = tuple(sorted(writes))
    return FoundPartition(
        table, partition_key, found, reached, done.made, done.state.epoch, answers, attempts, repair, lacking
    )


def message_of(effect: AskReplica) -> WriteRequest | ReadRequest | ReadRowsRequest:
    """What goes to the replica."""
    request = effect.request
    if isinstance(request, PartitionRequest):
        about = request.table, request.table_id, request.partition_key, request.at
        return ReadRowsRequest(*effect.head, *about, effect.is_digest, request.is_position, *effect.newest)
    assert isinstance(request, RegisterRequest), request
    if request.cell is not None:
        return WriteRequest(*effect.head, request.key, request.cell, *effect.newest)
    return ReadRequest(*effect.head, request.key, effect.is_digest, *effect.newest)


def found_rows(reply: ReadRowsReply) -> FoundRows:
    """What a replica replied, as it is judged."""
    answer = Answer(reply.node, reply.epoch, reply.refused, reply.state_id)
    return FoundRows(answer, reply.writes, reply.digest, dict(reply.positions))


# -------------------------------------------------------------------------------------------------- internals


def _id_of(table: str, timeout: Micros) -> Steps[str]:
    """The id of the table that has the name, as far as anybody knows."""
    state: ClusterState = yield Newest()
    if table not in state.tables:
        yield ReadNewest(max(timeout, BARRIER_LEAST))
        state = yield Newest()
    found = state.tables.get(table)
    if found is None:
        missing = _no_table(state, table)
        raise RequestImpossible(f"read of {table}", missing.code, missing.detail)
    return found.id


def _no_table(state: ClusterState, table: str) -> Failed:
    return Failed("unknown_table", f"epoch {state.epoch} has no table {table}, or another one than was asked for")


def _found(request: PartitionRequest) -> Steps[Success[FoundRows]]:
    """The versions that replicas have: digests first, of all but one."""
    lean: Success[FoundRows] = yield from succeed(replace(request, is_lean=True))
    if len({_digest(found) for found in lean.good}) == 1 and not all(found.digest for found in lean.good):
        return lean
    whole: Success[FoundRows] = yield from succeed(request)
    return replace(whole, attempts=lean.attempts + whole.attempts)


def _found_at_ends(request: PartitionRequest) -> Steps[Success[FoundRows] | None]:
    """What replicas have at the ends of the topic, if they get there in time."""
    left = request.deadline - (yield Now())
    ends: Positions | None = yield ReadEnds(max(left, BARRIER_LEAST))
    if ends is None:
        return None
    try:
        found: Success[FoundRows] = yield from succeed(replace(request, at=tuple(sorted(ends.items()))))
    except RequestTimedOut:
        return None
    return found


def _digest(found: FoundRows) -> bytes:
    return found.digest or digest_of_writes(found.writes)


def _union(good: Sequence[FoundRows]) -> frozenset[bytes]:
    return frozenset[bytes]().union(*(found.writes for found in good))


def _differ(good: Sequence[FoundRows], states: _States) -> bool:
    """True if one has another state than another one at the same positions."""
    firsts: dict[tuple[tuple[int, int], ...], FoundRows] = {}
    pairs = ((firsts.setdefault(tuple(sorted(one.positions.items())), one), one) for one in good)
    return any(
        _digest(first) != _digest(one) and states.of(first.writes) != states.of(one.writes) for first, one in pairs
    )


class _States:
    """States of a partition by the writes that lead to it, with the columns that ``table`` has in ``state``.

    Replicas remove redundant writes at different times. So two of them have the same if their states are equal.
    """

    def __init__(self, state: ClusterState, table: str) -> None:
        self._shape = shape_of_table(state.tables[table])
        self._states_of: dict[Collection[bytes], PartitionState] = {}

    def of(self, writes: Collection[bytes]) -> PartitionState:
        """The state that the writes lead to."""
        if writes not in self._states_of:
            self._states_of[writes] = partition_of(map(decode_mutation, writes), self._shape)
        return self._states_of[writes]

    def has_all(self, found: FoundRows, writes: frozenset[bytes]) -> bool:
        """True if a replica lacks none of ``writes``."""
        if _digest(found) == digest_of_writes(writes):
            return True
        return not found.digest and self.of(found.writes) == self.of(writes.union(found.writes))


def _together(several: Iterable[Positions]) -> dict[int, int]:
    """As far as the one that is farthest, in each partition."""
    found: dict[int, int] = {}
    for positions in several:
        for partition, offset in positions.items():
            found[partition] = max(offset, found.get(partition, 0))
    return found
