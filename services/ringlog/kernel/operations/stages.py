"""The stages of operations in order, and their effect on reads and writes.

::

    stage                    reads   writes      before leaving it
    requested                old     old         its turn
    prepared                 old     old         gate; every gaining node is among the witnesses
    commit_cdc_generation    old     old         the generation made for it is committed
    publish_cdc_generation   old     old         that generation is published
    streaming                old     old         every gaining node has acknowledged, then reported (rebuild only)
    write_both_read_old      old     old + new   gate with every gaining node; then their streaming reports
    write_both_read_new      new     old + new   gate
    finished                 new     new         (ended)
    cancelled                old     old         (ended; only from a stage before write_both_read_new)

The kind of an operation determines its stages (``operations.kinds``). Only kinds that add tokens make a CDC generation.

Ranges are split on entering ``prepared``, merged on entering ``finished``. Locks are held from admission to the end.
Epochs of one operation's stages ascend.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.model.state import ClusterState, Operation
from ringlog.kernel.values import Epoch, OperationId

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

POINT_OF_NO_RETURN = WRITE_BOTH_READ_NEW
"""The first stage that may read a new owner: from here an operation cannot be cancelled."""


_ENDED: Final = (FINISHED, CANCELLED)
assert len(set(STAGES)) == len(STAGES), "stages are unique"
assert STAGES[-len(_ENDED) :] == _ENDED, "no stage follows an ended one"

_flying: Final = IdentityCache[Map[OperationId, Operation], tuple[Operation, ...]](4)
"""A cache of the operations in flight. A state has about a hundred ended operations, and each rule asks for those in
flight.
"""


def is_ended(operation: Operation) -> bool:
    """Return whether it is finished or cancelled: it holds no locks and changes nothing."""
    return operation.stage in _ENDED


def has_reached(operation: Operation, stage: str) -> bool:
    """Return whether the operation, which is in flight, is in ``stage`` or a later one."""
    return STAGES.index(operation.stage) >= STAGES.index(stage)


def in_flight(state: ClusterState) -> tuple[Operation, ...]:
    """Return the operations that are not ended, in the order of their admission."""
    known = _flying.get(state.operations)
    if known is None:
        found = [operation for operation in state.operations.values() if operation.stage not in _ENDED]
        found.sort(key=_in_turn)
        known = _flying.put(state.operations, tuple(found))
    return known


def in_flight_with(state: ClusterState, operation: Operation) -> tuple[Operation, ...]:
    """Return the operations in flight once ``operation`` is recorded: the others, and it unless it has ended."""
    others = [other for other in in_flight(state) if other.id != operation.id]
    return tuple(others if is_ended(operation) else sorted([*others, operation], key=_in_turn))


def cached_in_flight(
    operations: Map[OperationId, Operation], flying: tuple[Operation, ...]
) -> Map[OperationId, Operation]:
    """Return ``operations`` and cache ``flying`` as those in flight, so that no caller searches all of them."""
    assert all(operations.get(operation.id) is operation for operation in flying), "the state has those in flight"
    _flying.put(operations, flying)
    return operations


def _in_turn(operation: Operation) -> tuple[Epoch, OperationId]:
    return operation.marks[0].epoch, operation.id
