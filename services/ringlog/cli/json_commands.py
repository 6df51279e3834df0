"""Commands as JSON: ``ringlog submit``, ``ringlog withdraw``, and ``ringlog rehearse``, which runs a plan offline."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.placement.balance import draw
from ringlog.cli.placement.tablet import check_not_undone
from ringlog.cli.shared import submitting
from ringlog.cli.shared.connection import Bootstrap, Cluster, connect, fail, resolve, seconds_of
from ringlog.cli.shared.options import newest
from ringlog.files import STDIN, read_input, read_lines, read_text
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.operator.answers import TIMEOUT_S, ended_json
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_lines import BAD_DUMP, read_dump, state_at_end
from ringlog.operator.history.log_past import Past, past_of
from ringlog.operator.intents.json_commands import intent_of_json
from ringlog.operator.rehearsal.balance_chart import EPOCHS
from ringlog.operator.rehearsal.rehearsal import Rehearsal

LIVE = "live"


def rehearse(
    plan: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File with one JSON command per line. Default: standard input."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help=help_texts.FROM),
    ] = None,
    picture: Annotated[Path | None, typer.Option("--chart", "--picture", help=help_texts.CHART)] = None,
) -> None:
    """Run the commands of a plan offline.

    Prints one JSON answer per line. The exit status is 2 if a line was invalid.
    """
    rehearsal = Rehearsal(state_from(source) if source is not None else EMPTY_STATE)
    status = 0
    for number, line in enumerate(_lines(plan), start=1):
        if not line.strip():
            continue
        answer = rehearsal.line(line.rstrip(b"\r\n"), number)
        typer.echo(json.dumps(answer))
        if answer.get("outcome") == "invalid":
            status = 2
    if picture is not None:
        draw(picture, rehearsal.balance_history, EPOCHS)
    raise typer.Exit(status)


def _lines(plan: Path | None) -> Iterable[bytes]:
    """Return the lines of a plan. Only a line feed ends a line: JSON text may contain Unicode line separators."""
    if plan is None or plan == STDIN:
        return read_lines(STDIN)
    try:
        return read_input(plan).split(b"\n")
    except OSError as error:
        fail("bad_file", f"{plan}: {error.strerror}", 2)


def _given(name: str) -> str | None:
    """Return the ``RINGLOG_*`` variable of a connection option that this command lacks; None if unset or empty."""
    return os.environ.get(f"RINGLOG_{name}") or None


def state_from(source: str) -> ClusterState:
    """Return the state of a dump or of ``live[:CLUSTER]``. The cluster is only read."""
    live, _, cluster = source.partition(":")
    try:
        if live == LIVE:
            with past_of(resolve(_given("BOOTSTRAP_SERVERS"), cluster or _given("CLUSTER"))) as past:
                state = state_at_end(past)
        else:
            state = state_at_end(Past(read_dump(Path(source))))
    except Refused as refused:
        fail(refused.code, str(refused), 2 if refused.code == BAD_DUMP else 1)
    if state.epoch == 0:
        fail("not_founded", f"{source} contains no cluster", 2)
    return state


def submit(
    command: Annotated[
        str | None, typer.Argument(help='JSON, e.g. {"command": "Noop"}. Default: standard input.')
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the answer.")] = TIMEOUT_S,
    request_id: Annotated[str | None, typer.Option(help="Request id of an earlier attempt, to get its result.")] = None,
    since_epoch: Annotated[int | None, typer.Option(help="Epoch that the earlier attempt printed.")] = None,
    wait: submitting.WaitCounted = False,
) -> None:
    """Submit a command as JSON and print the result.

    The validator decides the command. The result is JSON. For tables with a CDC log, `counts_from` has a time: the
    change counts for writes that are appended from then on.
    """
    try:
        given: Any = json.loads(command if command is not None else read_text(STDIN))
    except (OSError, ValueError, RecursionError) as error:
        fail("bad_json", str(error), 2)
    context, intent = resolve(bootstrap, cluster), intent_of_json(given)
    if isinstance(given, dict) and given.get("command") == "DecideResize" and request_id is None:
        check_not_undone(context, newest(context), str(given.get("table")), str(given.get("decision")))
    submitting.submit(
        context, intent, True, timeout_s=timeout, request_id=request_id, since_epoch=since_epoch, waits=wait
    )


def withdraw(
    request_id: Annotated[str, typer.Argument(help="Request id from the error message.")],
    since_epoch: Annotated[int, typer.Argument(help="Epoch from the error message.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """End a request without an answer and print its outcome.

    Afterwards the request is either applied or will never be applied. The outcome is JSON.
    """
    with connect(resolve(bootstrap, cluster)) as client:
        ended = client.withdraw(request_id, since_epoch)
    typer.echo(json.dumps(ended_json(ended)))
