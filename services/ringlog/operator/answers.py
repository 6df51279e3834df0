"""Asking for a command, and what became of it."""

from __future__ import annotations

from typing import Any

from ringlog.client.client import Client
from ringlog.client.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.kernel.decide import decide
from ringlog.kernel.outcome import Accepted, Context
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.operator.errors import Refused
from ringlog.operator.intents import Intent, InvalidCommand, resolved
from ringlog.protocol.draw import Draw
from ringlog.runtime.draw import SystemDraw

TIMEOUT_S = 30.0


class NoCommand(Refused):
    """A wish that is no command: its author's mistake, whatever the state is."""


def submitted(
    client: Client,
    intent: Intent,
    *,
    timeout_s: float = TIMEOUT_S,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> tuple[Submitted, str | None]:
    """(answer, id of the operation that it began) of what an intent is on the newest state. Raises NoCommand."""
    command = _command(intent, client.read_barrier(), SystemDraw())
    answer = client.submit(command, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)
    return answer, operation_begun(client.replica.state, answer)


def _command(intent: Intent, state: ClusterState, draw: Draw) -> Command:
    command = resolved(intent, state, draw)
    if isinstance(command, InvalidCommand):
        raise NoCommand(command.code, command.detail)
    return command


def operation_begun(state: ClusterState, answer: Submitted) -> str | None:
    """The operation that an applied command began, if it began one."""
    if not isinstance(answer, AppliedResult):
        return None
    begun = (operation.id for operation in state.operations.values() if operation.marks[0].epoch == answer.epoch)
    return next(begun, None)


def foretold(state: ClusterState, intent: Intent, draw: Draw) -> str:
    """What the operation of a command would say at its end. Raises Refused if it would be."""
    decided = decide(state, _command(intent, state, draw), Context(state.epoch + 1, state.state_id, state.time))
    if not isinstance(decided, Accepted):
        raise Refused(decided.code, decided.detail)
    return max(decided.state.operations.values(), key=lambda operation: operation.marks[0].epoch).reason


def answer_json(answer: Submitted, began: str | None = None) -> dict[str, Any]:
    """An answer as JSON: outcome, epoch, the operation that it began, and for a rejection its code and detail."""
    match answer:
        case AppliedResult():
            shown: dict[str, Any] = {"outcome": "applied", "epoch": answer.epoch, "request_id": answer.request_id}
        case RejectedResult():
            shown = {"outcome": "rejected", "epoch": answer.epoch}
            shown |= {"code": answer.code, "detail": answer.detail, "request_id": answer.request_id}
        case _:
            shown = {"outcome": "expired", "request_id": answer.request_id, "since_epoch": answer.since_epoch}
    return shown | ({"operation": began} if began else {})


def ended_json(ended: AppliedResult | WithdrawnResult | ExpiredResult) -> dict[str, Any]:
    """What a withdrawal has found or made of a request, as JSON."""
    outcome = {AppliedResult: "applied", WithdrawnResult: "withdrawn", ExpiredResult: "expired"}[type(ended)]
    epoch = {} if isinstance(ended, ExpiredResult) else {"epoch": ended.epoch}
    return {"outcome": outcome, **epoch, "request_id": ended.request_id}
