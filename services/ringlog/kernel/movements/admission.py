"""Admission of operations: record a requested operation with plan and locks, or reject it by the rule that it breaks.

The checks run in this order:

- the number of operations is below its maximum;
- enough replicas survive to know every row;
- no range is locked by another operation;
- the plans compose, and every keyspace's replication stays possible.

The operation's own command has checked the rules of its kind before. A rejection names the blocking operation.
"""

from __future__ import annotations

from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Operation, Plan, StageMark, advance
from ringlog.kernel.movements.progress import nodes_during, record
from ringlog.kernel.operations.compose import refused_composition
from ringlog.kernel.operations.kinds import OperationKind, kind_of
from ringlog.kernel.operations.plan import locks_of, unsourced
from ringlog.kernel.operations.stages import REQUESTED, in_flight
from ringlog.kernel.ring.ranges import Range, overlap
from ringlog.kernel.values import NodeId, replace


def requested(kind: OperationKind, node: NodeId, context: EntryContext, seed: bytes = b"") -> Operation:
    """Return a new operation of ``kind``, without plan and locks."""
    mark = StageMark(REQUESTED, context.epoch, context.time)
    return Operation(
        id=f"{kind.name}-{context.epoch}" + (f"-{context.part}" if context.part else ""),
        kind=kind.name,
        node=node,
        tokens=(),
        seed=seed,
        stage=REQUESTED,
        stage_epoch=context.epoch,
        plan=Plan(),
        locks=(),
        generation=None,
        marks=(mark,),
        reports=(),
        reason="",
    )


def planned(state: ClusterState, operation: Operation, plan: Plan) -> Operation:
    """Return the operation with its plan and locks."""
    assert not operation.locks, "an operation is planned once"
    unlocked = replace(operation, plan=plan)
    return replace(unlocked, locks=locks_of(state, unlocked))


def admit(state: ClusterState, operation: Operation, plan: Plan, context: EntryContext) -> Decision:
    """Record ``operation`` with its plan and set the states of its nodes, or reject it."""
    admitted = planned(state, operation, plan)
    refused = refusal(state, admitted)
    if refused is not None:
        return refused
    assert not kind_of(operation).is_at_once, "an immediate operation is never in flight"
    nodes = nodes_during(state.nodes, admitted, "during")
    return Accepted(advance(state, context.epoch, nodes=nodes, operations=record(state, admitted)))


def refusal(state: ClusterState, operation: Operation) -> Rejected | None:
    """Return why an operation with its plan and locks is rejected, or None."""
    return (
        _no_room(state)
        or (None if kind_of(operation).admits_loss else _too_few_alive(operation))
        or _locked(state, operation)
        or refused_composition(state, operation)
    )


def _no_room(state: ClusterState) -> Rejected | None:
    flying = in_flight(state)
    most = setting(state, "operations_admitted_max")
    if len(flying) < most:
        return None
    names = ", ".join(operation.id for operation in flying)
    return Rejected("too_many_operations", f"operation: {names} are in flight, the limit is {most}")


def _too_few_alive(operation: Operation) -> Rejected | None:
    bare = unsourced(operation.plan)
    if not bare:
        return None
    key, (start, end) = bare[0]
    text = f"too few replicas of ({start}, {end}] under {key} are alive to have all rows"
    return Rejected("too_few_replicas", f"node: {text} ({len(bare)} ranges in total)")


def _locked(state: ClusterState, operation: Operation) -> Rejected | None:
    for holder in in_flight(state):
        if kind_of(holder).is_exclusive or kind_of(operation).is_exclusive:
            return Rejected("range_locked", f"operation: {_named(state, holder)} has locked all ranges of a keyspace")
        if both := _nodes_of(holder).intersection(_nodes_of(operation)):
            name = state.nodes[min(both)].name
            return Rejected("range_locked", f"operation: {_named(state, holder)} has locked {name}")
        by_setting: dict[str, list[Range]] = {}
        for lock in holder.locks:
            by_setting.setdefault(lock.replication, []).append((lock.start, lock.end))
        for lock in operation.locks:
            for start, end in by_setting.get(lock.replication, ()):
                if overlap((start, end), (lock.start, lock.end)):
                    where = f"({start}, {end}] under {lock.replication}"
                    return Rejected("range_locked", f"operation: {_named(state, holder)} has locked {where}")
    return None


def _nodes_of(operation: Operation) -> set[NodeId]:
    """Return the nodes that the operation moves: the node itself and the replaced one."""
    return {operation.node, operation.replaced} - {""}


def _named(state: ClusterState, holder: Operation) -> str:
    whose = state.nodes[holder.node].name if holder.node else holder.keyspace
    return f"{holder.id} of {whose} ({holder.stage})"
