"""``ringlog cdc``: change data capture (CDC). Each other module of this folder has one group of commands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import typer

from ringlog.cli.cdc import dead_letters
from ringlog.cli.cdc.clocks import close_command, forget_versions_command, lower_command, withdraw_command
from ringlog.cli.cdc.consume import apply, tail
from ringlog.cli.cdc.export import export
from ringlog.cli.cdc.import_debezium import import_debezium
from ringlog.cli.cdc.permissions import fence_command, grant_command
from ringlog.cli.cdc.repair import repair_command
from ringlog.cli.shared.connection import out
from ringlog.cli.shared.options import newest, view_command
from ringlog.cli.shared.tables import show_table
from ringlog.client.cdc.dead_letters import recent_counts
from ringlog.kernel.generations.expiry import log_retention
from ringlog.log.kafka.lag import writer_lags
from ringlog.log.kafka.retention import retention_command, retention_of
from ringlog.log.kafka.topics import CDC, admin_client, topic_name
from ringlog.operator.views import views
from ringlog.operator.views.clocks import clock_lines
from ringlog.operator.views.words import lifetime, printable, when
from ringlog.operator.views.writer_lag import format_lag, format_lease, lag_view
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext, current_cluster
from ringlog.stack.artifacts import spark_jars
from ringlog.stack.errors import StackError
from ringlog_cdc.cli import launcher
from ringlog_cdc.cli import run as run_job

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _defaults(context: typer.Context) -> None:
    """Run and manage change data capture (CDC)."""
    last = current_cluster()
    if last is not None and context.invoked_subcommand == "run":  # The job resolves the broker itself.
        os.environ.setdefault("RINGLOG_CLUSTER", last.cluster)
    with suppress(StackError):  # Without the jars, the user's Spark may have the connectors.
        os.environ.setdefault("RINGLOG_SPARK_JARS", ",".join(str(path) for path in spark_jars()))


app.command("run")(run_job)
app.command("launcher")(launcher)
app.command("grant")(grant_command)
app.command("fence")(fence_command)
app.command("lower")(lower_command)
app.command("withdraw")(withdraw_command)
app.command("close")(close_command)
app.command("forget-versions")(forget_versions_command)
app.command("repair")(repair_command)
app.command("tail")(tail)
app.command("apply")(apply)
app.command("export")(export)
app.command("import-debezium")(import_debezium)
app.add_typer(dead_letters.app, name="dead-letters")


@app.command("status")
@view_command
def status(context: ClusterContext) -> Iterator[Any]:
    """Show CDC generations and registered writers.

    Writers have the mutations that wait for them, by their last report in the log, and their write lease (horizon). The
    lease of a writer that does not run has ended. The retention of rows is compared with the tables' ttl. Dead letters
    are counted by reason among the last 2,000 records of their topic.
    """
    state = newest(context)
    topic, seconds, now = topic_name(context.cluster, CDC.suffix), log_retention(state), SystemClock().now_us()
    kept = retention_of(admin_client(context.bootstrap), topic)
    letters = recent_counts(context.bootstrap, context.cluster).by_reason()
    found = views.cdc(state) | {"retention": views.retention(kept, seconds), "recent_dead_letters": letters}
    lags = writer_lags(context.bootstrap, state)
    for row in found["writers"]:
        row |= lag_view(lags[row["name"]])
    yield found
    rows: Iterable[tuple[str, ...]] = (
        (row["id"], when(row["timestamp"]), row["status"], str(row["ranges"]), str(row["streams"]))
        for row in found["generations"]
    )
    columns = ("generation", "active from", "status", "ranges", "streams")
    show_table(columns, rows, "no generation yet; the join of the first node creates one")
    if found["prepared"] is not None:
        out.print(f"prepared: {found['prepared']['id']}, {found['prepared']['received']} parts")
    writers = []
    for row in found["writers"]:
        fenced = "" if row["fenced"] is None else f"fenced since epoch {row['fenced']}"
        low = when(row["low_watermark"]) if row["low_watermark"] else "none"
        times = format_lease(state.writers[row["name"]], now), low
        writers.append((row["name"], format_lag(lags[row["name"]]), *times, row["incarnation"], fenced))
    if writers:
        show_table(("writer", "behind", "write lease", "low-watermark", "incarnation", ""), writers)
    for line in clock_lines(state, now, None):
        out.print(line, markup=False)
    counts = ", ".join(f"{count} {printable(reason)}" for reason, count in letters.items())
    out.print(f"recent dead letters: {counts or 'none'}", markup=False)
    out.print(f"rows: retained {lifetime(kept.ms)} by the topic; the tables require {lifetime(seconds, 1)}")
    if not kept.covers(seconds):
        out.print(
            "rows may expire before the ttl of their tables. A running job raises the retention if it may; by hand:"
        )
        out.print(f"  {retention_command(context.bootstrap, topic, kept, seconds)}", soft_wrap=True)
