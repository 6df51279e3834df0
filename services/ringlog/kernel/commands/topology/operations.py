"""Commands on an operation in flight: advance, cancel, fail and retry.

A recorded failure stops the operation in its stage, and only an operator's ``RetryOperation`` starts it again. Failures
come only from reports of participants, never from a clock or a count of waits.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.commands.rules import bad_witnesses, broken_field, reason_rule, registered, to_ignore
from ringlog.kernel.model.modes import UNPAUSED
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import AGENT, OPERATOR
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Failure, Operation, Retry, advance
from ringlog.kernel.movements.cancel import cancel
from ringlog.kernel.movements.progress import enter, may_leave
from ringlog.kernel.operations.gates import (
    REPORTED_STAGES,
    broken_report,
    counts_from,
    dead_parting,
    gaining_nodes,
    is_fully_met,
    is_relaxed,
    stopped_by,
    unasked_group,
)
from ringlog.kernel.operations.kinds import kind_of, next_stage
from ringlog.kernel.operations.stages import POINT_OF_NO_RETURN, has_reached, is_ended
from ringlog.kernel.tablets.mutual_exclusion import lost_without, tables_on
from ringlog.kernel.values import Before, Command, StreamReport, Witness, replace

CODES: Final = {
    "awaits_decision": "A step failed permanently or too often. Retry or cancel the operation.",
    "gate_not_met": "Too few of the required nodes have acknowledged the epoch.",
    "generation_not_committed": "The CDC generation of the operation is not committed.",
    "generation_not_published": "The CDC generation of the operation is not published.",
    "past_point_of_no_return": "The operation can only continue: a new owner may already serve reads.",
    "unknown_operation": "The operation is not known. It does not exist, or it ended long ago.",
    "waits_its_turn": "The maximum number of operations is running, or an operation of higher priority waits.",
    "wrong_stage": "The operation is not in the stage before the requested one.",
}

FAILURES_KEPT_MAX = 10


# --------------------------------------------------------------------------------------------------- advance


class AdvanceOperation(Command):
    """Move an operation to its next stage."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    operation: Annotated[str, "Id of the operation."]
    to: Annotated[str, "Stage that the operation enters."]
    witnesses: Annotated[tuple[Witness, ...], "Acknowledgements that satisfy the gate of the current stage."] = ()
    reports: Annotated[tuple[StreamReport, ...], "Reports of the gaining nodes, if the stage requires them."] = ()


def decide_advance_operation(state: ClusterState, command: AdvanceOperation, context: EntryContext) -> Decision:
    """Move the operation to its next stage, if acknowledgements and reports meet the conditions of the present one."""
    refused = bad_witnesses(state, command.witnesses)
    if refused is not None:
        return refused
    operation = state.operations.get(command.operation)
    if operation is None:
        return Rejected("unknown_operation", f"operation: {command.operation} is not known")
    expected = next_stage(operation)
    if command.to != expected:
        then = "the operation has ended" if expected is None else f"next is {expected}"
        return Rejected("wrong_stage", f"to: {operation.id} is in {operation.stage}, {then}, not {command.to!r}")
    refused = _foreign_report(operation, command.reports) or may_leave(
        state, operation, command.witnesses, command.reports
    )
    if refused is not None:
        return refused
    assert not is_ended(operation), "an ended operation has no next stage"
    if operation.stage in REPORTED_STAGES:
        operation = replace(operation, reports=tuple(sorted(command.reports, key=lambda report: report.node)))
    if is_relaxed(state, operation) and not is_fully_met(state, operation, command.witnesses):
        operation = replace(operation, relaxed=(*operation.relaxed, operation.stage))
    return Accepted(enter(state, operation, command.to, context))


