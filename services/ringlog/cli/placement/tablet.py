"""``ringlog tablet``: list, move, resize and repair tablets, and explain the balancer's decisions about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from ringlog.cli.placement.repair import repair as repair_in_rounds
from ringlog.cli.schema.table import FullName
from ringlog.cli.shared.connection import fail, out, resolve, seconds_of
from ringlog.cli.shared.following import Wait
from ringlog.cli.shared.options import ASKING, newest, view_command, with_options
from ringlog.cli.shared.submitting import change_command, submit
from ringlog.cli.shared.tables import show_table
from ringlog.kernel.balance.advice import would_be_undone
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT
from ringlog.operator.balancing import read_acks, read_load_reports, view_balancer
from ringlog.operator.intents.intents import Intent
from ringlog.operator.intents.tablets import explain_undone, move_tablet, next_step_text, resize_table
from ringlog.operator.views import tablets as views
from ringlog.operator.views.words import printable
from ringlog.protocol.balancer.load_book import measured, take
from ringlog.runtime.context import ClusterContext
from ringlog.wire.records import NodeAck

app = typer.Typer(no_args_is_help=True)
Number = Annotated[int, typer.Argument(metavar="TABLET", help="Number of the tablet, from 0 in token order.")]
RepairTimeout = Annotated[
    float | None, typer.Option(parser=seconds_of, help="Seconds until the command stops. Repairs in progress continue.")
]
Stop = Annotated[bool, typer.Option("--stop", help="Revoke the decision in progress.")]


@app.command("list")
@view_command
def list_tablets(
    context: ClusterContext,
    table: Annotated[
        str | None,
        typer.Argument(metavar="KEYSPACE.TABLE", help="Table whose tablets are listed. Default: a row for each table."),
    ] = None,
) -> Iterator[Any]:
    """List tables in tablets, or the tablets of one table.

    Shows replicas and moves, and the tablets that revert or whose streams fail.
    """
    state, acks = _seen(context)
    found: Any = views.tables_view(state)
    if table is not None:
        tablets = _map(state, table)
        found = views.tablets_view(state, tablets) | {
            "troubles": views.troubles_view(state, acks, tablets.table),
            "resizing": views.resizes_view(state, acks, tablets.table),
        }
    yield found
    if table is None:
        rows = (
            (row["table"], str(row["tablets"]), str(row["moving"]), row["resize"] or "", row["shares"] or "")
            for row in found
        )
        show_table(("table", "tablets", "moving", "resize", "same tablets as"), rows, "no tables in tablets")
        return
    rows = (
        (str(number), str(row["last_token"]), _places(row["replicas"]), _places(row["next"]), _stage(row))
        for number, row in enumerate(found["tablets"])
    )
    show_table(("tablet", "last token", "replicas", "next", "stage"), rows)
    _say(found["troubles"])
    for line in views.resizing(found["resizing"]):
        out.print(printable(line), markup=False)


@app.command("show")
@view_command
def show(context: ClusterContext, table: FullName, tablet: Number) -> Iterator[Any]:
    """Show one tablet.

    Includes its tokens, its replicas, its move, and the reason if the move reverts or fails.
    """
    state, acks = _seen(context)
    tablets = _map(state, table)
    _check(tablets, tablet)
    row: dict[str, Any] = {"table": table, "tablet": tablet, "start": tablets.ends[tablet - 1]}
    row |= views.tablets_view(state, tablets)["tablets"][tablet]
    row["troubles"] = [one for one in views.troubles_view(state, acks, tablets.table) if one["tablet"] == tablet]
    yield row
    out.print(f"{table}/{tablet}: tokens from {row['start']} (excluded) to {row['last_token']}", markup=False)
    out.print(f"on {_places(row['replicas'])}")
    if row["stage"] is not None:
        out.print(f"{_stage(row)}, then on {_places(row['next'])}")
    _say(row["troubles"])


@app.command("move")
@change_command
def move(
    table: FullName,
    tablet: Number,
    target: Annotated[str, typer.Option("--target", "--to", metavar="NODE/SHARD", help="Target shard.")],
    source: Annotated[
        str, typer.Option("--source", "--from", metavar="NODE/SHARD", help="Shard of the replica to move.")
    ],
) -> Intent:
    """Move a replica of a tablet to another shard.

    If the source node is dead, the replica is rebuilt from the others.
    """
    return move_tablet(table, tablet, _place(source), _place(target))


def _resizes(verb: Callable[..., tuple[str, str]]) -> Callable[..., None]:
    """Decorate a function that returns (table, decision): add the connection options and submit the decision."""
    return with_options(verb, ASKING, _resize)


def _resize(verb: Callable[[], tuple[str, str]], bootstrap: str | None, cluster: str | None, as_json: bool) -> None:
    """Submit a resize decision, unless the balancer would revert it, and print the next step."""
    table, decision = verb()
    context = resolve(bootstrap, cluster)
    state = newest(context)
    check_not_undone(context, state, table, decision)
    submit(context, resize_table(table, decision), as_json)
    if not as_json and table in state.tablets:
        out.print(next_step_text(state, table, decision), markup=False)


def check_not_undone(context: ClusterContext, state: ClusterState, table: str, decision: str) -> None:
    """Fail if the balancer would revert a decision to split or merge.

    The log contains no sizes, so it cannot check this.
    """
    if decision in (SPLIT, MERGE) and table in state.tablets:
        reports = take(Reports(), read_load_reports(context.bootstrap, context.cluster), state)
        if how := would_be_undone(state, measured(reports, state), table, decision):
            fail("decision_undone", explain_undone(state, table, decision, how))


@app.command("split")
@_resizes
def split(table: FullName, stop: Stop = False) -> tuple[str, str]:
    """Split each tablet of a table in two.

    The split waits until every replica is ready. It is refused if the balancer would revert it.
    """
    return table, NONE if stop else SPLIT


@app.command("merge")
@_resizes
def merge(table: FullName, stop: Stop = False) -> tuple[str, str]:
    """Merge the tablets of a table in pairs.

    The merge waits until sibling tablets share their shards. It is refused if the balancer would revert it.
    """
    return table, NONE if stop else MERGE


def _repairs(verb: Callable[..., tuple[str, tuple[int, ...]]]) -> Callable[..., None]:
    """Decorate a function that returns (table, numbers): add the options of a wait, and repair these tablets."""
    return with_options(verb, {"wait": (Wait, True), "timeout": (RepairTimeout, None), **ASKING}, repair_in_rounds)


@app.command("repair")
@_repairs
def repair(
    table: FullName,
    tablets: Annotated[list[int] | None, typer.Argument(metavar="TABLET", help="Numbers. Default: all.")] = None,
) -> tuple[str, tuple[int, ...]]:
    """Repair tablets.

    Their replicas compare and exchange their rows. The limits on streaming admit a few tablets at once, so the command
    repeats until all are repaired. With --no-wait it starts only those that fit now. Ctrl-C stops the command, and
    repairs in progress continue.
    """
    return table, tuple(tablets or ())


@app.command("explain")
@view_command
def explain(context: ClusterContext, table: FullName, tablet: Number) -> Iterator[Any]:
    """Explain why a tablet moves or stays.

    For a moving tablet, shows its wait and the commands that end the wait.
    """
    seen = view_balancer(context.bootstrap, context.cluster, newest(context))
    tablets = _map(seen.state, table)
    _check(tablets, tablet)
    view = views.explanation(seen.state, seen.advice, tablets, tablet, seen.acks, seen.last_reports)
    yield view
    for line in views.explained(view):
        out.print(printable(line), markup=False)


def _seen(context: ClusterContext) -> tuple[ClusterState, Mapping[str, NodeAck]]:
    """Return (newest state, acknowledgements), read so that the state contains every acknowledged epoch."""
    acks = read_acks(context.bootstrap, context.cluster)
    return newest(context), acks


def _say(rows: list[dict[str, Any]]) -> None:
    for line in views.troubles(rows):
        out.print(printable(line), markup=False)


def _map(state: ClusterState, table: str) -> TabletMap:
    found = views.map_named(state, table)
    if found is None:
        exists = table in state.tables
        fail(
            "no_tablets" if exists else "unknown_table",
            f"{table} has no tablets" if exists else f"the table {table} does not exist",
        )
    return found


def _check(tablets: TabletMap, number: int) -> None:
    if not 0 <= number < tablets.count:
        fail("unknown_tablet", f"{tablets.table} has tablets 0 to {tablets.count - 1}, not {number}")


def _place(given: str) -> tuple[str, int]:
    node, slash, shard = given.rpartition("/")
    if not slash or not node or not shard.isdecimal():
        fail("bad_field", f"{given}: expected NODE/SHARD", 2)
    return node, int(shard)


def _places(found: list[list[Any]] | None) -> str:
    return "" if found is None else ", ".join(f"{node}/{shard}" for node, shard in found)


def _stage(row: dict[str, Any]) -> str:
    return "" if row["stage"] is None else f"{row['stage']} of a {row['kind']}"
