"""Reads of rows: the protocol of a request coordinator for partitions, as steps over effects.

Writes of rows have no coordinator. Each replica reads the mutations topic, and all replicas make the same decisions. So
a replica that has processed a partition of the topic up to a position has every accepted write of its ranges below that
position. Two replicas differ only in their positions. There are two kinds of reads:

- **At a position.** ``at`` contains positions that each answer must have reached. One replica is enough, because it has
  every write that was accepted below them. The acknowledgement of a write returns its position, so programs can read
  their own writes.

- **At a quorum level.** Later reads find everything that this read found. The result is the union of the versions of
  all answers. The replicas that have all of them may not meet a *write's* needs (``plans.repair``). The read then waits
  until enough other replicas have reached the positions of the result.

Plans, answers and the re-check are those of registers (``ringlog.client.data.registers``). A read identifies its table
by id, because a table that was recreated under the same name is another table.

**Disagreeing replicas.** Replicas at the same positions have the same state of the partition, except for newer versions
that streams delivered. They may keep different versions, because each removes redundant ones at its own pace. So the
read compares states. If two states differ, it asks all replicas again, at the current ends of the topic. Every version
found before is below these ends, so each replica must have it. A replica without it has lost data, and the result names
it. The result is correct anyway, because every version on any replica was accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ringlog.client.data import plans
from ringlog.client.data.plans import Access, Answer, ClientRequest, Failed, Level, RequestPlan
from ringlog.client.data.registers import (
    BARRIER_LEAST,
    AskReplica,
    FoundAnswer,
    ReadNewest,
    RegisterRequest,
    Success,
    retry_request,
)
from ringlog.client.data.row_merge import partition_of
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.rows.partition import PartitionState
from ringlog.kernel.values import Epoch, Micros, NodeId, Value, field, replace
from ringlog.protocol.effects import Effect, Newest, Now
from ringlog.wire.data import ReadRequest, ReadRowsReply, ReadRowsRequest, WriteRequest, digest_of_writes
from ringlog.wire.records import decode_mutation

Positions = Mapping[int, int]
"""For each partition of the mutations topic, the offset of the first record that is not processed."""


class PartitionRequest(Value):
    """The request to each replica: the rows of a partition. Shared fields: see ``RegisterRequest``.

    ``at``: positions that the answer must have reached. ``is_position``: ask write replicas for these positions only,
    without rows.
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
        """The full name of the table."""
        return f"{self.wanted.keyspace}.{self.wanted.table}"

    def planned(self, state: ClusterState) -> RequestPlan | Failed:
        """Plan the request. Fails if the name now belongs to another table."""
        found = state.tables.get(self.table)
        if found is None or found.id != self.table_id:
            return _no_table(state, self.table)
        return plans.plan(state, self.wanted)

    def __str__(self) -> str:
        return f"read of {self.table} {self.partition_key[:40]!r} at {self.wanted.level}"


class FoundRows(FoundAnswer):
    """The partition on one replica: encoded writes in ascending order or their ``digest``, and its positions."""

    writes: tuple[bytes, ...] = ()
    digest: bytes = b""
    positions: Positions = field(default_factory=dict)


class ReadEnds(Effect[Positions | None], Value):
    """Effect: read the ends of the mutations topic. Outcome: Positions, or None if unknown within ``timeout``."""

    timeout: Micros


