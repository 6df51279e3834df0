"""The ``ringlog`` command: sub-commands by room, each with ``--json`` where it prints facts.

A sub-command's module is imported only when it is asked for, so that small commands answer at once; so is what draws.

Exit status: 0 done; 1 refused or failed (the error's stable code comes first on standard error; with ``--json`` the
error is JSON on standard output); 2 wrong usage or an invalid input line; 3 something must be installed first; 130
interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from ringlog import __version__
from ringlog.files import refused_by_files
from ringlog.runtime.json_errors import print_exception, print_usage, wants_json
from ringlog.runtime.kafka.config import VARIABLE, use
from ringlog.runtime.process import end_undisturbed, load_undisturbed
from ringlog.runtime.trust import TRUST_VARIABLE, trust_by


class Subcommand(NamedTuple):
    """A sub-command: where it is, and what the help of ``ringlog`` says of it, so that it need not be loaded for that.

    ``help`` repeats the beginning of the sub-command's own help (``tests/cli/test_imports.py`` compares them).
    """

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Subcommand] = {
    "demo": Subcommand(
        "ringlog_demo.cli",
        "demo",
        "The whole system once, on real components and real data, with a node joining in the middle; then the audit.",
    ),
    "stack": Subcommand("ringlog.cli.stack", "app", "A real Kafka broker and Redis on this machine."),
    "cluster": Subcommand("ringlog.cli.cluster.app", "app", "Found a cluster, choose one, and look at it."),
    "status": Subcommand(
        "ringlog.cli.status",
        "status",
        "The cluster at a glance: OK or WARN with the reasons, then nodes, operations, stuck partitions and agents.",
    ),
    "agents": Subcommand("ringlog.cli.agents", "app", "The agents: all of them in the foreground, one process each."),
    "agent": Subcommand(
        "ringlog.cli.agents",
        "one",
        "Run one agent until stopped. A second one of a role stands by and takes over when the first is gone.",
    ),
    "node": Subcommand("ringlog.cli.node.app", "app", "Nodes: run one, list, join, leave, move, replace, remove."),
    "operation": Subcommand("ringlog.cli.node.operation", "app", "Range movements: list, watch, show, cancel, retry."),
    "keyspace": Subcommand("ringlog.cli.schema.keyspace", "app", "Keyspaces: create, alter, drop, list, placements."),
    "table": Subcommand("ringlog.cli.schema.table", "app", "Tables: create, drop, list."),
    "ddl": Subcommand(
        "ringlog.cli.schema.ddl",
        "ddl",
        "Change the schema by CREATE, ALTER and DROP of keyspaces, tables and types in CQL: all statements or none.",
    ),
    "schema": Subcommand("ringlog.cli.schema.ddl", "app", "The schema: describe."),
    "tablet": Subcommand(
        "ringlog.cli.placement.tablet", "app", "Tablets: list, show, move, split, merge, repair, explain."
    ),
    "zone": Subcommand(
        "ringlog.cli.placement.zone",
        "app",
        "Distribution zones: create, alter, drop, list, show, plan, restart, reset, cancel.",
    ),
    "balance": Subcommand(
        "ringlog.cli.placement.balance", "app", "The balancer of tablets: status, plan, picture, pause, resume."
    ),
    "data": Subcommand(
        "ringlog.cli.data.app", "app", "Registers and rows on the reference nodes: read and write them."
    ),
    "cdc": Subcommand("ringlog.cli.cdc.app", "app", "Change data capture: generations, writers, the Spark job."),
    "audit": Subcommand(
        "ringlog_audit.cli",
        "audit",
        "Prove the CDC log right against the mutations, sharing no routing code with the job.",
    ),
    "submit": Subcommand(
        "ringlog.cli.json_commands",
        "submit",
        "Submit one command through the validator and print what became of it, as JSON.",
    ),
    "withdraw": Subcommand(
        "ringlog.cli.json_commands",
        "withdraw",
        "End a request whose fate is open: after this it is applied, or never will be. Prints which, as JSON.",
    ),
    "pause": Subcommand(
        "ringlog.cli.metadata.pause",
        "pause",
        "Hold up changes of these scopes; what runs goes on to its end. `ringlog status` shows what is paused.",
    ),
    "resume": Subcommand(
        "ringlog.cli.metadata.pause",
        "resume",
        "Let changes of these scopes go on, as they were paused. Other pauses stay.",
    ),
    "log": Subcommand(
        "ringlog.cli.metadata.log", "app", "Show the log: epoch, time, who, what, and for records without effect why."
    ),
    "snapshot": Subcommand("ringlog.cli.metadata.log", "snapshots", "Snapshots of the metadata: take, list."),
    "service": Subcommand("ringlog.cli.metadata.service", "app", "The metadata service: show, add, remove, size."),
    "recover": Subcommand(
        "ringlog.cli.metadata.recover",
        "recover",
        "Rebuild a log that was lost from a copy of it: a member's or the archive.",
    ),
    "sim": Subcommand(
        "ringlog_sim.cli.app", "app", "Simulate whole clusters, search for faults, check quorums and histories."
    ),
    "rehearse": Subcommand(
        "ringlog.cli.json_commands",
        "rehearse",
        "Run a plan's commands offline, one JSON answer a line. Exit status 2 if a line was invalid.",
    ),
    "token": Subcommand(
        "ringlog.cli.scripts",
        "token",
        "Token of each partition key given in hex, one a line on standard input (an empty line is the empty key).",
    ),
    "stream-id": Subcommand(
        "ringlog.cli.scripts",
        "stream_id",
        "Fields of each CDC stream id given in hex, one a line on standard input, as JSON.",
    ),
    "shard": Subcommand(
        "ringlog.cli.scripts", "shard", "Shard of each ``TOKEN SHARDS IGNORE_MSB``, one a line on standard input."
    ),
}
"""By name, in the order of the help."""


CONNECTION_OPTIONS = ("bootstrap", "cluster", "kafka_config", "trust_config")
"""Parameters of the options that may also precede the words of a command."""


def with_options_last(command: Any, words: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """Return the words with connection options moved behind the words that name a command.

    A command without such an option then refuses it, but a group that only shows its help does not get any. An option
    that follows the command's name overrides ``options``.
    """
    left, moved, at = list(words), list(options), 0
    while at < len(left) and (inner := getattr(command, "commands", None)):
        name, equals, _ = left[at].removeprefix("--").replace("-", "_").partition("=")
        if left[at] in inner:
            command, at = inner[left[at]], at + 1
        elif left[at].startswith("--") and name in CONNECTION_OPTIONS:
            after = at + (1 if equals else 2)
            moved, left = [*moved, *left[at:after]], [*left[:at], *left[after:]]
        else:
            break
    acts = not hasattr(command, "commands") or command.invoke_without_command
    return [*left[:at], *(moved if acts else ()), *left[at:]]


class CommandGroup(TyperGroup):
    """A group that answers an unknown command with the nearest command line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments."""
        wrong, *rest = args
        names = self.list_commands(ctx)
        near = [] if wrong in names or ctx.resilient_parsing else get_close_matches(wrong, names, 1)
        if near:
            more = rest[:1] if rest and re.fullmatch("[a-z]+(-[a-z]+)*", rest[0]) else []
            meant = " ".join([ctx.command_path, *near, *more])
            ctx.fail(f"No such command {wrong!r}. Did you mean `{meant}`?")
        return super().resolve_command(ctx, args)


class LazyGroup(CommandGroup):
    """Loads a sub-command when it is named, and none to list them all."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments, with the connection options that precede the command."""
        name, command, rest = super().resolve_command(ctx, args)
        given = [(one, ctx.params.get(one)) for one in CONNECTION_OPTIONS]
        options = [f"--{one.replace('_', '-')}={value}" for one, value in given if value is not None]
        return name, command, with_options_last(command, rest, options)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """What ``COMMANDS`` says of each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, subcommand.help) for name, subcommand in COMMANDS.items()])

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The sub-command of that name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        subcommand = COMMANDS[cmd_name]
        found = getattr(import_module(subcommand.module), subcommand.attribute)
        if isinstance(found, typer.Typer):
            found.info.cls = CommandGroup
        command = typer.main.get_command(found if isinstance(found, typer.Typer) else _single(found))
        if isinstance(found, typer.Typer):
            command.help = subcommand.help
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


def _log_in(value: Path | None) -> None:
    if value is not None:
        use(value)


def _trust(context: typer.Context, value: Path | None) -> None:
    if value is not None:
        source = context.get_parameter_source("trust_config")
        trust_by(value, TRUST_VARIABLE if source is not None and source.name == "ENVIRONMENT" else "--trust-config")


KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        envvar=VARIABLE,
        help="How to log in to Kafka: a client.properties.",
        callback=_log_in,
        expose_value=False,
    ),
]


TrustConfig = Annotated[
    Path | None,
    typer.Option(
        "--trust-config",
        envvar=TRUST_VARIABLE,
        help="Certificates and token for nodes on several machines: a trust.properties.",
        callback=_trust,
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


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
"""Plain text where nothing but help and errors is shown: to draw boxes, nine tenths of the time went into loading."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringlog {__version__}")
        raise typer.Exit


