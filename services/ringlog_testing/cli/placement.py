"""``ringlog sim placement``: random movements of a ring, compared with an independent model after each entry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import Json, errors, fail, out
from ringlog.cli.shared.tables import show_table

if TYPE_CHECKING:
    from ringlog_testing.placement.simulation import PlacementRun


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("placement")(placement)


def placement(
    factor: Annotated[int, typer.Option(min=1, max=16, help=help_texts.FACTOR)] = 3,
    nodes: Annotated[int, typer.Option(min=1, max=200, help="Number of nodes at first. Most: twice as many.")] = 6,
    racks: Annotated[int, typer.Option(min=1, max=200, help="Number of racks in each datacenter.")] = 3,
    datacenters: Annotated[int, typer.Option(min=1, max=8, help="Number of datacenters.")] = 1,
    tokens: Annotated[int, typer.Option("--num-tokens", "--tokens", min=1, max=64, help=help_texts.NUM_TOKENS)] = 4,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Most movements in flight.")] = 3,
    movements: Annotated[int, typer.Option(min=0, max=100_000, help="Number of random movements.")] = 50,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the movements and their order.")] = 0,
    as_json: Json = False,
) -> None:
    """Check the placements of random movements of a ring.

    Nodes join, leave, move, are replaced, removed and rebuilt, and keyspaces are altered, with random cancels. After
    each entry, ranges, replicas and token owners are compared with an independent model. Exit status 1: they differ.
    """
    from ringlog_testing.placement.simulation import BadOptions, PlacementOptions, PlacementRun

    options = PlacementOptions(factor, nodes, racks, datacenters, tokens, parallel, movements, seed)
    with errors.status("") as status:
        try:
            run = PlacementRun(options)
            run.run(lambda done: status.update(f"{done} of {movements} movements"))
        except BadOptions as error:
            fail(error.code, str(error), 2)
    if as_json:
        typer.echo(json.dumps(_shown(run)))
    else:
        _print(run)
    raise typer.Exit(0 if run.fault is None else 1)


def _shown(run: PlacementRun) -> dict[str, Any]:
    from ringlog_testing.placement.comparison import shares

    fault = run.fault
    return {
        "options": run.options._asdict(),
        "states": run.states,
        "movements": dict(sorted(run.counts.items())),
        "refusals": dict(sorted(run.refusals.items())),
        "balance": [
            {
                "placement": share.key,
                "nodes": share.nodes,
                "least_percent": round(100 * share.least, 2),
                "mean_percent": round(100 * share.mean, 2),
                "most_percent": round(100 * share.most, 2),
                "worst": round(run.worst.get(share.key, 1.0), 2),
            }
            for share in shares(run.state)
        ],
        "fault": None
        if fault is None
        else {"epoch": fault.epoch, "command": fault.command, "details": list(fault.details)},
    }


def _print(run: PlacementRun) -> None:
    shown = _shown(run)
    for name in ("movements", "refusals"):
        counts = ", ".join(f"{kind} {count}" for kind, count in shown[name].items())
        out.print(f"{name}: {counts or 'none'}", markup=False)
    rows = [[str(value) for value in row.values()] for row in shown["balance"]]
    show_table(("placement", "nodes", "least %", "mean %", "most %", "worst most/mean"), rows)
    if run.fault is None:
        out.print(Text.assemble(("no violation", "green"), f": {run.states:,} states equal the model"))
        return
    fault = run.fault
    out.print(
        Text.assemble(("violation", "red"), f" after {fault.command} at epoch {fault.epoch}, seed {run.options.seed}")
    )
    for detail in fault.details:
        out.print(f"  {detail}", markup=False)
