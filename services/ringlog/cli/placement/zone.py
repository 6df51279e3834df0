"""``ringlog zone``: manage distribution zones, and show the moves and waits of their partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ringlog.cli import help as help_texts
from ringlog.cli.shared.connection import fail, out
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import change_command, destructive_command
from ringlog.cli.shared.tables import show_table
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import Zone
from ringlog.operator.balancing import last_heard, read_acks
from ringlog.operator.intents.intents import Intent
from ringlog.operator.intents.json_commands import intent_of_json
from ringlog.operator.views import zones as views
from ringlog.operator.views.words import printable, silent_lines, when
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="ZONE", help="Name of the zone.")]
Partitions = Annotated[int | None, typer.Option(help="Number of partitions.")]
Replicas = Annotated[int | None, typer.Option(help="Replicas of each partition.")]
Quorum = Annotated[int | None, typer.Option(help="Voters that must be alive. 2 x QUORUM - 1 replicas vote.")]
Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="JSONPATH", help="Filter for data nodes. Example: '$[?(@.rack == \"r1\")]'."),
]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--storage-profile", "--profile", help="Storage profile that data nodes must support."),
]
ScaleUp = Annotated[int | None, typer.Option(metavar="SECONDS", help="Seconds until new nodes become data nodes.")]
ScaleDown = Annotated[int | None, typer.Option(metavar="SECONDS", help="Seconds until missing nodes stop being used.")]
Mode = Annotated[str | None, typer.Option(help="strong or high_availability.")]


def _given(command: str, zone: str, **values: Any) -> Intent:
    """Return the intent of a command with the values that are not None."""
    return intent_of_json(
        {"command": command, "zone": zone} | {name: one for name, one in values.items() if one is not None}
    )


def _with_values(name: str, command: str, about: str) -> None:
    """Register a command that takes the zone's values, for ``create`` and ``alter``."""

    @app.command(name, help=about)
    @change_command
    def ask(
        zone: Name,
        partitions: Partitions = None,
        replicas: Replicas = None,
        quorum: Quorum = None,
        filter_: Filter = None,
        profiles: Profiles = None,
        scale_up: ScaleUp = None,
        scale_down: ScaleDown = None,
        mode: Mode = None,
    ) -> Intent:
        values: dict[str, Any] = {"partitions": partitions, "replicas": replicas, "quorum": quorum, "filter": filter_}
        values |= {"mode": mode, "profiles": profiles, "scale_up": scale_up, "scale_down": scale_down}
        return _given(command, zone, **values)


_with_values("create", "CreateZone", "Create a zone.\n\nIts data nodes are the nodes that the filter matches now.")
_with_values("alter", "AlterZone", "Change the values of a zone.\n\nA new filter is evaluated at once.")


@app.command("drop")
@destructive_command
def drop(zone: Name) -> Intent:
    """Drop a zone with all of its partitions."""
    return _given("DropZone", zone)


@app.command("list")
@view_command
def list_zones(context: ClusterContext) -> Iterator[Any]:
    """List all zones.

    Shows settings, data nodes and the number of moving partitions.
    """
    found = views.zones_view(newest(context))
    yield found
    columns = ("zone", "partitions", "replicas", "quorum", "mode", "moving", "data nodes")
    rows = ((row["zone"], *(str(row[name]) for name in columns[1:-1]), ", ".join(row["data_nodes"])) for row in found)
    show_table(columns, rows, "no zones")
    for row in found:
        _print_timers(row, f"{row['zone']}: ")


