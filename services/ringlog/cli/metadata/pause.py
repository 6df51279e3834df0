"""``ringlog pause`` and ``ringlog resume``: kinds of changes are held up, and let go."""

from __future__ import annotations

from typing import Annotated

import typer

from ringlog.cli.shared.submitting import Reason, change_command
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.model.modes import LIMITED, SCOPES
from ringlog.operator.intents.intents import Intent, named

Scopes = Annotated[list[str], typer.Argument(metavar="SCOPE...", help=f"Some of: {', '.join(SCOPES)}.")]
Of = Annotated[
    str,
    typer.Option(
        "--of",
        metavar="KEYSPACE[.TABLE]",
        help=f"A keyspace or a table that alone is meant ({', '.join(LIMITED)}); none: everywhere.",
    ),
]


@change_command
def pause(scopes: Scopes, of: Of = "", reason: Reason = "") -> Intent:
    """Hold up changes of these scopes; what runs goes on to its end. `ringlog status` shows what is paused."""
    return named(PauseChanges(tuple(scopes), of, reason))


@change_command
def resume(scopes: Scopes, of: Of = "") -> Intent:
    """Let changes of these scopes go on, as they were paused. Other pauses stay."""
    return named(ResumeChanges(tuple(scopes), of))
