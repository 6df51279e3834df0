"""``ringlog operation``: what is moving, who it waits for, and calling it off."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.table import Table

from ringlog.cli import views
from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, out, resolve
from ringlog.cli.submitting import submit_json

app = typer.Typer(help="Range movements: list, watch, cancel.", no_args_is_help=True)
OperationId = Annotated[str, typer.Argument(help="Id of the operation, e.g. join-12.")]


@app.command("list")
def list_operations(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print every change until nothing is in flight.")] = False,
    as_json: Json = False,
) -> None:
    """Operations in flight, with whom they wait for, and the last ended ones."""
    with connect(resolve(bootstrap, cluster)) as client:
        shown = None
        while True:
            found = views.operations(client.read_barrier())
            stages = [(view["id"], view["stage"]) for view in found]
            if stages != shown:
                _print(found, as_json)
                shown = stages
            if not watch or all(view["stage"] in ("finished", "cancelled") for view in found):
                return
            epoch = client.replica.state.epoch
            client.replica.wait_for(lambda state, seen=epoch: state.epoch > seen or None, 3_600, "a new epoch")


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
