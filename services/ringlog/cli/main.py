"""The ``ringlog`` command: sub-commands by room, each with ``--json`` where it prints facts.

A sub-command's module is imported only when it is asked for, so that small commands answer at once; so is what draws.

Exit status: 0 done; 1 refused or failed (the error's stable code comes first on standard error); 2 wrong usage or an
invalid input line; 3 something must be installed first; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from ringlog import __version__
from ringlog.private import refused_by_files
from ringlog.runtime.collector import end_undisturbed, load_undisturbed
from ringlog.runtime.kafka_config import VARIABLE, use
from ringlog.runtime.trust import TRUST_VARIABLE, trust_by


class Word(NamedTuple):
    """A sub-command: where it is, and what the help of ``ringlog`` says of it, so that it need not be loaded for that.

    ``help`` repeats the beginning of the sub-command's own help (``tests/cli/test_imports.py`` compares them).
    """

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Word] = {
    "demo": Word(
        "ringlog.cli.demo",
        "demo",
        "The whole system once, on real components and real data, with a node joining in the middle; then the audit.",
    ),
    "stack": Word("ringlog.cli.stack", "app", "A real Kafka broker and Redis on this machine."),
    "cluster": Word("ringlog.cli.cluster", "app", "Found a cluster, choose one, and look at it."),
    "status": Word(
        "ringlog.cli.status",
        "status",
        "The cluster at a glance: epoch, nodes, operations, generations, and whether each agent is caught up.",
    ),
    "agents": Word("ringlog.cli.agents", "app", "The agents: all of them in the foreground, one process each."),
    "agent": Word(
        "ringlog.cli.agents",
        "one",
        "Run one agent until stopped. A second one of a role stands by and takes over when the first is gone.",
    ),
    "node": Word("ringlog.cli.node", "app", "Nodes: run one, list, join, leave, move, replace, remove."),
    "operation": Word("ringlog.cli.operation", "app", "Range movements: list, watch, show, cancel, retry."),
    "keyspace": Word("ringlog.cli.keyspace", "app", "Keyspaces: create, alter, drop, list, placements."),
    "table": Word("ringlog.cli.table", "app", "Tables: create, drop, list."),
    "ddl": Word(
        "ringlog.cli.ddl",
        "ddl",
        "Change the schema by CREATE, ALTER and DROP of keyspaces, tables and types in CQL: all statements or none.",
    ),
    "schema": Word("ringlog.cli.schema", "app", "The schema: describe."),
    "tablet": Word("ringlog.cli.tablet", "app", "Tablets: list, show, move, split, merge, repair, explain."),
    "zone": Word(
        "ringlog.cli.zone", "app", "Distribution zones: create, alter, drop, list, show, plan, restart, reset, cancel."
    ),
    "balance": Word("ringlog.cli.balance", "app", "The balancer of tablets: status, plan, picture, pause, resume."),
    "data": Word("ringlog.cli.data", "app", "Registers and rows on the reference nodes: read and write them."),
    "cdc": Word("ringlog.cli.cdc", "app", "Change data capture: generations, writers, the Spark job."),
    "audit": Word(
        "ringlog.cli.audit",
        "audit",
        "Prove the CDC log right against the mutations, sharing no routing code with the job.",
    ),
    "submit": Word(
        "ringlog.cli.submit",
        "submit",
        "Submit one command through the validator and print what became of it, as JSON.",
    ),
    "withdraw": Word(
        "ringlog.cli.submit",
        "withdraw",
        "End a request whose fate is open: after this it is applied, or never will be. Prints which, as JSON.",
    ),
    "pause": Word(
        "ringlog.cli.pause",
        "pause",
        "Hold up changes of these scopes; what runs goes on to its end. `ringlog status` shows what is paused.",
    ),
    "resume": Word(
        "ringlog.cli.pause", "resume", "Let changes of these scopes go on, as they were paused. Other pauses stay."
    ),
    "log": Word("ringlog.cli.log", "app", "Show the log: epoch, time, who, what, and for records without effect why."),
    "snapshot": Word("ringlog.cli.snapshot", "app", "Snapshots of the metadata: take, list."),
    "service": Word("ringlog.cli.service", "app", "The metadata service: show, add, remove, size."),
    "recover": Word(
        "ringlog.cli.recover", "recover", "Rebuild a log that was lost from a copy of it: a member's or the archive."
    ),
    "sim": Word("ringlog.cli.sim", "app", "Simulate whole clusters, search for faults, check quorums and histories."),
    "rehearse": Word(
        "ringlog.cli.rehearse",
        "rehearse",
        "Run a plan's commands offline, one JSON answer a line. Exit status 2 if a line was invalid.",
    ),
    "token": Word(
        "ringlog.cli.scripts",
        "token",
        "Token of each partition key given in hex, one a line on standard input (an empty line is the empty key).",
    ),
    "stream-id": Word(
        "ringlog.cli.scripts",
        "stream_id",
        "Fields of each CDC stream id given in hex, one a line on standard input, as JSON.",
    ),
    "shard": Word(
        "ringlog.cli.scripts", "shard", "Shard of each ``TOKEN SHARDS IGNORE_MSB``, one a line on standard input."
    ),
}
"""By name, in the order of the help."""


class RoomGroup(TyperGroup):
    """Loads a sub-command when it is named, and none to list them all."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """What ``COMMANDS`` says of each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, word.help) for name, word in COMMANDS.items()])

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The sub-command of that name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        word = COMMANDS[cmd_name]
        found = getattr(import_module(word.module), word.attribute)
        command = typer.main.get_command(found if isinstance(found, typer.Typer) else _single(found))
        if isinstance(found, typer.Typer):
            command.help = word.help
        command.name = cmd_name
        _add_configs(command)
        return command