@app.command("show")
@view_command
def show(
    context: ClusterContext,
    zone: Name,
    partition: Annotated[
        int | None, typer.Argument(metavar="PARTITION", help="Partition to show. Default: all.")
    ] = None,
) -> Iterator[Any]:
    """Show a zone and its partitions.

    Each row has the replicas of the partition, its pending steps and its wait.
    """
    acks = read_acks(context.bootstrap, context.cluster)  # Before the log, which then has every acknowledged epoch.
    state = newest(context)
    reports = last_heard(context.bootstrap, context.cluster)
    view = views.full_view(state, _zone(state, zone), session_reports(state, acks), reports)
    if partition is not None:
        view["partitions"] = [row for row in view["partitions"] if row["partition"] == partition]
        if not view["partitions"]:
            fail("unknown_partition", f"{zone} has partitions 0 to {view['count'] - 1}, not {partition}")
    yield view
    out.print(
        printable(f"{zone}: {view['replicas']} replicas, quorum {view['quorum']}, {view['filter']}"), markup=False
    )
    _print_timers(view)
    rows = []
    for row in view["partitions"]:
        steps = " then ".join(", ".join(step) for step in row["pending"])
        planned = ", ".join(row["planned"] or ())
        since = f"; since {when(row['at'])}" if row["at"] is not None else ""
        waits = f"{row['waits']}{since}" if row["waits"] else ""
        if row["cancelled"]:
            waits = "; ".join(filter(None, (waits, f"its last step is cancelled: {row['cancelled']}")))
        rows.append((str(row["partition"]), row["state"], ", ".join(row["stable"]), steps, planned, waits))
    show_table(("partition", "state", "stable", "pending", "planned", "waits"), rows)
    for line in silent_lines(view["silent"]):
        out.print(printable(line), markup=False)


@app.command("plan")
@view_command
def plan(context: ClusterContext, zone: Name) -> Iterator[Any]:
    """Show the moves that a rebalance would start."""
    state = newest(context)
    view = views.plan_view(state, _zone(state, zone))
    yield view
    for row in view["moves"]:
        steps = " then ".join(", ".join(step) for step in row["steps"])
        out.print(f"{row['partition']}: {', '.join(row['stable']) or 'none'} to {steps}", markup=False)
    if not view["moves"]:
        out.print("each partition is on its nodes")
    for row in view["left_out"]:
        subject = f"of {row['partitions']} partitions" if row["data_node"] else "of the data nodes"
        out.print(printable(f"left out {subject} because it is down: {row['node']}"), markup=False)


def _print_timers(view: dict[str, Any], of: str = "") -> None:
    for timer in view["timers"]:
        out.print(printable(f"{of}{timer['text']}"), markup=False)


@app.command("rebalance")
@change_command
def rebalance(
    zone: Name,
    partitions: Annotated[
        list[int] | None, typer.Argument(metavar="PARTITION", help="Partition numbers. Default: all.")
    ] = None,
) -> Intent:
    """Move partitions to the nodes where the zone puts them."""
    return _given("TriggerRebalance", zone, partitions=partitions)


@app.command("reset")
@destructive_command
def reset(
    zone: Name,
    partitions: Annotated[
        list[int] | None,
        typer.Argument(metavar="PARTITION", help="Partition numbers. Default: all partitions without a majority."),
    ] = None,
    admit_loss: Annotated[
        bool,
        typer.Option("--admit-loss", help=help_texts.ADMIT_LOSS),
    ] = False,
) -> Intent:
    """Reset partitions that lost their majority.

    They restart from a surviving replica. Rows that only other replicas had are lost.
    """
    return _given("ResetPartitions", zone, partitions=partitions, admits_loss=admit_loss or None)


@app.command("restart")
@change_command
def restart(
    zone: Name,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Number of the partition.")],
    nodes: Annotated[list[str], typer.Argument(metavar="NODE", help="Nodes whose replicas are rebuilt.")],
) -> Intent:
    """Rebuild replicas of a partition.

    The replicas leave the partition's group and return empty.
    """
    values = {"partition": partition, "nodes": nodes}
    return _given("RestartReplicas", zone, **values)


@app.command("cancel")
@change_command
def cancel(
    zone: Name,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Number of the partition.")],
    revision: Annotated[
        int | None, typer.Option(help="Expected revision of the pending step. Default: the current one.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help=help_texts.REASON)] = None,
) -> Intent:
    """Cancel the pending steps of a partition."""
    values = {"partition": partition, "pending_revision": revision, "reason": reason}
    return _given("CancelRebalance", zone, **values)


def _zone(state: ClusterState, name: str) -> Zone:
    found = state.zones.get(name)
    if found is None:
        fail("unknown_zone", f"the zone {name} does not exist")
    return found
