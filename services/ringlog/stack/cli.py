"""``ringlog stack``: the commands of the stack in the terminal. Each can print its result as one JSON value."""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ringlog.stack.artifacts import cache_root
from ringlog.stack.bootstrap import REDIS, SetupFailedError, ensure_java, install_from_distribution
from ringlog.stack.commands import UP_S_MAX, Stack, record
from ringlog.stack.errors import StackError
from ringlog.stack.layout import ChildStatus, StackInfo, StackStatus
from ringlog.stack.maven import fetch_all
from ringlog.stack.redis_server import find_redis

app = typer.Typer(help="A real Kafka broker and Redis on this machine.", no_args_is_help=True)
_out = Console(highlight=False, soft_wrap=True, emoji=False)
_errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
_FOLLOW_S = 0.25
OPEN_BROKER = "the broker has no login: each user of this machine can read and change all of its topics"
GIVE_LOG_IN = "to give it a login, run: ringlog stack down, then: ringlog stack up"
LINES_MAX = 1_000_000
TIMEOUT_S_MAX = 86_400

Data = Annotated[Path | None, typer.Option("--data", envvar="RINGLOG_STACK_DATA", help="Data folder of the stack.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(error: StackError, status: int = 1) -> NoReturn:
    """Print the error and exit."""
    if "--json" in sys.argv:
        # The same form as the errors of all other commands.
        _print_json({"code": error.code, "detail": str(error), "ways_out": []})
        raise typer.Exit(status)
    _errors.print(f"[red]{error.code}[/red]:", end=" ")
    _errors.print(str(error), markup=False)
    raise typer.Exit(status)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value))


@app.command()
def setup(as_json: Json = False) -> None:
    """Install Java, Redis and the broker's jars for the stack.

    Downloads about 45 MB of jars and checks their hashes, with the extra spark also the jars of the CDC job. As root
    with apt, installs missing system packages. Otherwise prints how to install them, and exits with status 3.
    """
    try:
        found = ensure_java(), _ensure_redis()
        fetch_all(lambda text: None if as_json else typer.echo(text))
    except SetupFailedError as error:
        fail(StackError("setup_failed", str(error)), error.exit_status)
    except StackError as error:
        fail(error)
    if as_json:
        _print_json({"java": found[0], "redis": found[1], "jars": str(cache_root() / "jars")})
    else:
        typer.echo(f"{', '.join(found)}, jars in {cache_root() / 'jars'}")


def _ensure_redis() -> str:
    with suppress(StackError):
        return f"Redis ({find_redis()})"
    install_from_distribution(REDIS)
    return f"Redis ({find_redis()})"


@app.command()
def up(
    data: Data = None,
    profile: Annotated[
        str | None,
        typer.Option("--broker-profile", "--profile", help="Settings of the broker. quick: session time-outs of 2 s."),
    ] = None,
    timeout: Annotated[int, typer.Option(min=1, max=TIMEOUT_S_MAX, help="Seconds until the start fails.")] = UP_S_MAX,
    as_json: Json = False,
) -> None:
    """Start the broker and Redis, and wait until they answer.

    Running parts keep running. If a part fails to start, the command stops the parts that it started.
    """
    started = time.monotonic()
    try:
        with nullcontext() if as_json else _errors.status("starting the broker and Redis"):
            info = Stack(data).up(profile, timeout_s=timeout)
    except StackError as error:
        fail(error)
    # The record only helps other commands to find the stack. A failure must not stop ``up``.
    with suppress(OSError):
        record(Path(info.data_dir))
    if as_json:
        _print_json(dataclasses.asdict(info))
        return
    _show_info(info, time.monotonic() - started)


def _show_info(info: StackInfo, seconds: float) -> None:
    _out.print(f"[green]up[/green] in {seconds:.1f} s")
    log_in = ("login", info.kafka_config, "--command-config of Kafka's tools")
    rows = (
        ("kafka", info.bootstrap_servers, f"process {info.broker_pid}"),
        *([log_in] if info.kafka_config else []),
        ("redis", info.redis_url, f"process {info.redis_pid}"),
        ("data", info.data_dir, f"supervisor {info.supervisor_pid}"),
    )
    width = max(len(place) for _, place, _ in rows)
    # A table could truncate an address that the user wants to copy.
    for name, place, process in rows:
        _out.print(f"{name:<5}  {place:<{width}}  {process}", markup=False)
    if not info.kafka_config:
        _errors.print(f"note: {OPEN_BROKER}; {GIVE_LOG_IN}", markup=False)


@app.command()
def status(data: Data = None, as_json: Json = False) -> None:
    """Show the parts of the stack that run.

    The exit status is 0 if all of them run, and 1 otherwise.
    """
    try:
        found = Stack(data).status()
    except StackError as error:
        fail(error)
    if as_json:
        _print_json(dataclasses.asdict(found))
    else:
        _show_status(found)
    raise typer.Exit(0 if found.running else 1)


def _show_status(found: StackStatus) -> None:
    if found.broker is None or found.redis is None:
        _out.print(f"{found.data_dir} contains no stack. Run: ringlog stack up", markup=False)
        return
    table = Table("part", "state", Column("address", overflow="fold"), "process")
    supervisor = f"{found.supervisor_pid}" if found.supervisor_pid else "-"
    table.add_row("supervisor", "[green]running[/green]" if found.supervisor_pid else "[red]down[/red]", "", supervisor)
    for child in (found.broker, found.redis):
        table.add_row(child.name, _state_of(child), Text(child.address), str(child.pid or "-"))
    _out.print(table)
    _out.print(f"data: {found.data_dir} ({found.bytes_on_disk / 1e6:.1f} MB), profile {found.profile}", markup=False)


def _state_of(child: ChildStatus) -> str:
    if child.running:
        return "[green]running[/green]" if child.answers else "[yellow]starting[/yellow]"
    return "[red]down[/red]" if child.exit_code is None else f"[red]down[/red] (exit {child.exit_code})"


@app.command()
def logs(
    name: Annotated[str, typer.Argument(metavar="PART", help="broker, redis or supervisor.")] = "broker",
    data: Data = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=LINES_MAX, help="Number of lines.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show the last lines of a log."""
    try:
        path = Stack(data).logs(name)
    except StackError as error:
        fail(error)
    with path.open(encoding="utf-8", errors="replace") as stream:
        last = list(collections.deque(stream, maxlen=lines))
        if as_json:
            _print_json({"path": str(path), "lines": [line.rstrip("\n") for line in last]})
            return
        typer.echo("".join(last), nl=False)
        while follow:
            added = stream.read()
            if added:
                typer.echo(added, nl=False)
            else:
                time.sleep(_FOLLOW_S)


@app.command()
def down(data: Data = None, as_json: Json = False) -> None:
    """Stop everything; the data stay."""
    try:
        stopped = Stack(data).down()
    except StackError as error:
        fail(error)
    if as_json:
        _print_json({"stopped": stopped})
    else:
        typer.echo("stopped" if stopped else "nothing ran")