def _foreign_report(operation: Operation, reports: tuple[StreamReport, ...]) -> Rejected | None:
    """Reject reports of other operations or of nodes that gain nothing by it, and repeated ones, so that late streams
    fail.
    """
    if len({report.node for report in reports}) < len(reports):
        return Rejected("bad_field", "reports: a node reports once")
    gaining = gaining_nodes(operation)
    for report in reports:
        if report.operation != operation.id or report.node not in gaining:
            return Rejected(
                "bad_field", f"reports: {report.node} ({report.operation}) receives no rows in {operation.id}"
            )
        if (broken := broken_report(report)) is not None:
            return Rejected("bad_field", f"reports: the report of {report.node} is malformed: {broken}")
    return None


# ---------------------------------------------------------------------------------------------------- cancel


class CancelOperation(Command):
    """Cancel an operation. This is possible before ``write_both_read_new`` only."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    operation: Annotated[str, "Id of the operation."]
    reason: Annotated[str, "Reason, in free text."]


def decide_cancel_operation(state: ClusterState, command: CancelOperation, context: EntryContext) -> Decision:
    """Cancel an operation. Placements are as if it had never been admitted, and its nodes have their earlier states.

    A dead node that was replacing another and has some of its tablets leaves: others know their rows.
    """
    operation = _going_on(state, command.operation, command.reason)
    if isinstance(operation, Rejected):
        return operation
    if has_reached(operation, POINT_OF_NO_RETURN):
        return Rejected(
            "past_point_of_no_return",
            f"operation: {operation.id} is in {operation.stage}, and can no longer be cancelled",
        )
    if (settled := _has_tablets(state, operation)) is not None:
        return settled
    return Accepted(cancel(state, operation, command.reason, context))


def _has_tablets(state: ClusterState, operation: Operation) -> Rejected | None:
    """Reject unless the node that replaces another one has no tablets, or is down and others know all their rows."""
    if not kind_of(operation).brings_node or not (tables := tables_on(state, operation.node)):
        return None
    node = state.nodes[operation.node]
    if not node.down:
        return Rejected(
            "past_point_of_no_return", f"operation: {node.name} has already received tablets of {tables[0]}"
        )
    bare = next(lost_without(state, node.id), "")
    why = f"operation: only {node.name} has all rows of {bare}: start it again, or assassinate it"
    return Rejected("too_few_replicas", why) if bare else None


class FailOperation(Command):
    """Report that an operation cannot continue: a node has a permanent error, or has used all attempts.

    An error that a retry cannot fix cancels the operation before ``write_both_read_new``. Any other error stops it.
    """

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    operation: Annotated[str, "Id of the operation."]
    reason: Annotated[str, "Description of the error."]
    node: Annotated[str, "Id of the node that has the error. Empty: unknown.", Before("")] = ""
    tries: Annotated[
        int,
        "Number of failed attempts of the node to receive its rows. 0: a retry cannot fix the error.",
        Before(0),
    ] = 0
    since: Annotated[
        int,
        "Epoch since which attempts are counted: the start of the stage, or the last RetryOperation.",
        Before(0),
    ] = 0


def decide_fail_operation(state: ClusterState, command: FailOperation, context: EntryContext) -> Decision:
    """Cancel the operation, while that is possible, if no retry can fix the error. Otherwise record the failure and
    stop it.
    """
    operation = _going_on(state, command.operation, command.reason)
    if isinstance(operation, Rejected):
        return operation
    if command.node and isinstance(unknown := registered(state, command.node), Rejected):
        return unknown
    if command.tries and (refused := _unjustified_failure(state, operation, command)) is not None:
        return refused
    failure = Failure(context.epoch, command.reason, command.node, command.tries)
    failed = replace(operation, failures=(*operation.failures, failure)[-FAILURES_KEPT_MAX:])
    given = kind_of(operation).brings_node and tables_on(state, operation.node)
    forward_only = has_reached(operation, POINT_OF_NO_RETURN) or bool(given)
    if not command.tries and not forward_only:
        return Accepted(cancel(state, failed, command.reason, context))
    return Accepted(advance(state, context.epoch, operations=state.operations.set(failed.id, failed)))


def _unjustified_failure(state: ClusterState, operation: Operation, command: FailOperation) -> Rejected | None:
    """Reject tries that do not stop the operation: too few, of an earlier stage or retry, or reported before."""
    name = state.nodes[command.node].name if command.node else "nobody"
    if operation.stage not in REPORTED_STAGES or command.node not in gaining_nodes(operation):
        return Rejected("wrong_stage", f"node: {name} streams nothing for {operation.id} in {operation.stage}")
    if command.since != counts_from(operation):
        text = f"since: tries for {operation.id} count from epoch {counts_from(operation)}, not {command.since}"
        return Rejected("wrong_stage", text)
    stopped = stopped_by(operation)
    if any(failure.node == command.node for failure in stopped):
        return Rejected("awaits_decision", f"node: {name} has already reported a failure")
    if len(stopped) >= FAILURES_KEPT_MAX:  # one more would remove another, which would be reported again
        return Rejected("awaits_decision", f"node: {len(stopped)} other nodes have already reported a failure")
    most = setting(state, "stream_tries_max")
    return broken_field((command.tries >= most, "tries", f"must be at least {most}"))


class RetryOperation(Command):
    """Retry an operation from its present stage, by an operator's decision."""

    PAUSED_BY = UNPAUSED
    NEEDS = (OPERATOR,)

    operation: Annotated[str, "Id of the operation."]
    reason: Annotated[str, "Reason, in free text."]
    ignore_nodes: Annotated[
        tuple[str, ...],
        "Ids of down nodes that the operation no longer waits for. Only from write_both_read_new on.",
    ] = ()
    admits_loss: Annotated[
        bool,
        "Continue even if too few nodes are left, so that reads and writes planned earlier may miss rows.",
    ] = False


