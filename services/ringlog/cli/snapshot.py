"""``ringlog snapshot``: states that are stored, so that readers need not begin with the log's first entry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import typer

from ringlog.cli.submitting import asks
from ringlog.cli.verbs import looks, show_table
from ringlog.kernel.commands.snapshots import TakeSnapshot
from ringlog.log.beginning import ListedSnapshot
from ringlog.log.opening import open_snapshots
from ringlog.operator.intents import Intent, named
from ringlog.operator.shown import picked, time_of_day
from ringlog.runtime.context import ClusterContext

app = typer.Typer(no_args_is_help=True)


@app.command("take")
@asks
def take() -> Intent:
    """Have the agents store the state behind this command. ``ringlog snapshot list`` shows when it is confirmed."""
    return named(TakeSnapshot())


@app.command("list")
@looks
def show(context: ClusterContext) -> Iterator[Any]:
    """The snapshots that are stored, the newest first, who confirmed each, and why one cannot be begun with."""
    with closing(open_snapshots(context.bootstrap, context.cluster)) as topic:
        rows = [_row(one) for one in topic.listed()]
    yield rows
    lines = []
    for row in rows:
        words = str(row["epoch"]), time_of_day(row["at"]), f"{row['bytes']:,}", row["by"]
        lines.append((*words, ", ".join(row["confirmed_by"]) or "nobody", row["digest"][:16], row["code"] or ""))
    columns = ("epoch", "taken", "bytes", "stored by", "confirmed by", "digest", "")
    show_table(columns, lines, "no snapshots: take one with `ringlog snapshot take`")


def _row(one: ListedSnapshot) -> dict[str, Any]:
    head = one.head
    return picked(head, "epoch", "state_id", "position", "digest") | {
        "bytes": sum(part.size for part in head.parts),
        **picked(head, "by", "at"),
        "confirmed_by": list(one.confirmed_by),
        "code": one.code or None,
    }
