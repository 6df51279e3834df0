"""The ``ringlog`` command: sub-commands by room, each with ``--json`` where it prints facts.

A sub-command's module is imported only when it is asked for, so that small commands answer at once.

Exit status: 0 done; 1 refused or failed (the error's stable code comes first on standard error); 2 wrong usage or an
invalid input line; 3 something must be installed first; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ringlog import __version__
from ringlog.private import refused_by_files
from ringlog.runtime.kafka_config import VARIABLE, use

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("ringlog.cli.demo", "demo"),
    "stack": ("ringlog.cli.stack", "app"),
    "cluster": ("ringlog.cli.cluster", "app"),
    "status": ("ringlog.cli.status", "status"),
    "agents": ("ringlog.cli.agents", "app"),
    "agent": ("ringlog.cli.agents", "one"),
    "node": ("ringlog.cli.node", "app"),
    "operation": ("ringlog.cli.operation", "app"),
    "keyspace": ("ringlog.cli.keyspace", "app"),
    "table": ("ringlog.cli.table", "app"),
    "data": ("ringlog.cli.data", "app"),
    "cdc": ("ringlog.cli.cdc", "app"),
    "audit": ("ringlog.cli.audit", "audit"),
    "submit": ("ringlog.cli.submit", "submit"),
    "withdraw": ("ringlog.cli.submit", "withdraw"),
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
        _add_kafka_config(command)
        return command


def _add_kafka_config(command: Any) -> None:
    """``--kafka-config`` for every command, below this one, that can be told its broker."""
    for inner in getattr(command, "commands", {}).values():
        _add_kafka_config(inner)
    names = {parameter.name for parameter in command.params}
    if "bootstrap" in names and "kafka_config" not in names:
        options = typer.main.get_command(_single(_with_kafka_config)).params
        command.params += [option for option in options if option.name == "kafka_config"]


def _use_kafka_config(value: Path | None) -> None:
    if value is not None:
        use(value)


KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        envvar=VARIABLE,
        help="How to log in to Kafka: a client.properties.",
        callback=_use_kafka_config,
        expose_value=False,
    ),
]


def _with_kafka_config(kafka_config: KafkaConfig = None) -> None:
    """Carries the option; a command gets it from here."""


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
        said = refused_by_files(error) if isinstance(error, OSError) else error
        code = getattr(said, "code", None)
        if not isinstance(code, str):
            raise
        typer.echo(f"{code}: {said}", err=True)
        if "ringlog.cli.connection" in sys.modules:  # a command that asks no broker does not load it
            import_module("ringlog.cli.connection").say_broker(code)
        if code == "submission_timed_out":
            typer.echo("from the command line: ringlog withdraw REQUEST_ID EPOCH, with the two above", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