class FoundPartition(Value):
    """A successful read.

    ``writes``: encoded. They include every accepted write of the partition below ``positions``, except overwritten
    ones. ``plan``, ``epoch``, ``answers``, ``attempts``: as in ``RegisterResult``. ``repair``: the plan used to wait
    for other replicas. ``lacking``: replicas that have lost some of the writes, which indicates a defect.
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


async def read(
    table: str, partition_key: bytes, at: Positions, level: Level, datacenter: str, timeout: Micros
) -> FoundPartition:
    """Read a partition of ``table`` (``keyspace.table``). Raises RequestTimedOut, RequestImpossible."""
    deadline = await Now() + timeout
    keyspace, _, name = table.partition(".")
    wanted = ClientRequest(keyspace, token_of(partition_key), Access.READ, level, datacenter, name)
    table_id = await _id_of(table, timeout)
    request = PartitionRequest(wanted, table_id, partition_key, timeout, deadline, tuple(sorted(at.items())))
    done = await _found(request)
    attempts, lacking, writes = done.attempts, tuple[NodeId, ...](), _union(done.good)
    states = _States(done.state, table)
    if _differ(done.good, states):
        # Distinguish a replica that is behind from one that has lost writes: ask all at positions above every found
        # write.
        again = await _found_at_ends(request)
        if again is not None:
            states = _States(again.state, table)
            lacking = tuple(sorted(one.answer.node for one in again.good if not states.has_all(one, writes)))
            done, attempts, writes = again, attempts + again.attempts, writes | _union(again.good)
    reached = _together(found.positions for found in done.good)
    # The counterpart of a write-back. Writes reach replicas through the topic only, so the read waits instead of
    # writing.
    holders = [found for found in done.good if states.has_all(found, writes)]
    repair = plans.repair(done.made, [found.answer for found in holders], done.state)
    if isinstance(repair, Failed):
        raise RequestImpossible(f"repair of {table}", repair.code, repair.detail)
    if repair is not None:
        wait = replace(request, wanted=repair.request, at=tuple(sorted(reached.items())), is_position=True)
        await retry_request(wait, holders)
    answers = tuple(found.answer for found in done.good)
    found = tuple(sorted(writes))
    return FoundPartition(
        table, partition_key, found, reached, done.made, done.state.epoch, answers, attempts, repair, lacking
    )


def message_of(effect: AskReplica) -> WriteRequest | ReadRequest | ReadRowsRequest:
    """Return the message to the replica."""
    request = effect.request
    if isinstance(request, PartitionRequest):
        about = request.table, request.table_id, request.partition_key, request.at
        return ReadRowsRequest(*effect.head, *about, effect.is_digest, request.is_position, *effect.newest)
    assert isinstance(request, RegisterRequest), request
    if request.cell is not None:
        return WriteRequest(*effect.head, request.key, request.cell, *effect.newest)
    return ReadRequest(*effect.head, request.key, effect.is_digest, *effect.newest)


def found_rows(reply: ReadRowsReply) -> FoundRows:
    """Convert a reply to an answer."""
    answer = Answer(reply.node, reply.epoch, reply.refused, reply.state_id, reply.detail)
    return FoundRows(answer, reply.writes, reply.digest, dict(reply.positions))


# -------------------------------------------------------------------------------------------------- internals


async def _id_of(table: str, timeout: Micros) -> str:
    """Return the id of the table with this name. An unknown name is looked up again after a read barrier."""
    state = await Newest()
    if table not in state.tables:
        await ReadNewest(max(timeout, BARRIER_LEAST))
        state = await Newest()
    found = state.tables.get(table)
    if found is None:
        missing = _no_table(state, table)
        raise RequestImpossible(f"read of {table}", missing.code, missing.detail)
    return found.id


def _no_table(state: ClusterState, table: str) -> Failed:
    return Failed("unknown_table", f"table {table} does not exist at epoch {state.epoch}, or has another id")


async def _found(request: PartitionRequest) -> Success[FoundRows]:
    """Read the versions of the replicas: digests first, from all but one replica."""
    lean: Success[FoundRows] = await retry_request(replace(request, is_lean=True))
    if len({_digest(found) for found in lean.good}) == 1 and not all(found.digest for found in lean.good):
        return lean
    whole: Success[FoundRows] = await retry_request(request)
    return replace(whole, attempts=lean.attempts + whole.attempts)


async def _found_at_ends(request: PartitionRequest) -> Success[FoundRows] | None:
    """Read the versions at the current ends of the topic. Return None if the replicas do not reach them in time."""
    left = request.deadline - await Now()
    ends = await ReadEnds(max(left, BARRIER_LEAST))
    if ends is None:
        return None
    try:
        found: Success[FoundRows] = await retry_request(replace(request, at=tuple(sorted(ends.items()))))
    except RequestTimedOut:
        return None
    return found


def _digest(found: FoundRows) -> bytes:
    return found.digest or digest_of_writes(found.writes)


def _union(good: Sequence[FoundRows]) -> frozenset[bytes]:
    return frozenset[bytes]().union(*(found.writes for found in good))


def _differ(good: Sequence[FoundRows], states: _States) -> bool:
    """Return whether two replicas have different states at the same positions."""
    firsts: dict[tuple[tuple[int, int], ...], FoundRows] = {}
    pairs = ((firsts.setdefault(tuple(sorted(one.positions.items())), one), one) for one in good)
    return any(
        _digest(first) != _digest(one) and states.of(first.writes) != states.of(one.writes) for first, one in pairs
    )


class _States:
    """States of a partition by the writes that produce them, with the columns of ``table`` in ``state``.

    Replicas remove redundant writes at different times, so equality is defined on states, not on writes.
    """

    def __init__(self, state: ClusterState, table: str) -> None:
        self._shape = shape_of_table(state.tables[table])
        self._states_of: dict[Collection[bytes], PartitionState] = {}

    def of(self, writes: Collection[bytes]) -> PartitionState:
        """Return the state that the writes produce."""
        if writes not in self._states_of:
            self._states_of[writes] = partition_of(map(decode_mutation, writes), self._shape)
        return self._states_of[writes]

    def has_all(self, found: FoundRows, writes: frozenset[bytes]) -> bool:
        """Return whether a replica has all of ``writes``."""
        if _digest(found) == digest_of_writes(writes):
            return True
        return not found.digest and self.of(found.writes) == self.of(writes.union(found.writes))


def _together(several: Iterable[Positions]) -> dict[int, int]:
    """Return the greatest position of each partition."""
    found: dict[int, int] = {}
    for positions in several:
        for partition, offset in positions.items():
            found[partition] = max(offset, found.get(partition, 0))
    return found
