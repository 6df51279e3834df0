"""``ringlog cdc lower``, ``withdraw``, ``close`` and ``forget-versions``: correct the log after a wrong clock, or after
the permanent loss of a process.
"""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import TIMES, Bootstrap, Cluster, Json, connect, fail, out, resolve, time_of
from ringlog.cli.shared.submitting import destructive_command, show_answer
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.operator.errors import Refused
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.intents.json_commands import intent_of_json
from ringlog.operator.views.clocks import appended_until, lowering, settled_lowering, start_of, withdrawal
from ringlog.operator.views.words import when
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw

Reason = Annotated[str, typer.Option("--reason", help=help_texts.REASON)]
By = Annotated[str | None, typer.Option("--operator", "--by", help=help_texts.OPERATOR)]


def lower_command(
    reason: Reason,
    writer: Annotated[str | None, typer.Option("--writer", help=help_texts.WRITER)] = None,
    to: Annotated[
        int | None,
        typer.Option("--new-timestamp", "--to", help="Microseconds since 1970. Default: the lowest safe time.", min=0),
    ] = None,
    by: By = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Lower a timestamp that is ahead because of a wrong clock.

    Lowers the write lease of a fenced CDC writer, or without --writer the validation watermark. The lowest safe time
    follows from the append times of the mutations topic: timestamps up to the newest one plus the allowed lateness may
    have been used.
    """
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        state = client.read_barrier()
        appended = appended_until(context.bootstrap, context.cluster)
        try:
            name, before, after, command = _lowering(state, writer, appended, to, _reason_text(reason, by))
        except Refused as refused:
            fail(refused.code, str(refused))
        answer = client.submit(command)
    if not as_json:
        out.print(f"{name}: from {when(before)} down to {when(after)}")
    show_answer(answer, None, as_json)


def _lowering(
    state: ClusterState, writer: str | None, appended: Micros | None, to: Micros | None, reason_text: str
) -> tuple[str, Micros, Micros, Command]:
    """Return (subject, time before, time after, command). Raises Refused."""
    if writer is None:
        settled = settled_lowering(state, SystemClock().now_us(), appended, to, reason_text)
        return "validation watermark", state.settled.until, settled.until, settled
    found, horizon = lowering(state, writer, appended, to, reason_text)
    return writer, found.horizon, horizon.horizon, horizon


def withdraw_command(
    generation: Annotated[str, typer.Argument(help="Id of the last generation, as `ringlog cdc status` shows it.")],
    reason: Reason,
    by: By = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Withdraw the last generation if no write has used it.

    Use this if a wrong clock set its start far ahead. If the ring needs a generation, another one is prepared at once.
    """
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        state = client.read_barrier()
        appended = appended_until(context.bootstrap, context.cluster)
        try:
            command = withdrawal(state, generation, appended, _reason_text(reason, by), SystemDraw())
        except Refused as refused:
            fail(refused.code, str(refused))
        answer = client.submit(command)
    starts = start_of(state, generation)
    if not as_json and starts is not None:
        out.print(f"{generation} would have started at {when(starts)}")
    show_answer(answer, None, as_json)


def _reason_text(reason: str, by: str | None) -> str:
    return f"{reason}; by {by or _user()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown user"


@destructive_command
def close_command(
    generation: Annotated[str, typer.Argument(help="Id of the oldest open generation.")],
) -> Intent:
    """Close a generation that no writer will finish.

    Its remaining writes are not in the CDC log.
    """
    return intent_of_json({"command": "CloseCdcGeneration", "generation": generation, "unwatched": True})


@destructive_command
def forget_versions_command(
    before: Annotated[
        int, typer.Option("--before", parser=time_of, metavar="TIME", help=f"No write in the topic is older: {TIMES}")
    ],
) -> Intent:
    """Delete table versions that only older writes need.

    The validation watermark stays as it is.
    """
    return named(SettleVerdicts(1, before))
