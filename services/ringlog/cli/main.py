"""The ``ringlog`` command: its subcommands, connection options and error output.

A subcommand's module is imported only when the subcommand is used, so that short commands answer quickly. Subcommands
that print facts have ``--json``.

Exit status 0 means done, 1 refused or failed, 2 wrong usage or an invalid input line, 3 a missing installation, 130
interrupted. On failure the error's stable code comes first on standard error. With ``--json`` the error is JSON on
standard output.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from ringlog import __version__
from ringlog.cli.help import METAVARS, prepare
from ringlog.errors import RinglogError
from ringlog.files import refused_by_files
from ringlog.runtime.json_errors import print_exception, print_usage, wants_json
from ringlog.runtime.kafka.config import VARIABLE, use
from ringlog.runtime.process import delay_gc, skip_gc_at_exit
from ringlog.runtime.trust import (
    ON_BEHALF_VARIABLE,
    REQUEST_KEY_VARIABLE,
    TRUST_VARIABLE,
    use_request_key,
    use_trust_file,
)


class Subcommand(NamedTuple):
    """A subcommand: the place of its code, and its line in the help of ``ringlog``.

    ``help`` repeats the beginning of the subcommand's own help, so that the overview does not load it
    (``tests/cli/test_imports.py`` compares them).
    """

    module: str
    attribute: str
    help: str


GROUPS: dict[str, dict[str, Subcommand]] = {
    "Start": {
        "demo": Subcommand("ringlog_demo.cli", "demo", "Run the whole system once on real data, then audit it."),
        "stack": Subcommand("ringlog.cli.stack", "app", "Run a Kafka broker and a Redis on this machine."),
    },
    "Cluster": {
        "cluster": Subcommand("ringlog.cli.cluster.app", "app", "Create, choose, inspect and delete clusters."),
        "context": Subcommand("ringlog.cli.cluster.contexts", "app", "Choose, list and show the cluster in use."),
        "status": Subcommand("ringlog.cli.status", "status", "Show the health of the cluster, its nodes and agents."),
        "health": Subcommand(
            "ringlog.cli.status", "health", "Show the health in one line, with an exit status for probes."
        ),
        "doctor": Subcommand("ringlog.cli.status", "doctor", "Examine the cluster, its brokers and this machine."),
        "console": Subcommand("ringlog.cli.console", "console", "Run a web console and an HTTP API of the cluster."),
        "agents": Subcommand("ringlog.cli.agents", "app", "Run the agents of a cluster, and show their status."),
        "agent": Subcommand("ringlog.cli.agents", "one", "Run one agent until it is stopped."),
        "principal": Subcommand(
            "ringlog.cli.cluster.principals", "app", "Create, list and revoke principals, and write their keys."
        ),
        "whoami": Subcommand(
            "ringlog.cli.cluster.principals", "whoami", "Show the principal that signs this user's requests."
        ),
        "plan": Subcommand("ringlog.cli.cluster.plans", "app", "Stage, review, approve and reject plans of commands."),
        "import": Subcommand(
            "ringlog.cli.cluster.importing", "import_plan", "Import nodes and schema of another database as a plan."
        ),
        "pause": Subcommand("ringlog.cli.metadata.pause", "pause", "Pause changes of these scopes."),
        "resume": Subcommand("ringlog.cli.metadata.pause", "resume", "Resume changes of these scopes."),
    },
    "Nodes": {
        "node": Subcommand("ringlog.cli.node.app", "app", "Run, list, join, move, replace and remove nodes."),
        "operation": Subcommand("ringlog.cli.node.operation", "app", "List, watch, show, cancel and retry operations."),
    },
    "Schema": {
        "keyspace": Subcommand("ringlog.cli.schema.keyspace", "app", "Create, alter, drop and list keyspaces."),
        "table": Subcommand("ringlog.cli.schema.table", "app", "Create, drop and list tables."),
        "ddl": Subcommand("ringlog.cli.schema.ddl", "ddl", "Change the schema with CQL statements."),
        "schema": Subcommand("ringlog.cli.schema.ddl", "app", "Describe the schema."),
    },
    "Placement": {
        "tablet": Subcommand(
            "ringlog.cli.placement.tablet", "app", "List, move, split, merge, repair and explain tablets."
        ),
        "zone": Subcommand("ringlog.cli.placement.zone", "app", "Manage distribution zones and their partitions."),
        "balance": Subcommand(
            "ringlog.cli.placement.balance", "app", "Show, chart, pause and resume the tablet balancer."
        ),
    },
    "Data and CDC": {
        "data": Subcommand("ringlog.cli.data.app", "app", "Read and write registers and rows on the nodes."),
        "cdc": Subcommand("ringlog.cli.cdc.app", "app", "Run and manage change data capture (CDC)."),
        "audit": Subcommand("ringlog_audit.cli", "audit", "Check the CDC log against the mutations."),
    },
    "Operations and log": {
        "log": Subcommand("ringlog.cli.metadata.log", "app", "Show the entries of the metadata log."),
        "snapshot": Subcommand("ringlog.cli.metadata.log", "snapshots", "Take and list snapshots of the metadata."),
        "service": Subcommand(
            "ringlog.cli.metadata.service", "app", "Show and change the members of the metadata service."
        ),
        "submit": Subcommand("ringlog.cli.json_commands", "submit", "Submit a command as JSON and print the result."),
        "withdraw": Subcommand(
            "ringlog.cli.json_commands", "withdraw", "End a request without an answer and print its outcome."
        ),
        "recovery": Subcommand("ringlog.cli.metadata.pause", "recovery", "Enter and leave the recovery mode."),
        "recover": Subcommand("ringlog.cli.metadata.recover", "recover", "Rebuild a lost log from a copy."),
    },
    "Tools": {
        "rehearse": Subcommand("ringlog.cli.json_commands", "rehearse", "Run the commands of a plan offline."),
        "load": Subcommand(
            "ringlog_testing.cli.load", "app", "Run a checked load on a live cluster, and check its history."
        ),
        "sim": Subcommand(
            "ringlog_testing.cli.app", "app", "Simulate clusters, and check quorums, placements, histories."
        ),
        "token": Subcommand("ringlog.cli.scripts", "token", "Print the token of each partition key."),
        "stream-id": Subcommand("ringlog.cli.scripts", "stream_id", "Print the fields of each CDC stream id."),
        "shard": Subcommand("ringlog.cli.scripts", "shard", "Print the shard of each token."),
    },
}
"""Subcommands by name, in the groups and in the order of the help."""
ALIASES = {"simulate": "sim"}
"""Other names of subcommands. The help omits them."""
COMMANDS = {name: subcommand for group in GROUPS.values() for name, subcommand in group.items()}


CONNECTION_OPTIONS = ("bootstrap", "cluster", "kafka_config", "trust_config", "request_key", "on_behalf")
"""Parameters that may also precede the subcommand."""


def with_options_last(command: Any, words: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """Return the words with connection options moved after the words that name a command.

    A command without such an option then refuses it. A group that only shows its help does not get any. An option after
    the command's name overrides ``options``.
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
    """A group that suggests the nearest command for an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments."""
        wrong, *rest = args
        names = self.list_commands(ctx)
        near = [] if self.get_command(ctx, wrong) or ctx.resilient_parsing else get_close_matches(wrong, names, 1)
        if near:
            more = rest[:1] if rest and re.fullmatch("[a-z]+(-[a-z]+)*", rest[0]) else []
            meant = " ".join([ctx.command_path, *near, *more])
            ctx.fail(f"No such command {wrong!r}. Did you mean `{meant}`?")
        return super().resolve_command(ctx, args)


