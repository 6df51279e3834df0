"""``ringlog submit`` and ``ringlog withdraw``: ask for any change as JSON, and end a request whose fate is open."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ringlog.cli import submitting
from ringlog.cli.connection import Bootstrap, Cluster, connect, fail, resolve, seconds_of
from ringlog.operator.answers import TIMEOUT_S, ended_json
from ringlog.operator.author_json import typed
from ringlog.runtime.inputs import STDIN, read_text


def submit(
    command: Annotated[str | None, typer.Argument(help='JSON, e.g. {"command": "Noop"}; none: standard input.')] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    timeout: Annotated[float, typer.Option(parser=seconds_of, help="Seconds to wait for the answer.")] = TIMEOUT_S,
    request_id: Annotated[str | None, typer.Option(help="Ask again under the id of an earlier try.")] = None,
    since_epoch: Annotated[int | None, typer.Option(help="The epoch that the earlier try gave.")] = None,
) -> None:
    """Submit one command through the validator and print what became of it, as JSON."""
    try:
        given: Any = json.loads(command if command is not None else read_text(STDIN))
    except (OSError, ValueError, RecursionError) as error:
        fail("bad_json", str(error), 2)
    context, intent = resolve(bootstrap, cluster), typed(given)
    submitting.submit(context, intent, True, timeout_s=timeout, request_id=request_id, since_epoch=since_epoch)


def withdraw(
    request_id: Annotated[str, typer.Argument(help="The request's id, as the error gave it.")],
    since_epoch: Annotated[int, typer.Argument(help="Its epoch, as the error gave it.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """End a request whose fate is open: after this it is applied, or never will be. Prints which, as JSON."""
    with connect(resolve(bootstrap, cluster)) as client:
        ended = client.withdraw(request_id, since_epoch)
    typer.echo(json.dumps(ended_json(ended)))