def _add_configs(command: Any) -> None:
    """The files of log-in and trust, for every command, below this one, that takes its broker as an option."""
    for inner in getattr(command, "commands", {}).values():
        _add_configs(inner)
    names = {parameter.name for parameter in command.params}
    if "bootstrap" in names:
        options = typer.main.get_command(_single(_with_configs)).params
        wanted = {"kafka_config", "trust_config"} - names
        command.params += [option for option in options if option.name in wanted]


def _used(how: Callable[[Path], None]) -> Callable[[Path | None], None]:
    def use_it(value: Path | None) -> None:
        if value is not None:
            how(value)

    return use_it


KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        envvar=VARIABLE,
        help="How to log in to Kafka: a client.properties.",
        callback=_used(use),
        expose_value=False,
    ),
]


TrustConfig = Annotated[
    Path | None,
    typer.Option(
        "--trust-config",
        envvar=TRUST_VARIABLE,
        help="Certificates and token for nodes on several machines: a trust.properties.",
        callback=_used(trust_by),
        expose_value=False,
    ),
]


def _with_configs(kafka_config: KafkaConfig = None, trust_config: TrustConfig = None) -> None:
    """Carries the options; a command gets them from here."""


def _single(function: Callable[..., Any]) -> typer.Typer:
    """An app that is one command."""
    one = typer.Typer(add_completion=False)
    one.command()(function)
    return one


app = typer.Typer(cls=RoomGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
"""Plain text where nothing but help and errors is shown: to draw boxes, nine tenths of the time went into loading."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringlog {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _shown: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Cluster metadata as one totally ordered log."""


def _streams() -> None:
    """Have all three: where one was closed, the next file, a journal say, would get its number, and what is printed.

    So do the processes that this one starts.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is that
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def main() -> None:
    """Entry point: errors that are expected come out as one line with their code, never as a trace."""
    load_undisturbed()
    try:
        _main()
    finally:
        end_undisturbed()


def _main() -> None:
    _streams()
    if isinstance(sys.stdout, TextIOWrapper):  # what the terminal's alphabet lacks is shown by its number
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        "".join(sys.argv).encode()
    except UnicodeEncodeError as error:  # bytes that are no text come as halves of signs, and crash Kafka's client
        wrong = next(word for word in sys.argv if error.object[error.start] in word)
        typer.echo(f"bad_text: {wrong[:40]!a} is no text: give it in UTF-8", err=True)
        sys.exit(2)
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
