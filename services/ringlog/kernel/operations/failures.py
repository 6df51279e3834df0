"""Failures of an operation: since when tries count, and whether it stands still because of them.

Who has failed says so itself, by an entry of the log; that a node is silent is never taken for a failure. A recorded
failure stops the operation: no stage is left, whatever is acknowledged, until an operator has it tried again or, before
``write_both_read_new``, calls it off. Tries count anew from each stage and from each decision to try again, so a report
that comes late stops nothing.
"""

from __future__ import annotations

from ringlog.kernel.state import ClusterState, Failure, Operation
from ringlog.kernel.values import Epoch


def counts_from(operation: Operation) -> Epoch:
    """The epoch from which failed tries count: the stage began with it, or an operator had it tried again."""
    return max(operation.stage_epoch, *(retry.epoch for retry in operation.retries[-1:]), 0)


def stopped_by(operation: Operation) -> tuple[Failure, ...]:
    """The failures because of which an operation in flight waits for an operator; empty if it goes on."""
    since = counts_from(operation)
    return tuple(failure for failure in operation.failures if failure.epoch > since)


def told(state: ClusterState, failure: Failure) -> str:
    """A failure in words."""
    who = state.nodes[failure.node].name if failure.node in state.nodes else "somebody"
    often = f" after {failure.tries} tries" if failure.tries else ""
    return f"{who}{often} at epoch {failure.epoch}: {failure.reason or 'no reason given'}"