@cache
def _subcommand(name: str) -> Any:
    """Import and build a subcommand: one command line names it several times."""
    subcommand = COMMANDS[name]
    found = getattr(import_module(subcommand.module), subcommand.attribute)
    if isinstance(found, typer.Typer):
        found.info.cls = CommandGroup
    command = typer.main.get_command(found if isinstance(found, typer.Typer) else _single(found))
    if isinstance(found, typer.Typer):
        command.help = subcommand.help
    command.name = name
    _add_configs(command)
    prepare(command)
    return command


class LazyGroup(CommandGroup):
    """A group that loads a subcommand when it is used, and none to list them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments, with the connection options that precede the command."""
        name, command, rest = super().resolve_command(ctx, args)
        given = [(one, ctx.params.get(one)) for one in CONNECTION_OPTIONS]
        options = [f"--{one.replace('_', '-')}={value}" for one, value in given if value is not None]
        return name, command, with_options_last(command, rest, options)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the overview from ``GROUPS``, with all texts in one column."""
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), subcommand.help) for name, subcommand in group.items()])

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return the subcommand of that name, or None."""
        name = ALIASES.get(cmd_name, cmd_name)
        return _subcommand(name) if name in COMMANDS else None


def _add_configs(command: Any) -> None:
    """Add ``--kafka-config``, ``--trust-config``, ``--request-key`` and ``--on-behalf`` to every command that has
    ``--bootstrap``.
    """
    for inner in getattr(command, "commands", {}).values():
        _add_configs(inner)
    names = {parameter.name for parameter in command.params}
    if "bootstrap" in names:
        options = typer.main.get_command(_single(_with_configs)).params
        wanted = {"kafka_config", "trust_config", "request_key", "on_behalf"} - names
        command.params += [option for option in options if option.name in wanted]


def _log_in(value: Path | None) -> None:
    if value is not None:
        use(value)


def _trust(context: typer.Context, value: Path | None) -> None:
    if value is not None:
        source = context.get_parameter_source("trust_config")
        use_trust_file(
            value, TRUST_VARIABLE if source is not None and source.name == "ENVIRONMENT" else "--trust-config"
        )


def _sign(value: Path | None) -> None:
    if value is not None:
        use_request_key(value)


