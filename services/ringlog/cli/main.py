"""The ``ringlog`` command: sub-commands by room, each with ``--json`` where it prints facts.

A sub-command's module is imported only when it is asked for, so that small commands answer at once.

Exit status: 0 done; 1 refused or failed (the error's stable code comes first on standard error); 2 wrong usage or an
invalid input line; 3 something must be installed first; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ringlog import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("ringlog.cli.data", "demo"),
    "stack": ("ringlog.stack.cli", "app"),
    "cluster": ("ringlog.cli.cluster", "app"),
    "status": ("ringlog.cli.cluster", "status"),
    "agents": ("ringlog.cli.agents", "app"),
    "agent": ("ringlog.cli.agents", "one"),
    "node": ("ringlog.cli.node", "app"),
    "operation": ("ringlog.cli.operations", "app"),
    "keyspace": ("ringlog.cli.schema", "keyspace_app"),
    "table": ("ringlog.cli.schema", "table_app"),
    "data": ("ringlog.cli.registers", "app"),
    "cdc": ("ringlog.cli.data", "app"),
    "audit": ("ringlog.cli.data", "audit_command"),
    "submit": ("ringlog.cli.cluster", "submit"),
    "withdraw": ("ringlog.cli.cluster", "withdraw"),
    "log": ("ringlog.cli.log", "show"),
    "sim": ("ringlog.cli.sim", "app"),
    "rehearse": ("ringlog.cli.rehearse", "rehearse"),
    "token": ("ringlog.cli.scripts", "token"),
    "stream-id": ("ringlog.cli.scripts", "stream_id"),
    "shard": ("ringlog.cli.scripts", "shard"),
}
"""Name to (module, typer app or function), in the order of the help."""


class RoomGroup(TyperGroup):
    """Loads a sub-command when it is named."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The sub-command of that name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        found = getattr(import_module(module), attribute)
        command = typer.main.get_command(found if isinstance(found, typer.Typer) else _single(found))
        command.name = cmd_name
        return command


def _single(function: Callable[..., Any]) -> typer.Typer:
    """An app that is one command."""
    one = typer.Typer(add_completion=False)
    one.command()(function)
    return one


app = typer.Typer(cls=RoomGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringlog {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _shown: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Cluster metadata as one totally ordered log."""


def main() -> None:
    """Entry point: errors that are expected come out as one line with their code, never as a trace."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        code = getattr(error, "code", None)
        if not isinstance(code, str):
            raise
        typer.echo(f"{code}: {error}", err=True)
        if code == "submission_timed_out":
            typer.echo("from the command line: ringlog withdraw REQUEST_ID EPOCH, with the two above", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
