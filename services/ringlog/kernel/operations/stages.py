"""The kinds of operations, their stages in order, and what each means for reads and writes.

::

    stage                    reads   writes      before leaving it
    requested                old     old         its turn
    prepared                 old     old         gate; every gaining node is among the witnesses
    commit_cdc_generation    old     old         the generation made for it is committed
    publish_cdc_generation   old     old         that generation is published
    streaming                old     old         every gaining node has acknowledged, then reported (rebuild only)
    write_both_read_old      old     old + new   gate with every gaining node; then their streaming reports
    write_both_read_new      new     old + new   gate: older reads have drained
    finished                 new     new         (ended)
    cancelled                old     old         (ended; only from a stage before write_both_read_new)

Only where new tokens appear (join, move) is there a CDC generation to make. A rebuild changes no group. An
assassination is one entry: it is recorded as finished.

Ranges are split on entering ``prepared``, merged on entering ``finished``. Locks are held from admission to the end.
Epochs of one operation's stages ascend.
"""

from __future__ import annotations

from immutables import Map

from ringlog.kernel.ownership.deltas import Order
from ringlog.kernel.ownership.strategies import Ring
from ringlog.kernel.state import ClusterState, Operation
from ringlog.kernel.values import NodeId, Token

REQUESTED = "requested"
PREPARED = "prepared"
COMMIT_CDC_GENERATION = "commit_cdc_generation"
PUBLISH_CDC_GENERATION = "publish_cdc_generation"
STREAMING = "streaming"
WRITE_BOTH_READ_OLD = "write_both_read_old"
WRITE_BOTH_READ_NEW = "write_both_read_new"
FINISHED = "finished"
CANCELLED = "cancelled"

JOIN_STAGES = (
    REQUESTED,
    PREPARED,
    COMMIT_CDC_GENERATION,
    PUBLISH_CDC_GENERATION,
    WRITE_BOTH_READ_OLD,
    WRITE_BOTH_READ_NEW,
    FINISHED,
)
SWAP_STAGES = (REQUESTED, PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW, FINISHED)

STAGES = (*JOIN_STAGES[:4], STREAMING, *JOIN_STAGES[4:], CANCELLED)
"""All stages, each after those that may come before it."""

JOIN = "join"
MOVE = "move"
REPLACE = "replace"
LEAVE = "leave"
REMOVE = "remove"
ASSASSINATE = "assassinate"
REBUILD = "rebuild"
ALTER = "alter"

STAGES_OF = {
    REPLACE: SWAP_STAGES,
    JOIN: JOIN_STAGES,
    REMOVE: SWAP_STAGES,
    LEAVE: SWAP_STAGES,
    MOVE: JOIN_STAGES,
    ALTER: SWAP_STAGES,
    REBUILD: (REQUESTED, STREAMING, FINISHED),
    ASSASSINATE: (FINISHED,),
}
"""Kind of operation to its stages in order; the kinds in the order of their priority when several wait."""

PRIORITY = tuple(STAGES_OF)

POINT_OF_NO_RETURN = WRITE_BOTH_READ_NEW
"""From this stage on a new owner may have been read: forward only."""


def is_ended(operation: Operation) -> bool:
    """True once it is finished or cancelled: it holds no locks and changes nothing any more."""
    return operation.stage in (FINISHED, CANCELLED)


def has_reached(operation: Operation, stage: str) -> bool:
    """True if the operation, which is in flight, is in ``stage`` or beyond it."""
    return STAGES.index(operation.stage) >= STAGES.index(stage)


def makes_generation(operation: Operation) -> bool:
    """True if new tokens appear by it, so that a CDC generation must be made."""
    return COMMIT_CDC_GENERATION in STAGES_OF[operation.kind]


def next_stage(operation: Operation) -> str | None:
    """The stage after the present one, None for an ended operation."""
    if is_ended(operation):
        return None
    stages = STAGES_OF[operation.kind]
    return stages[stages.index(operation.stage) + 1]


def in_flight(state: ClusterState) -> tuple[Operation, ...]:
    """The operations that are not ended, in the order of their admission."""
    operations = (operation for operation in state.operations.values() if not is_ended(operation))
    return tuple(sorted(operations, key=lambda operation: (operation.marks[0].epoch, operation.id)))


def target_owners(state: ClusterState) -> Map[Token, NodeId]:
    """The token map with the new tokens of every operation in flight: owners of all present and coming range ends."""
    owners = state.token_owners
    for operation in in_flight(state):
        if makes_generation(operation):
            owners = owners.update(dict.fromkeys(operation.tokens, operation.node))
    return owners


def walk_order(state: ClusterState) -> Order:
    """The order of groups: every node stands at its present tokens, one that joins at its coming ones."""
    flying = in_flight(state)
    coming = {operation.node: operation.tokens for operation in flying if operation.kind == JOIN}
    beside = {operation.node: operation.replaced for operation in flying if operation.replaced}
    return Order(state.nodes, coming, beside)


def resulting_owners(owners: Map[Token, NodeId], operation: Operation) -> Map[Token, NodeId]:
    """The token map after the operation, from the one before it."""
    for token in operation.gone:
        owners = owners.delete(token)
    return owners.update(dict.fromkeys(operation.tokens, operation.node))


def ring_after(ring: Ring, *operations: Operation) -> Ring:
    """The ring when ``operations`` have finished, from the one before them."""
    owners = dict(ring.owners)
    for operation in operations:
        for token in operation.gone:
            del owners[token]
        owners.update(dict.fromkeys(operation.tokens, operation.node))
    return ring.owned_by(owners)
