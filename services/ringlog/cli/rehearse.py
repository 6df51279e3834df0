"""``ringlog rehearse``: try a plan before submitting it, or write a test as text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ringlog.cli.connection import fail, resolve
from ringlog.cli.drawing import draw
from ringlog.kernel.state import EMPTY_STATE, ClusterState
from ringlog.operator.balance_picture import EPOCHS
from ringlog.operator.errors import Refused
from ringlog.operator.log_lines import BAD_DUMP, read_dump, state_at_end
from ringlog.operator.log_past import Past, past_of
from ringlog.operator.rehearsal import Rehearsal
from ringlog.runtime.inputs import STDIN, read_input, read_lines

LIVE = "live"


def rehearse(
    plan: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="JSON lines; none or -: standard input.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Start from a cluster's state: a file of `ringlog log --dump`, or live[:CLUSTER]."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw how tablets lay at each epoch into this file, as SVG.")
    ] = None,
) -> None:
    """Run a plan's commands offline, one JSON answer a line. Exit status 2 if a line was invalid."""
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
        draw(picture, rehearsal.film, EPOCHS)
    raise typer.Exit(status)


def _lines(plan: Path | None) -> Iterable[bytes]:
    """Lines end with a line feed alone: other separators of Unicode may stand inside JSON text."""
    if plan is None or plan == STDIN:
        return read_lines(STDIN)
    try:
        return read_input(plan).split(b"\n")
    except OSError as error:
        fail("bad_file", f"{plan}: {error.strerror}", 2)


def _given(name: str) -> str | None:
    """A variable of those that commands with options for them obey: here there are none, and none is its default."""
    return os.environ.get(f"RINGLOG_{name}") or None


def state_from(source: str) -> ClusterState:
    """The state of a dump, or of ``live[:CLUSTER]``, which is only read."""
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
        fail("not_founded", f"no cluster was founded in {source}", 2)
    return state
