"""Range movements: asking for one, moving it on, calling it off.

One operation is in flight at a time in this release: any other is refused ``range_locked``, naming the holder. A join
never makes a replication impossible that was possible, so it needs no check of that.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from ringlog.kernel.commands.model import AdvanceOperation, CancelOperation, Join, StreamReport
from ringlog.kernel.operations.cancel import cancel
from ringlog.kernel.operations.join import locks_of, plan_join
from ringlog.kernel.operations.progress import enter, may_leave, record
from ringlog.kernel.operations.stages import (
    POINT_OF_NO_RETURN,
    REQUESTED,
    WRITE_BOTH_READ_OLD,
    has_reached,
    in_flight,
    is_ended,
    next_stage,
    target_owners,
)
from ringlog.kernel.outcome import Accepted, Context, Decision, Rejected
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, Operation, StageMark, advance
from ringlog.kernel.values import Token, is_token

SEED_BYTES = 16
REASON_LENGTH_MAX = 500
_CHECKSUM = re.compile(r"[0-9a-f]{2,128}")


# ------------------------------------------------------------------------------------------------------ join


def decide_join(state: ClusterState, command: Join, context: Context) -> Decision:
    """A registered node asks for tokens: the operation is recorded with its plan and locks; the node is ``joining``."""
    refused = _bad_tokens(state, command) or _not_admitted(state, command)
    if refused is not None:
        return refused
    node = state.nodes[command.node]
    tokens = tuple(sorted(command.tokens))
    plan = plan_join(state, node.id, tokens)
    operation = Operation(
        id=f"join-{context.epoch}",
        kind="join",
        node=node.id,
        tokens=tokens,
        seed=command.seed,
        stage=REQUESTED,
        stage_epoch=context.epoch,
        plan=plan,
        locks=locks_of(state, plan),
        generation=None,
        marks=(StageMark(REQUESTED, context.epoch, context.time),),
        reports=(),
        reason="",
    )
    return Accepted(
        advance(
            state,
            context.epoch,
            nodes=state.nodes.set(node.id, replace(node, state="joining")),
            operations=record(state, operation),
        )
    )


def _bad_tokens(state: ClusterState, command: Join) -> Rejected | None:
    """The rules of the fields themselves."""
    if len(command.seed) != SEED_BYTES:
        return Rejected("bad_field", f"seed: must be {SEED_BYTES} bytes, not {len(command.seed)}")
    most = setting(state, "tokens_per_node_max")
    if not 1 <= len(command.tokens) <= most:
        return Rejected("bad_field", f"tokens: must be 1 to {most} tokens, not {len(command.tokens)}")
    for token in command.tokens:
        if not is_token(token):
            return Rejected("bad_field", f"tokens: {token} is no token of the ring")
    twice = _first_repeated(command.tokens)
    if twice is not None:
        return Rejected("duplicate_token", f"tokens: {twice} is there more than once")
    return None


def _not_admitted(state: ClusterState, command: Join) -> Rejected | None:
    """What the cluster has against it."""
    node = state.nodes.get(command.node)
    if node is None:
        return Rejected("unknown_node", f"node: {command.node} is not registered")
    if node.state != "none":
        return Rejected("wrong_node_state", f"node: {node.name} is {node.state}, only a node in state none can join")
    owners = target_owners(state)
    for token in sorted(command.tokens):
        if token in owners:
            return Rejected("token_owned", f"tokens: {token} belongs to {state.nodes[owners[token]].name}")
    if len(owners) + len(command.tokens) > setting(state, "ranges_max"):
        return Rejected("bad_field", f"tokens: the ring would have more than {setting(state, 'ranges_max')} ranges")
    for holder in in_flight(state):
        name = state.nodes[holder.node].name
        return Rejected("range_locked", f"node: {holder.id} of {name} is in flight ({holder.stage}), one at a time")
    return None


def _first_repeated(tokens: tuple[Token, ...]) -> Token | None:
    ordered = sorted(tokens)
    return next((low for low, high in pairwise(ordered) if low == high), None)


# --------------------------------------------------------------------------------------------------- advance


def decide_advance_operation(state: ClusterState, command: AdvanceOperation, context: Context) -> Decision:
    """The operation enters its next stage, if all that the present one demands is witnessed."""
    refused = _bad_witnesses(state, command)
    if refused is not None:
        return refused
    operation = state.operations.get(command.operation)
    if operation is None:
        return Rejected("unknown_operation", f"operation: {command.operation} is not known")
    expected = next_stage(operation)
    if command.to != expected:
        then = "it is ended" if expected is None else f"next is {expected}"
        return Rejected("wrong_stage", f"to: {operation.id} is in {operation.stage}, {then}, not {command.to!r}")
    refused = _foreign_report(operation, command.reports) or may_leave(
        state, operation, command.witnesses, command.reports
    )
    if refused is not None:
        return refused
    if operation.stage == WRITE_BOTH_READ_OLD:
        operation = replace(operation, reports=tuple(sorted(command.reports, key=lambda report: report.node)))
    return Accepted(enter(state, operation, command.to, context))


def _bad_witnesses(state: ClusterState, command: AdvanceOperation) -> Rejected | None:
    """Witnesses are registered nodes and cannot know the future; a repeated one counts once (see the gate)."""
    for witness in command.witnesses:
        if witness.node not in state.nodes:
            return Rejected("unknown_node", f"witnesses: {witness.node} is not registered")
        if not (0 <= witness.applied <= state.epoch and 0 <= witness.drained <= state.epoch):
            name = state.nodes[witness.node].name
            return Rejected("bad_field", f"witnesses: epochs of {name} must lie between 0 and {state.epoch}")
    return None


def _foreign_report(operation: Operation, reports: tuple[StreamReport, ...]) -> Rejected | None:
    """A report must be of this very operation and of a node that gains by it, once: a late stream is refused."""
    if len({report.node for report in reports}) < len(reports):
        return Rejected("bad_field", "reports: a node reports once")
    for report in reports:
        if (report.operation, report.node) != (operation.id, operation.node):
            return Rejected("bad_field", f"reports: {report.node} ({report.operation}) gains nothing by {operation.id}")
        if report.rows < 0 or not _CHECKSUM.fullmatch(report.checksum):
            return Rejected("bad_field", f"reports: rows or checksum of {report.node} are malformed")
    return None


# ---------------------------------------------------------------------------------------------------- cancel


def decide_cancel_operation(state: ClusterState, command: CancelOperation, context: Context) -> Decision:
    """The placements become as if the operation had never been admitted; its node is ``none`` again."""
    if len(command.reason) > REASON_LENGTH_MAX:
        return Rejected("bad_field", f"reason: at most {REASON_LENGTH_MAX} characters, not {len(command.reason)}")
    operation = state.operations.get(command.operation)
    if operation is None:
        return Rejected("unknown_operation", f"operation: {command.operation} is not known")
    if is_ended(operation):
        return Rejected("wrong_stage", f"operation: {operation.id} is {operation.stage} already")
    if has_reached(operation, POINT_OF_NO_RETURN):
        return Rejected(
            "past_point_of_no_return",
            f"operation: {operation.id} is in {operation.stage}, from there it can only finish",
        )
    return Accepted(cancel(state, operation, command.reason, context))