def decide_retry_operation(state: ClusterState, command: RetryOperation, context: EntryContext) -> Decision:
    """Continue the operation from its present stage, without the nodes to ignore.

    With an admitted loss it also continues without the leaving node, if that is dead.
    """
    operation = _going_on(state, command.operation, command.reason)
    if isinstance(operation, Rejected):
        return operation
    ignored = to_ignore(state, command.ignore_nodes, ())
    if isinstance(ignored, Rejected):
        return ignored
    if ignored and not has_reached(operation, POINT_OF_NO_RETURN):
        text = f"ignore_nodes: {operation.id} can still be cancelled; cancel it, then start it without these nodes"
        return Rejected("wrong_stage", text)
    retries = (*operation.retries, Retry(context.epoch, command.reason))[-FAILURES_KEPT_MAX:]
    leaver = dead_parting(state, operation) if ignored and command.admits_loss else ()
    tried = replace(operation, retries=retries, ignored=tuple(sorted({*operation.ignored, *ignored, *leaver})))
    if ignored and (few := unasked_group(state, tried)) is not None:
        where = f"({few.start}, {few.end}] under {few.replication} in {few.datacenter}"
        if not command.admits_loss:
            return Rejected(
                "too_few_replicas", f"ignore_nodes: too few nodes of the {few.group} group of {where} would remain"
            )
        told = f"continued with too few nodes of {where}: reads and writes planned before may have missed rows"
        tried = replace(tried, reason=told)
    return Accepted(advance(state, context.epoch, operations=state.operations.set(tried.id, tried)))


def _going_on(state: ClusterState, name: str, reason: str) -> Operation | Rejected:
    """Return the operation, or the rejection if it has ended or ``reason`` is too long."""
    if (broken := broken_field(reason_rule(reason, 0))) is not None:
        return broken
    operation = state.operations.get(name)
    if operation is None:
        return Rejected("unknown_operation", f"operation: {name} is not known")
    if is_ended(operation):
        return Rejected("wrong_stage", f"operation: {operation.id} is {operation.stage} already")
    return operation
