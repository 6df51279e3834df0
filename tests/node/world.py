"""A cluster built by the real kernel, and writes to its table, for tests of the node without a broker."""

from __future__ import annotations

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, FINISHED, JOIN_STAGES, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import CdcOptions, Column, Replication, StreamReport, Witness, replace
from ringlog.node.rows.partial_decode import head_of, partition_of
from ringlog.wire.records import Cell, Mutation
from tests.kernel.entries import applied, founded, node, uuid
from tests.kernel.operations.driver import report_of, with_generation

TABLE = "shop.orders"
SEED = bytes(range(16))
APPENDED = 1_700_000_000_000_000


def name_of(number: int) -> str:
    """Return the id of node ``number``."""
    return uuid(number, space=2)


def with_table(state: ClusterState, factor: int, cdc: bool = False) -> ClusterState:
    """Return a state with keyspace ``shop`` and the table ``orders`` (``customer`` text, ``number`` bigint)."""
    columns = (Column("customer", "text"), Column("number", "bigint"), Column("note", "text"), Column("other", "text"))
    table = CreateTable(
        "shop", "orders", uuid(1, space=9), columns, ("customer",), ("number",), CdcOptions(enabled=cdc)
    )
    return applied(state, CreateKeyspace("shop", Replication("simple", factor)), table)


def begin_join(state: ClusterState, number: int, tokens: tuple[int, ...]) -> tuple[ClusterState, str]:
    """Register node ``number`` if necessary, request its join, and return the state and the operation's id."""
    if name_of(number) not in state.nodes:
        state = applied(state, node(number))
    state = applied(state, Join(name_of(number), tokens, SEED))
    return state, f"join-{state.epoch}"


def step(state: ClusterState, operation: str, reports: tuple[StreamReport, ...] = ()) -> ClusterState:
    """Advance one stage: every node has acknowledged and the generation exists. ``reports``: given if the stage needs
    them.
    """
    found = state.operations[operation]
    if found.stage == COMMIT_CDC_GENERATION:
        state = with_generation(state, found)
        found = state.operations[operation]
    to = next_stage(found)
    assert to is not None
    witnesses = tuple(Witness(each, state.epoch, state.epoch) for each in sorted(state.nodes))
    return applied(state, AdvanceOperation(operation, to, witnesses, reports))


def joined(state: ClusterState, number: int, tokens: tuple[int, ...]) -> ClusterState:
    """Return the state after a complete join; streaming counts as done."""
    state, operation = begin_join(state, number, tokens)
    while state.operations[operation].stage != JOIN_STAGES[-1]:
        reports: tuple[StreamReport, ...] = ()
        if state.operations[operation].stage == WRITE_BOTH_READ_OLD:
            reports = (StreamReport(name_of(number), operation, 0, "00"),)
        state = step(state, operation, reports)
    return state


def cluster(*tokens: tuple[int, ...], factor: int = 2, cdc: bool = False) -> ClusterState:
    """Return nodes 1, 2, … with these tokens, all joined, and the table."""
    state = founded()
    for number, own in enumerate(tokens, start=1):
        state = joined(state, number, own)
    return with_table(state, factor, cdc)


def write(key: str | None, number: int, timestamp: int = APPENDED, **changes: object) -> Mutation:
    """Return an insert of row (``key``, ``number``)."""
    made = Mutation(
        mutation_id=None,
        cluster_id=None,
        keyspace="shop",
        table="orders",
        timestamp=timestamp,
        ttl=None,
        operation="INSERT",
        partition_key=(None if key is None else key.encode(),),
        clustering_key=(number.to_bytes(8, "big", signed=True),),
        cells=(Cell("note", b"x" * (number % 7)),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def partial_key(value: bytes) -> tuple[str, tuple[bytes, ...]] | None:
    """Return the partition key of an encoded mutation, as far as its head contains it."""
    head = head_of(value)
    return None if head is None else partition_of(head)


def replicas(state: ClusterState, key: str) -> set[str]:
    """Return the write replicas of a key of the table, computed from the placement."""
    (placement,) = state.placements.values()
    return set(nodes_of(group_at(placement, token_of(key.encode())).write))


def journey() -> list[ClusterState]:
    """Return the states of a join, then those of a cancelled one."""
    log = [cluster((1_000, -500), (2_000, 77), (-40,), factor=2)]
    state, operation = begin_join(log[0], 9, (100, 1_500))
    while state.operations[operation].stage != FINISHED:
        log.append(state)
        found = state.operations[operation]
        state = step(state, operation, (report_of(found),) if found.stage == WRITE_BOTH_READ_OLD else ())
    log += [state, applied(state, Noop())]
    state, operation = begin_join(log[-1], 8, (-1_000,))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    return [*log, state, applied(state, CancelOperation(operation, "not now"))]


LOG = journey()
