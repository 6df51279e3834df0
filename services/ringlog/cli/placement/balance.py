"""``ringlog balance``: loads, next moves and their reasons, history as a chart, pause and resume."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.cli.shared.options import newest, show_view, view_command
from ringlog.cli.shared.submitting import Reason, change_command
from ringlog.cli.shared.tables import show_table
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.model.modes import BALANCING, SPLITS
from ringlog.operator.balancing import BalancerSnapshot, read_load_reports, view_balancer
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_lines import BAD_DUMP, read_dump
from ringlog.operator.history.log_past import Past, past_of, states
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.rehearsal.balance_chart import SECONDS, draw_chart
from ringlog.operator.rehearsal.balance_history import BalanceHistory, history_of
from ringlog.operator.views import tablets as views
from ringlog.operator.views.words import format_pause, printable
from ringlog.runtime.context import ClusterContext


def draw(path: Path, history: BalanceHistory, unit: str = SECONDS) -> None:
    """Write a history as a chart. Fails if no table had tablets, or if the file cannot be written."""
    if not history.moments:
        fail("no_tablets", "no table had tablets, so the chart would be empty", 2)
    try:
        path.write_text(draw_chart(history, unit), encoding="utf-8")
    except OSError as error:
        fail("bad_file", f"{path}: {error.strerror}", 2)


app = typer.Typer()
Of = Annotated[str, typer.Argument(metavar="KEYSPACE[.TABLE]", help="Keyspace or table. Default: all.")]
SCOPES = (BALANCING, SPLITS)
"""The work of the balancer that its pause stops."""


@app.callback(invoke_without_command=True)
def balance(
    ctx: typer.Context,
    why: Annotated[bool, typer.Option("--why", help=help_texts.WHY)] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Show, chart, pause and resume the tablet balancer."""
    if ctx.invoked_subcommand is None:
        if not why:
            typer.echo(ctx.get_help())
            raise typer.Exit(2)
        show_view(partial(_plan, why=True), bootstrap, cluster, as_json)


@app.command("status")
@view_command
def status(context: ClusterContext) -> Iterator[Any]:
    """Show loads, moves and pauses of the balancer.

    Includes ignored reports, and the reason if nothing moves.
    """
    seen = _seen(context)
    view = views.status_view(seen.state, seen.advice, seen.reports, seen.acks)
    yield view
    rows = []
    for row in view["nodes"]:
        shards = " ".join(str(count) for count in row["shards"])
        sizes = ["-" if row[name] is None else f"{row[name]:,}" for name in ("bytes", "capacity")]
        rows.append((row["node"], row["state"], str(row["tablets"]), shards, *sizes))
    show_table(("node", "state", "tablets", "of each shard", "bytes", "capacity"), rows, "no nodes")
    out.print(f"{len(view['moving'])} tablets are migrating")
    for line in views.troubles(view["troubles"]):
        out.print(printable(line), markup=False)
    for line in views.resizing(view["resizing"]):
        out.print(printable(line), markup=False)
    for pause in view["pauses"]:
        out.print(printable(format_pause(pause)))
    for one in view["ignored"]:
        out.print(printable(views.ignored_text(one)))
    _print_stop(view)


@app.command("plan")
@view_command
def plan(
    context: ClusterContext,
    why: Annotated[bool, typer.Option("--why", help=help_texts.WHY)] = False,
) -> Iterator[Any]:
    """Show the next moves of the balancer, without moving."""
    return _plan(context, why)


@app.command("pause")
@change_command
def pause(of: Of = "", reason: Reason = "") -> Intent:
    """Pause the balancer.

    It starts no moves, splits or merges, including drains. Running changes continue to their end.
    """
    return named(PauseChanges(SCOPES, of, reason))


@app.command("resume")
@change_command
def resume(of: Of = "") -> Intent:
    """Resume the balancer."""
    return named(ResumeChanges(SCOPES, of))


@app.command("picture", hidden=True)
@app.command("chart")
def chart(
    file: Annotated[Path, typer.Argument(metavar="FILE.svg", help="SVG file to write.")],
    dump: Annotated[
        Path | None,
        typer.Option("--from", help="File of `ringlog log --dump` to read instead of the cluster."),
    ] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """Draw a chart of the tablets over time.

    Shows the tablets of nodes and shards, and the number of moving tablets. A dump of the log has no sizes.
    """
    try:
        if dump is not None:
            draw(file, history_of(states(Past(read_dump(dump))), ()))
            return
        context = resolve(bootstrap, cluster)
        with past_of(context) as past:
            draw(file, history_of(states(past), read_load_reports(context.bootstrap, context.cluster)))
    except Refused as refused:
        fail(refused.code, str(refused), 2 if refused.code == BAD_DUMP else 1)


def _seen(context: ClusterContext) -> BalancerSnapshot:
    return view_balancer(context.bootstrap, context.cluster, newest(context))


def _plan(context: ClusterContext, why: bool) -> Iterator[Any]:
    seen = _seen(context)
    view = views.why_view(seen.state, seen.advice) if why else views.plan_view(seen.state, seen.advice)
    yield view
    rows = []
    for row in view["migrations"]:
        places = ["" if place is None else f"{place[0]}/{place[1]}" for place in (row["from"], row["to"])]
        rows.append((f"{row['table']}/{row['tablet']}", *places, row["kind"], row["why"]))
    if rows:
        show_table(("tablet", "from", "to", "kind", "why"), rows)
    _print_stop(view)
    for stop in view.get("stops", ()):
        _print_reason(stop["what"], stop["code"], stop["why"], stop["detail"])
    for row in view.get("obstacles", ()):
        _print_reason(f"{row['table']}/{row['tablet']} on {row['node']}", row["code"], row["detail"], "")
    for row in view.get("refused", ()):
        _print_reason(f"{row['table']}/{row['tablet']}", row["code"], row["detail"], "")
    for row in view.get("resizes", ()):
        reason = views.demand_text(row)
        out.print(f"{row['table']}: {row['decision']}" + (f"; {reason}" if reason else ""), markup=False)


def _print_reason(subject: str, code: str, why: str, detail: str) -> None:
    out.print(printable(f"{subject}: {why} ({code})" + (f"; {detail}" if detail else "")), markup=False)


def _print_stop(view: dict[str, Any]) -> None:
    if not view["migrations"]:
        out.print(views.stop_text(view["stop"]))