def _act_for(value: str | None) -> None:
    if value is not None:
        os.environ[ON_BEHALF_VARIABLE] = value


KafkaConfig = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        envvar=VARIABLE,
        help="Kafka login: a client.properties file.",
        callback=_log_in,
        expose_value=False,
    ),
]


TrustConfig = Annotated[
    Path | None,
    typer.Option(
        "--trust-config",
        envvar=TRUST_VARIABLE,
        help="Certificates and token: a trust.properties file.",
        callback=_trust,
        expose_value=False,
    ),
]


RequestKey = Annotated[
    Path | None,
    typer.Option(
        "--request-key",
        envvar=REQUEST_KEY_VARIABLE,
        help="Key that signs requests: a file of `ringlog principal key`.",
        callback=_sign,
        expose_value=False,
    ),
]


OnBehalf = Annotated[
    str | None,
    typer.Option(
        "--on-behalf",
        envvar=ON_BEHALF_VARIABLE,
        help="Person that this command acts for, shown in the log.",
        callback=_act_for,
        expose_value=False,
    ),
]


def _with_configs(
    kafka_config: KafkaConfig = None,
    trust_config: TrustConfig = None,
    request_key: RequestKey = None,
    on_behalf: OnBehalf = None,
) -> None:
    """Declare the options that ``_add_configs`` copies to commands."""


def _single(function: Callable[..., Any]) -> typer.Typer:
    """Return an app with one command."""
    one = typer.Typer(add_completion=False)
    one.command()(function)
    return one


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
"""Rich markup is off, because loading it takes most of the time of a short command."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringlog {__version__}")
        raise typer.Exit


def _before(name: str, what: str) -> Any:
    return typer.Option(name, metavar=METAVARS[name], help=what)


@app.callback()
def _root(
    bootstrap: Annotated[str | None, _before("--bootstrap", "Kafka brokers.")] = None,
    cluster: Annotated[str | None, _before("--cluster", "Name of the cluster.")] = None,
    kafka_config: Annotated[str | None, _before("--kafka-config", "Kafka login: a client.properties file.")] = None,
    trust_config: Annotated[
        str | None, _before("--trust-config", "Certificates and token: a trust.properties file.")
    ] = None,
    request_key: Annotated[
        str | None, _before("--request-key", "Key that signs requests: a file of `ringlog principal key`.")
    ] = None,
    on_behalf: Annotated[
        str | None, _before("--on-behalf", "Person that this command acts for, shown in the log.")
    ] = None,
    _shown: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Manage cluster metadata as one totally ordered log.

    Connection options are accepted before and after the command.
    """


def _streams() -> None:
    """Open closed standard streams.

    Otherwise the next opened file, for example a journal, would get the number of a standard stream, and output would
    be written into it. Child processes inherit the streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # ``open`` returns the lowest free number.
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
    """Run the command. Expected errors are printed as one line with their code, without a traceback."""
    delay_gc()
    if os.environ.get("_RINGLOG_COMPLETE", "").startswith("complete_"):
        _complete()
    try:
        _main()
    finally:
        skip_gc_at_exit()


def _run() -> None:
    """Run the command; with ``--json``, print usage errors as JSON."""
    if not wants_json():
        app()
        return
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(1)
    except Exception as error:
        message = getattr(error, "format_message", None)  # Only usage errors; typer does not export their class.
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        print_usage(message(), "ringlog" if context is None else context.command_path)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


def _print_failure(code: str, error: BaseException, *ways_out: str) -> None:
    if wants_json():
        print_exception(code, error, ways_out)
        return
    for text in (f"{code}: {error}", *ways_out):
        typer.echo(text, err=True)


def _main() -> None:
    _streams()
    if isinstance(sys.stdout, TextIOWrapper):  # Characters that the terminal cannot show are printed as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        "".join(sys.argv).encode()
    except UnicodeEncodeError as error:  # Bytes that are not UTF-8 become surrogates, which crash Kafka's client.
        wrong = next(subcommand for subcommand in sys.argv if error.object[error.start] in subcommand)
        _print_failure("bad_text", ValueError(f"{wrong[:40]!a} is not text in UTF-8"))
        sys.exit(2)
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        expected: BaseException | None = error
        if isinstance(error, OSError) and not isinstance(error, RinglogError):  # Ringlog's time-outs are OSErrors, too
            expected = refused_by_files(error)
        code = getattr(expected, "code", None)
        if expected is None or not isinstance(code, str):
            raise
        unanswered = code == "submission_timed_out"
        ways_out = import_module("ringlog.cli.agents").ways_out() if unanswered else ()
        connection = sys.modules.get("ringlog.cli.shared.connection")  # Absent if the command uses no broker.
        _print_failure(code, expected if connection is None else connection.with_way_out(expected), *ways_out)
        if connection is not None:
            connection.print_broker(code)
        sys.exit(getattr(expected, "exit_status", 1))


if __name__ == "__main__":
    main()
