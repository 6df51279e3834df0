"""``ringlog pause`` and ``ringlog resume``: pause and resume kinds of changes."""

from __future__ import annotations

from typing import Annotated

import typer

from ringlog.cli.shared.submitting import Reason, change_command
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.model.modes import LIMITED, SCOPES
from ringlog.operator.intents.intents import Intent, named

Scopes = Annotated[list[str], typer.Argument(metavar="SCOPE", help=f"Some of: {', '.join(SCOPES)}.")]
Of = Annotated[
    str,
    typer.Option(
        "--of",
        metavar="KEYSPACE[.TABLE]",
        help=f"Limit to a keyspace or a table (only {', '.join(LIMITED)}). Default: everywhere.",
    ),
]


@change_command
def pause(scopes: Scopes, of: Of = "", reason: Reason = "") -> Intent:
    """Pause changes of these scopes.

    Running changes continue to their end. `ringlog status` shows the pauses.
    """
    return named(PauseChanges(tuple(scopes), of, reason))


@change_command
def resume(scopes: Scopes, of: Of = "") -> Intent:
    """Resume changes of these scopes.

    Give the same scopes and limit as for the pause. Other pauses stay.
    """
    return named(ResumeChanges(tuple(scopes), of))
