"""``ringlog service``: show and change the log replicas of the metadata service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import typer

from ringlog.cli.shared.connection import fail, out
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.submitting import change_command
from ringlog.cli.shared.tables import show_table
from ringlog.client.node_reports import AcksReader
from ringlog.kernel.commands.cluster.service import AddServiceMember, ReconfigureService, RemoveServiceMember
from ringlog.operator.intents.intents import Intent, named
from ringlog.operator.views.service import recovery_lines, service_status
from ringlog.operator.views.words import printable
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NODE", help="Name or id of the node.")]
AUTOMATIC = "automatic"
NUMBER = re.compile("[0-9]{1,9}")


@app.command("show")
@view_command
def show(context: ClusterContext) -> Iterator[Any]:
    """Show the members and the next change of the service.

    Also shows the number of wanted members, and the reason why the next step waits.
    """
    state = newest(context)
    with closing(AcksReader(context.bootstrap, context.cluster)) as acks:
        view = service_status(state, acks.refresh())
    yield view
    for line in recovery_lines(state):
        out.print(line, markup=False)
    rows = ((row["node"], row["stage"], str(row["since"])) for row in view["members"])
    show_table(("node", "stage", "since epoch"), rows, "no members: add the first with `ringlog service add NODE`")
    how = AUTOMATIC if view["automatic"] else "by hand"
    without = f", without {', '.join(view['excluded'])}" if view["excluded"] else ""
    out.print(printable(f"{view['size']} wanted, {how}{without}"), markup=False)
    if view["next"] is not None:
        out.print(printable(f"next: {view['next']['node']} {view['next']['to']}"), markup=False)
    if view["waits_for"]:
        out.print(printable(f"waits for {view['waits_for']}"), markup=False)
    for way in view["ways_out"]:
        out.print(printable(f"  {way}"), markup=False)


@app.command("add")
@change_command
def add(node: Name) -> Intent:
    """Add a node to the metadata service.

    Entries are written to it at once. It is read as soon as it has the log.
    """
    return named(AddServiceMember(node))


@app.command("remove")
@change_command
def remove(node: Name) -> Intent:
    """Remove a node from the metadata service.

    Reads from it stop at once. Entries are written to it until a quorum knows about the removal. The last member cannot
    be removed.
    """
    return named(RemoveServiceMember(node))


@app.command("size")
@change_command
def size(
    members: Annotated[str | None, typer.Argument(metavar="N|automatic", help="Number of members.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Node that must not be a member. May be repeated.")] = None,
    exclude_none: Annotated[bool, typer.Option("--exclude-none", help="Clear the excluded nodes.")] = False,
) -> Intent:
    """Set the number of members of the metadata service.

    automatic: 1 member for up to 2 nodes, 3 for up to 5, 5 for up to 100, else 10.
    """
    if members not in (None, AUTOMATIC) and not NUMBER.fullmatch(str(members)):
        fail("bad_field", f"size: {str(members)[:40]!r} is neither a number nor {AUTOMATIC}", 2)
    if exclude and exclude_none:
        fail("bad_field", "exclude: cannot be combined with --exclude-none", 2)
    excluded = tuple(exclude) if exclude else () if exclude_none else None
    automatic = members == AUTOMATIC
    number = None if members is None or automatic else int(members)
    return named(ReconfigureService(number, automatic, excluded))
