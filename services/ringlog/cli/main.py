"""The ``ringlog`` command: sub-commands by room, each with ``--json`` where it prints facts.

Exit status: 0 done; 1 refused or failed (the error's stable code comes first on standard error); 2 wrong usage or
an invalid input line; 3 something must be installed first; 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from ringlog import __version__
from ringlog.cli import agents, cluster, data, log, node, operations, rehearse, schema, scripts
from ringlog.cli.connection import errors
from ringlog.log.errors import LogError
from ringlog.stack.cli import app as stack_app

app = typer.Typer(
    help="Cluster metadata as one totally ordered log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(stack_app, name="stack")
app.add_typer(cluster.app, name="cluster")
app.add_typer(node.app, name="node")
app.add_typer(operations.app, name="operation")
app.add_typer(schema.keyspace_app, name="keyspace")
app.add_typer(schema.table_app, name="table")
app.add_typer(data.app, name="cdc")
app.add_typer(agents.app, name="agents")
app.command("agent")(agents.one)
app.command("status")(cluster.status)
app.command("submit")(cluster.submit)
app.command("log")(log.show)
app.command("audit")(data.audit_command)
app.command("demo")(data.demo)
app.command("rehearse")(rehearse.rehearse)
app.command("token")(scripts.token)
app.command("stream-id")(scripts.stream_id)
app.command("shard")(scripts.shard)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringlog {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Cluster metadata as one totally ordered log."""


def main() -> None:
    """Entry point: errors that are expected come out as one line with their code, never as a trace."""
    try:
        app()
    except LogError as error:
        errors.print(f"[red]{error.code}[/red]:", end=" ")
        errors.print(str(error), markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
