"""``ringlog pause``, ``resume`` and ``recovery``: stop kinds of changes, and enter and leave the recovery mode."""

from __future__ import annotations

from typing import Annotated

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.submitting import Reason, change_command, destructive_command
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.commands.control.recovery import EnterRecovery, LeaveRecovery
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


recovery = typer.Typer(no_args_is_help=True)
Operator = Annotated[str, typer.Option("--operator", help=help_texts.OPERATOR)]
Why = Annotated[str, typer.Option("--reason", help=help_texts.REASON)]


@recovery.command("enter")
@destructive_command
def enter(operator: Operator, reason: Why) -> Intent:
    """Enter the recovery mode.

    Steps of the metadata service then need no quorum, and new operations are refused. Every status shows it.
    """
    return named(EnterRecovery(reason, operator))


@recovery.command("leave")
@destructive_command
def leave(operator: Operator, reason: Why) -> Intent:
    """Leave the recovery mode."""
    return named(LeaveRecovery(reason, operator))