def _before(what: str) -> Any:
    return typer.Option(help=f"{what} Also accepted after the command.")


@app.callback()
def _root(
    bootstrap: Annotated[str | None, _before("Kafka brokers, host:port,…")] = None,
    cluster: Annotated[str | None, _before("Name of the cluster.")] = None,
    kafka_config: Annotated[str | None, _before("How to log in to Kafka: a client.properties.")] = None,
    trust_config: Annotated[str | None, _before("Certificates and token: a trust.properties.")] = None,
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


def _complete() -> None:
    """Complete a word for a shell: never print an error, never fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(Exception):
        if not import_module("ringlog.cli.completion").complete():
            app()
    sys.stdout.flush()
    os._exit(0)  # a question to a Redis that is away may still be open


def main() -> None:
    """Entry point: errors that are expected come out as one line with their code, never as a trace."""
    load_undisturbed()
    if os.environ.get("_RINGLOG_COMPLETE", "").startswith("complete_"):
        _complete()
    try:
        _main()
    finally:
        end_undisturbed()


def _run() -> None:
    """The command; a mistake in its words is printed as JSON where JSON was asked for."""
    if not wants_json():
        app()
        return
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        message = getattr(error, "format_message", None)  # of errors of usage alone, whose class typer does not export
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        print_usage(message(), "ringlog" if context is None else context.command_path)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _say(code: str, error: BaseException, *ways_out: str) -> None:
    if wants_json():
        print_exception(code, error, ways_out)
        return
    for text in (f"{code}: {error}", *ways_out):
        typer.echo(text, err=True)


def _main() -> None:
    _streams()
    if isinstance(sys.stdout, TextIOWrapper):  # what the terminal's alphabet lacks is shown by its number
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        "".join(sys.argv).encode()
    except UnicodeEncodeError as error:  # bytes that are no text come as halves of signs, and crash Kafka's client
        wrong = next(subcommand for subcommand in sys.argv if error.object[error.start] in subcommand)
        _say("bad_text", ValueError(f"{wrong[:40]!a} is no text: give it in UTF-8"))
        sys.exit(2)
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        expected: BaseException | None = refused_by_files(error) if isinstance(error, OSError) else error
        code = getattr(expected, "code", None)
        if expected is None or not isinstance(code, str):
            raise
        unanswered = code == "submission_timed_out"
        ways_out = import_module("ringlog.cli.agents").ways_out() if unanswered else ()
        connection = sys.modules.get("ringlog.cli.shared.connection")  # absent if the command asks no broker
        _say(code, expected if connection is None else connection.with_way_out(expected), *ways_out)
        if connection is not None:
            connection.print_broker(code)
        sys.exit(1)


if __name__ == "__main__":
    main()
