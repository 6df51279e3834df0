"""Progress of operations: the conditions to leave a stage, and the effects of entering the next one.

Both halves of a step are one entry of the log, so no state shows a stage without its effect. An ended operation keeps
its marks and reports for the record, without plan and locks. Only the last ended operations are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from immutables import Map

from ringlog.kernel.generations import requests
from ringlog.kernel.generations.packed import no_ends
from ringlog.kernel.model.outcome import EntryContext, Rejected
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import (
    ClusterState,
    Deltas,
    Node,
    Operation,
    Placement,
    Plan,
    StageMark,
    advance,
    generation_of,
)
from ringlog.kernel.movements.alteration import altered, prepared_alteration
from ringlog.kernel.operations.gates import REPORTED_STAGES, describe, explain, gaining_nodes, gate, is_met, stopped_by
from ringlog.kernel.operations.kinds import KINDS, Changes, kind_of, next_stage
from ringlog.kernel.operations.rings import resulting_owners, target_owners, walk_order
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    FINISHED,
    PREPARED,
    PUBLISH_CDC_GENERATION,
    REQUESTED,
    WRITE_BOTH_READ_NEW,
    WRITE_BOTH_READ_OLD,
    cached_in_flight,
    in_flight,
    in_flight_with,
    is_ended,
)
from ringlog.kernel.ownership.deltas import apply_deltas, reordered
from ringlog.kernel.ownership.placements import merge, split
from ringlog.kernel.tablets.mutual_exclusion import is_draining, must_wait
from ringlog.kernel.values import NodeId, StreamReport, Witness, replace

Moment = Literal["during", "finished", "cancelled"]

# ------------------------------------------------------------------------------------------------- leaving


def may_leave(
    state: ClusterState, operation: Operation, witnesses: Sequence[Witness], reports: Sequence[StreamReport]
) -> Rejected | None:
    """Return why the operation must stay in its stage, or None if it may continue."""
    if failed := stopped_by(operation):
        return Rejected("awaits_decision", f"operation: {operation.id} has stopped: {describe(state, failed[-1])}")
    if operation.stage == REQUESTED:
        return must_wait(state, operation) or _not_its_turn(state, operation)
    if operation.stage == COMMIT_CDC_GENERATION:
        return _not_committed(state, operation)
    if operation.stage == PUBLISH_CDC_GENERATION:
        return _not_published(state, operation)
    if not is_met(state, operation, witnesses):
        return Rejected("gate_not_met", explain(gate(state, operation), witnesses, state.nodes))
    if silent := unreported(operation, reports):
        names = ", ".join(state.nodes[node].name for node in silent)
        have = "has" if len(silent) == 1 else "have each"
        not_all = f"{have} not reported that it streamed all rows of {operation.id}"
        return Rejected("gate_not_met", f"reports: {names} {not_all}")
    return None


def unreported(operation: Operation, reports: Sequence[StreamReport]) -> tuple[NodeId, ...]:
    """Return the gaining nodes whose report the present stage still lacks."""
    if operation.stage not in REPORTED_STAGES:
        return ()
    reporters = {report.node for report in reports if report.operation == operation.id}
    return tuple(node for node in gaining_nodes(operation) if node not in reporters)


def waits_behind(state: ClusterState, operation: Operation) -> tuple[Operation, ...]:
    """Return the operations that block the start of a requested one; empty if it may start.

    Operations start by the priority of their kinds, then in the order of admission. An operation that waits for tablets
    blocks no other one.
    """
    assert operation.stage == REQUESTED, "only an operation that has not started is queued"
    flying = in_flight(state)
    running = tuple(other for other in flying if other.stage != REQUESTED)
    free = setting(state, "operations_concurrent_max") - len(running)
    if free <= 0:
        return running
    able = [other for other in flying if other.stage == REQUESTED]
    able = [other for other in able if other.id == operation.id or not is_draining(state, other)]
    priority = tuple(KINDS)
    waiting = sorted(able, key=lambda o: priority.index(o.kind))
    before = tuple(other.id for other in waiting).index(operation.id)
    return () if before < free else (*running, *waiting[:before])


def _not_its_turn(state: ClusterState, operation: Operation) -> Rejected | None:
    ahead = waits_behind(state, operation)
    if not ahead:
        return None
    names = ", ".join(f"{other.id} ({other.stage})" for other in ahead)
    most = setting(state, "operations_concurrent_max")
    return Rejected("waits_its_turn", f"operation: {operation.id} waits for one of {names}: at most {most} at once")


def _not_committed(state: ClusterState, operation: Operation) -> Rejected | None:
    generation = generation_of(state, operation.generation)
    if generation is None:
        made = operation.generation or "none yet"
        return Rejected(
            "generation_not_committed", f"operation: the generation made for {operation.id} ({made}) is not committed"
        )
    # The streams of an expired generation leave the state. Each later generation also describes the tokens of this
    # operation.
    described = generation if generation.forgotten is None else state.generations[-1]
    coarse = no_ends(described.ranges, operation.tokens)
    if coarse:
        return Rejected("generation_outdated", f"operation: {described.id} has no range that ends at {min(coarse)}")
    return None


def _not_published(state: ClusterState, operation: Operation) -> Rejected | None:
    generation = generation_of(state, operation.generation)
    if generation is None or generation.published is None:
        return Rejected("generation_not_published", f"operation: generation {operation.generation} is not published")
    return None


# ------------------------------------------------------------------------------------------------- entering


def enter(state: ClusterState, operation: Operation, stage: str, context: EntryContext) -> ClusterState:
    """Return the state after ``operation`` entered ``stage``, with its placements, directory, token map and schema."""
    assert stage == next_stage(operation), "stages are entered one after the other"
    parts: dict[str, Any] = {}
    if stage == PREPARED:
        if kind_of(operation).changes is Changes.SETTING:
            parts = prepared_alteration(state, operation)
        else:
            parts["placements"] = _split_all(state, operation.plan)
    elif stage == WRITE_BOTH_READ_OLD:
        parts["placements"] = _with(state, operation.plan.start, context)
    elif stage == WRITE_BOTH_READ_NEW:
        parts["placements"] = _with(state, operation.plan.middle, context)
    elif stage == FINISHED and kind_of(operation).changes is not Changes.ROWS:
        parts = _finished(state, operation, context)
    entered = advance(state, context.epoch, operations=record(state, moved(operation, stage, context)), **parts)
    return without_orphan(entered, context)


def at_once(state: ClusterState, operation: Operation, context: EntryContext) -> ClusterState:
    """Return the state after all steps of ``operation`` (not recorded yet) in one entry, without gates and streams."""
    assert kind_of(operation).is_at_once, "only an immediate operation waits for no node"
    for deltas in (operation.plan.start, operation.plan.middle):
        state = replace(state, placements=_with(state, deltas, context))
    ended = replace(operation, plan=Plan(), locks=())
    parts = _finished(state, operation, context)
    return without_orphan(advance(state, context.epoch, operations=record(state, ended), **parts), context)


def without_orphan(state: ClusterState, context: EntryContext) -> ClusterState:
    """Return the state without its prepared generation if no token is left, present or coming.

    No process could describe such a generation, and while it is prepared no writer may raise its horizon. Every step
    that can remove the last token (a cancelled join; the last node leaves, is removed or assassinated) ends here.
    """
    if state.prepared is None or target_owners(state):
        return state
    return advance(
        requests.end_requests(state, state.prepared.id, requests.DROPPED, context), context.epoch, prepared=None
    )


def _with(state: ClusterState, deltas: Deltas, context: EntryContext) -> Map[str, Placement]:
    return apply_deltas(state.placements, deltas, walk_order(state), context.epoch)


def _finished(state: ClusterState, operation: Operation, context: EntryContext) -> dict[str, Any]:
    """Return the sections of the state that change when only the new layout remains."""
    plan = operation.plan
    placements = _with(state, plan.finish, context)
    if kind_of(operation).changes is Changes.SETTING:
        return altered(replace(state, placements=placements), operation, context)
    for key, placement in sorted(placements.items()):
        placements = placements.set(key, merge(placement, plan.merge_at)) if plan.merge_at else placements
    nodes = nodes_during(state.nodes, operation, "finished")
    if kind_of(operation).reorders:
        placements = reordered(placements, operation.node, walk_order(replace(state, nodes=nodes)))
    owners = resulting_owners(state.token_owners, operation)
    return {"placements": placements, "token_owners": owners, "nodes": nodes}


def nodes_during(nodes: Map[str, Node], operation: Operation, moment: Moment) -> Map[str, Node]:
    """Return the directory with the operation's nodes in the states, and after its end with the tokens, of its kind.

    After a cancel the nodes are as they were at the request.
    """
    kind = kind_of(operation)
    for name, its, tokens in (
        (operation.node, kind.node, operation.tokens),
        (operation.replaced, kind.replaced, ()),
    ):
        if its is not None:
            before = its.cancelled if moment == "during" or kind.is_at_once else its.during
            assert nodes[name].state == before, "the node's state is the one set by its operation"
            node = replace(nodes[name], state=getattr(its, moment))
            if moment == "finished":
                node = replace(node, tokens=tokens)
                if name == operation.node and operation.replaced:
                    node = replace(node, replaced=operation.replaced)
            nodes = nodes.set(name, node)
    return nodes


def moved(operation: Operation, stage: str, context: EntryContext) -> Operation:
    """Return the operation in ``stage`` since this entry; without plan and locks if that ends it."""
    assert not is_ended(operation), "an ended operation does not change"
    assert operation.stage_epoch < context.epoch, "epochs of stages ascend"
    mark = StageMark(stage, context.epoch, context.time)
    after = replace(operation, stage=stage, stage_epoch=context.epoch, marks=(*operation.marks, mark))
    return replace(after, plan=Plan(), locks=()) if is_ended(after) else after


def record(state: ClusterState, operation: Operation) -> Map[str, Operation]:
    """Return the operations with this one, without the oldest ended ones above ``operations_kept_max``."""
    operations, flying = state.operations.set(operation.id, operation), in_flight_with(state, operation)
    surplus = len(operations) - len(flying) - setting(state, "operations_kept_max")
    if surplus > 0:
        ended = sorted([(other.stage_epoch, other.id) for other in operations.values() if is_ended(other)])
        for _, forgotten in ended[:surplus]:
            operations = operations.delete(forgotten)
    assert operation.id in operations, "the newest item is not pruned"
    return cached_in_flight(operations, flying)


def _split_all(state: ClusterState, plan: Plan) -> Map[str, Any]:
    placements = state.placements
    for key, placement in sorted(placements.items()) if plan.split_at else ():
        placements = placements.set(key, split(placement, plan.split_at))
    return placements
