"""Submitting a command given as JSON and saying what became of it."""

from __future__ import annotations

import json
from typing import Any

import typer

from ringlog.cli.connection import connect, fail, out
from ringlog.client.client import Client
from ringlog.client.results import AppliedResult, RejectedResult, Submitted
from ringlog.kernel.state import ClusterState
from ringlog.runtime.context import Context
from ringlog.wire.author_json import InvalidCommand, from_json
from ringlog.wire.draw import SystemDraw


def answer_json(answer: Submitted) -> dict[str, Any]:
    """An answer as JSON: outcome, epoch, and for a rejection its code and detail."""
    match answer:
        case AppliedResult():
            return {"outcome": "applied", "epoch": answer.epoch, "request_id": answer.request_id}
        case RejectedResult():
            return {
                "outcome": "rejected",
                "epoch": answer.epoch,
                "code": answer.code,
                "detail": answer.detail,
                "request_id": answer.request_id,
            }
        case _:
            return {"outcome": "expired", "request_id": answer.request_id, "since_epoch": answer.since_epoch}


def submit_json(
    context: Context,
    given: object,
    as_json: bool,
    *,
    timeout_s: float = 30.0,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> None:
    """Resolve, submit, print; exit status 1 unless the command was applied, 2 if it is none."""
    with connect(context) as client:
        answer, began = submitted(client, given, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)
    show_answer(answer, began, as_json)


def submitted(
    client: Client,
    given: object,
    *,
    timeout_s: float = 30.0,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> tuple[Submitted, str | None]:
    """(answer, id of the operation that it began) of a command as JSON; exit status 2 if it is none."""
    command = from_json(client.read_barrier(), given, SystemDraw())
    if isinstance(command, InvalidCommand):
        fail(command.code, command.detail, 2)
    answer = client.submit(command, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)
    return answer, operation_begun(client.replica.state, answer)


def show_answer(answer: Submitted, began: str | None, as_json: bool) -> None:
    """Print what became of a command; exit status 1 unless it was applied."""
    if as_json:
        typer.echo(json.dumps(answer_json(answer) | ({"operation": began} if began else {})))
    elif isinstance(answer, AppliedResult):
        out.print(f"applied at epoch {answer.epoch}" + (f", operation {began}" if began else ""))
    elif isinstance(answer, RejectedResult):
        fail(answer.code, answer.detail)
    else:
        fail("request_expired", f"unknown, now final: look in the log since epoch {answer.since_epoch}")
    if not isinstance(answer, AppliedResult):
        raise typer.Exit(1)


def operation_begun(state: ClusterState, answer: Submitted) -> str | None:
    """The operation that an applied command began, if it began one."""
    if not isinstance(answer, AppliedResult):
        return None
    for operation in state.operations.values():
        if operation.marks[0].epoch == answer.epoch:
            return operation.id
    return None
