"""How an operation goes on: what must hold before it leaves a stage, and what entering the next one changes.

Both halves of a step are one entry of the log, so that no state shows a stage without its effect. An operation that
ends keeps its marks and its reports for the record, without plan and locks; only the last ended ones are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from immutables import Map

from ringlog.kernel.commands.model import StreamReport, Witness
from ringlog.kernel.operations.gates import explain, gate, missing
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    FINISHED,
    PREPARED,
    PUBLISH_CDC_GENERATION,
    WRITE_BOTH_READ_NEW,
    WRITE_BOTH_READ_OLD,
    is_ended,
    target_owners,
)
from ringlog.kernel.outcome import Context, Rejected
from ringlog.kernel.ownership.deltas import apply_deltas
from ringlog.kernel.ownership.placements import split
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, Generation, Operation, Plan, StageMark, advance

# ------------------------------------------------------------------------------------------------- leaving


def may_leave(
    state: ClusterState, operation: Operation, witnesses: Sequence[Witness], reports: Sequence[StreamReport]
) -> Rejected | None:
    """Why the operation must stay in its stage, None if it may go on."""
    if operation.stage == COMMIT_CDC_GENERATION:
        return _not_committed(state, operation)
    if operation.stage == PUBLISH_CDC_GENERATION:
        return _not_published(state, operation)
    needs = gate(state, operation)
    if missing(needs, witnesses):
        return Rejected("gate_not_met", explain(needs, witnesses, state.nodes))
    if operation.stage == WRITE_BOTH_READ_OLD and operation.node not in {report.node for report in reports}:
        name = state.nodes[operation.node].name
        return Rejected("gate_not_met", f"reports: {name} has not reported that it streamed all rows of {operation.id}")
    return None


def _generation_of(state: ClusterState, operation: Operation) -> Generation | None:
    return next((found for found in state.generations if found.id == operation.generation), None)


def _not_committed(state: ClusterState, operation: Operation) -> Rejected | None:
    generation = _generation_of(state, operation)
    if generation is None:
        made = operation.generation or "none yet"
        return Rejected(
            "generation_not_committed", f"operation: the generation made for {operation.id} ({made}) is not committed"
        )
    coarse = set(operation.tokens).difference(range_.end for range_ in generation.ranges)
    if coarse:
        return Rejected("generation_outdated", f"operation: {generation.id} has no range that ends at {min(coarse)}")
    return None


def _not_published(state: ClusterState, operation: Operation) -> Rejected | None:
    generation = _generation_of(state, operation)
    if generation is None or generation.published is None:
        return Rejected("generation_not_published", f"operation: generation {operation.generation} is not published")
    return None


# ------------------------------------------------------------------------------------------------- entering


def enter(state: ClusterState, operation: Operation, stage: str, context: Context) -> ClusterState:
    """The state after ``operation`` entered ``stage``: placements, directory and token map with it."""
    plan, epoch = operation.plan, context.epoch
    parts: dict[str, Any] = {}
    if stage == PREPARED:
        parts["placements"] = _split_all(state, plan)
    elif stage == WRITE_BOTH_READ_OLD:
        parts["placements"] = apply_deltas(state.placements, plan.start, target_owners(state), epoch)
    elif stage == WRITE_BOTH_READ_NEW:
        parts["placements"] = apply_deltas(state.placements, plan.middle, target_owners(state), epoch)
    elif stage == FINISHED:
        parts["placements"] = apply_deltas(state.placements, plan.finish, target_owners(state), epoch)
        parts["token_owners"] = state.token_owners.update(dict.fromkeys(operation.tokens, operation.node))
        joined = replace(state.nodes[operation.node], state="normal", tokens=operation.tokens)
        parts["nodes"] = state.nodes.set(joined.id, joined)
    return advance(state, epoch, operations=record(state, moved(operation, stage, context)), **parts)


def moved(operation: Operation, stage: str, context: Context) -> Operation:
    """The operation in ``stage`` since this entry; without plan and locks if that ends it."""
    mark = StageMark(stage, context.epoch, context.time)
    after = replace(operation, stage=stage, stage_epoch=context.epoch, marks=(*operation.marks, mark))
    return replace(after, plan=Plan(), locks=()) if is_ended(after) else after


def record(state: ClusterState, operation: Operation) -> Map[str, Operation]:
    """The operations with this one; the oldest ended ones go when more are remembered than ``operations_kept_max``."""
    operations = state.operations.set(operation.id, operation)
    ended = sorted((other.stage_epoch, other.id) for other in operations.values() if is_ended(other))
    surplus = max(0, len(ended) - setting(state, "operations_kept_max"))
    for _, forgotten in ended[:surplus]:
        operations = operations.delete(forgotten)
    return operations


def _split_all(state: ClusterState, plan: Plan) -> Map[str, Any]:
    placements = state.placements
    for key, placement in sorted(placements.items()):
        placements = placements.set(key, split(placement, plan.split_at))
    return placements
