"""``ringlog operation``: what is moving, who it waits for, what can be done, and calling it off."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ringlog.agents.status import read_refused
from ringlog.cli import views
from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.following import PATIENCE_S, wait_lines
from ringlog.cli.replication import replication_words
from ringlog.cli.shown import printable, when
from ringlog.cli.submitting import submit_json
from ringlog.cli.waiting import refused_words
from ringlog.client.acks import AcksReader
from ringlog.kernel.state import ClusterState
from ringlog.log.errors import LogError
from ringlog.runtime.clock import SystemClock
from ringlog.wire.records import RefusedProposal

app = typer.Typer(help="Range movements: list, watch, show, cancel, retry.", no_args_is_help=True)
WATCH_S = 86_400.0
OperationId = Annotated[str, typer.Argument(help="Id of the operation, e.g. join-12.")]


@app.command("list")
def list_operations(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print every change until nothing is in flight.")] = False,
    as_json: Json = False,
) -> None:
    """Operations in flight, with whom they wait for, and the last ended ones."""
    context = resolve(bootstrap, cluster)
    with connect(context) as client, closing(AcksReader(context.bootstrap, context.cluster)) as acks:
        shown = None
        while True:
            said = acks.refresh()  # before the log: what is said of an epoch counts once the log has it
            state = client.read_barrier()
            found = views.operations(state, said, SystemClock().now_us())
            stages = [(view["id"], view["stage"]) for view in found]
            if stages != shown:
                _print(found, as_json)
                shown = stages
            if not watch or all(view["stage"] in ("finished", "cancelled") for view in found):
                return
            client.replica.wait_for(partial(_newer, state.epoch), WATCH_S, "a new epoch")


def _newer(seen: int, state: ClusterState) -> bool | None:
    return state.epoch > seen or None


def _print(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("operation", "of", "stage", "since", "waits for", box=None, padding=(0, 2))
    for view in found:
        since = view["stages"][-1]
        seconds = max(0.0, time.time() - since["at"] / 1e6)
        waits = view.get("waits_for", view["reason"])
        ago = f"epoch {since['epoch']}, {seconds:.0f} s ago"
        table.add_row(view["id"], subject(view), view["stage"], ago, Text(printable(waits)))
    out.print(table if found else "no operations")
    for view in found:
        lasts = time.time() - view["stages"][-1]["at"] / 1e6 >= PATIENCE_S
        for way in view.get("ways_out", ()) if lasts else ():
            out.print(f"{view['id']}: {printable(way)}", markup=False)


def subject(view: dict[str, Any]) -> str:
    """Whose operation it is."""
    if view.get("keyspace"):
        return f"keyspace {view['keyspace']}, to {replication_words(view['replication'])}"
    return str(view["node"]) + (f" for {view['replaced']}" if view.get("replaced") else "")


@app.command("show")
def show(operation: OperationId, bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """One operation: its stages so far, whom it waits for since when, what can be done, and what it has failed of."""
    context = resolve(bootstrap, cluster)
    with connect(context) as client, closing(AcksReader(context.bootstrap, context.cluster)) as acks:
        said = acks.refresh()
        state = client.read_barrier()
        found = state.operations.get(operation)
        view = None if found is None else views.operation(state, found, said, SystemClock().now_us())
    if view is not None:
        with suppress(LogError):  # agents that say nothing hide no operation
            told = read_refused(context.bootstrap, context.cluster)
            refused = [asdict(one) for one in told if one.subject == operation]
            view |= {"refused": refused} if refused else {}
    if view is None:
        fail("unknown_operation", f"{operation} is not known; ended ones are remembered for a while only")
    if as_json:
        typer.echo(json.dumps(view))
        return
    for line in described(view):
        out.print(printable(line), markup=False)


def described(view: dict[str, Any]) -> list[str]:
    """An operation in words, a line each."""
    lines = [f"{view['id']} of {subject(view)}: {view['stage']}"]
    lines += [f"  {when(mark['at'])}  epoch {mark['epoch']}  {mark['stage']}" for mark in view["stages"]]
    if view.get("ignored"):
        lines.append(f"goes on without {', '.join(view['ignored'])}")
    lines += [f"{one['node']} streamed {one['rows']} rows" for one in view["streamed"]]
    if view.get("relaxed"):
        lines.append(f"left without a quorum that knew it (setting gate_prepared): {', '.join(view['relaxed'])}")
    for one in view.get("failures", ()):
        who = f"{one['node']} " if one["node"] else ""
        often = f" after {one['tries']} tries" if one["tries"] else ""
        lines.append(f"{who}failed at epoch {one['epoch']}{often}: {one['reason']}")
    lines += [f"tried again from epoch {one['epoch']}: {one['reason']}" for one in view.get("retries", ())]
    if view["reason"]:
        lines.append(view["reason"])
    lines += [refused_words(RefusedProposal(**one)) for one in view.get("refused", ())]
    return [*lines, *(wait_lines(view) if "waits_for" in view else ())]


@app.command("cancel")
def cancel(
    operation: OperationId,
    reason: Annotated[str, typer.Option(help="Kept in the log.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Call an operation off; possible before write_both_read_new. Placements are then as if it had never begun."""
    command = {"command": "CancelOperation", "operation": operation, "reason": reason}
    submit_json(resolve(bootstrap, cluster), command, as_json)


@app.command("fail")
def fail_command(
    operation: OperationId,
    reason: Annotated[str, typer.Option(help="Kept in the log.")],
    node: Annotated[str, typer.Option(help="Name or id of the node whose error it is.")] = "",
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Report for a node an error that no retry can mend. Rolled back before write_both_read_new; later it stops."""
    command = {"command": "FailOperation", "operation": operation, "reason": reason, "node": node}
    submit_json(resolve(bootstrap, cluster), command, as_json)


@app.command("retry")
def retry(
    operation: OperationId,
    reason: Annotated[str, typer.Option(help="Kept in the log.")],
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="NODE",
            help="Do not wait any more for this node, which was declared down; from write_both_read_new on.",
        ),
    ] = None,
    admit_loss: Annotated[
        bool, typer.Option("--admit-loss", help="Also if too few others are left to be sure of every read.")
    ] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Have an operation tried again that waits for an operator's decision, or that waits for a node that is gone."""
    command = {"command": "RetryOperation", "operation": operation, "reason": reason}
    submit_json(
        resolve(bootstrap, cluster), command | {"ignore_nodes": ignore or [], "admits_loss": admit_loss}, as_json
    )
