"""Submit a command and print its outcome, for all subcommands that change the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ringlog.cli.shared.connection import connect, fail, out, resolve, used_cluster
from ringlog.cli.shared.options import ASKING, with_options
from ringlog.client.client import Client
from ringlog.operator import answers
from ringlog.operator.answers import TIMEOUT_S, InvalidIntent, answer_json
from ringlog.operator.intents.intents import Intent
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.runtime.context import ClusterContext

Reason = Annotated[str, typer.Option(help="Reason, recorded in the log.")]


def change_command(verb: Callable[..., Intent]) -> Callable[..., None]:
    """Decorate a function that returns an intent: add the connection options and submit the intent."""
    return with_options(verb, ASKING, _ask)


def _ask(verb: Callable[[], Intent], bootstrap: str | None, cluster: str | None, as_json: bool) -> None:
    intent = verb()
    submit(resolve(bootstrap, cluster), intent, as_json)


def submit(
    context: ClusterContext,
    intent: Intent,
    as_json: bool,
    *,
    timeout_s: float = TIMEOUT_S,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> None:
    """Submit an intent and print the outcome; exit status 1 if it is not applied, 2 if it is not a command."""
    with connect(context) as client:
        answer, began = submitted(client, intent, timeout_s, request_id, since_epoch)
        ways_out = answers.ways_after(client.replica.state, intent, answer)
    show_answer(answer, began, as_json, ways_out)


def submitted(
    client: Client,
    intent: Intent,
    timeout_s: float = TIMEOUT_S,
    request_id: str | None = None,
    since_epoch: int | None = None,
) -> tuple[Submitted, str | None]:
    """Return (answer, id of the operation that it started, or None); exit status 2 for an invalid intent."""
    try:
        return answers.submitted(client, intent, timeout_s=timeout_s, request_id=request_id, since_epoch=since_epoch)
    except InvalidIntent as refused:
        fail(refused.code, str(refused), 2)


def applied_text(epoch: int, began: str | None) -> str:
    """Return the text for an applied command, with the epoch and the operation that it started."""
    return f"applied at epoch {epoch} of cluster {used_cluster()}" + (f", operation {began}" if began else "")


def show_answer(answer: Submitted, began: str | None, as_json: bool, ways_out: Sequence[str] = ()) -> None:
    """Print the outcome of a command; exit status 1 unless it was applied."""
    if as_json:
        typer.echo(json.dumps(answer_json(answer, began, ways_out)))
    elif isinstance(answer, AppliedResult):
        out.print(applied_text(answer.epoch, began))
    elif isinstance(answer, RejectedResult):
        fail(answer.code, answer.detail, ways_out=ways_out)
    else:
        fail("request_expired", f"unknown, and final now: see ringlog log --from-epoch {answer.since_epoch}")
    if not isinstance(answer, AppliedResult):
        raise typer.Exit(1)
