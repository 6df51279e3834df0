"""``ringlog operation``: what is moving, who it waits for, and calling it off."""

from __future__ import annotations

import json
import time
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table

from ringlog.cli import views
from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, out, resolve
from ringlog.cli.submitting import submit_json
from ringlog.client.acks import AcksReader
from ringlog.kernel.state import ClusterState

app = typer.Typer(help="Range movements: list, watch, cancel.", no_args_is_help=True)
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
            state = client.read_barrier()
            found = views.operations(state, acks.refresh())
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
    table = Table("operation", "node", "stage", "since", "waits for", box=None, padding=(0, 2))
    for view in found:
        since = view["stages"][-1]
        waits = view.get("waits_for", "")
        seconds = max(0.0, time.time() - since["at"] / 1e6)
        table.add_row(view["id"], view["node"], view["stage"], f"epoch {since['epoch']}, {seconds:.0f} s ago", waits)
    out.print(table if found else "no operations")


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
