"""``ringlog cdc``, ``ringlog audit`` and ``ringlog demo``.

The pipeline, its readers, the second opinion on it, and the whole system once.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ringlog.cli import cdc, views
from ringlog.cli.clocks import clock_lines, lower_command, withdraw_command
from ringlog.cli.connection import Bootstrap, Cluster, Json, connect, fail, out, resolve
from ringlog.cli.fencing import fence_command, grant_command
from ringlog.cli.importing import import_debezium
from ringlog.cli.shown import lifetime, when
from ringlog.kernel.generations.expiry import log_retention
from ringlog.log.retention import FOR_EVER, Retention, mending, retention_of
from ringlog.log.topics import CDC, admin_client, topic_name
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import recall
from ringlog.runtime.settings import default_data_dir
from ringlog.stack.artifacts import jars
from ringlog.stack.errors import StackError
from ringlog_cdc.cli import launcher
from ringlog_cdc.cli import run as run_job

app = typer.Typer(help="Change data capture: generations, writers, the Spark job.", no_args_is_help=True)


@app.callback()
def _defaults(context: typer.Context) -> None:
    """Change data capture: generations, writers, the Spark job."""
    last = recall()
    if last is not None and context.invoked_subcommand == "run":  # the job finds the broker itself
        os.environ.setdefault("RINGLOG_CLUSTER", last.cluster)
    with suppress(StackError):  # a Spark of the user's own may have the connectors
        os.environ.setdefault("RINGLOG_SPARK_JARS", ",".join(str(path) for path in (*jars("spark"), *jars("lake"))))


app.command("run")(run_job)
app.command("launcher")(launcher)
app.command("grant")(grant_command)
app.command("fence")(fence_command)
app.command("lower")(lower_command)
app.command("withdraw")(withdraw_command)
app.command("tail")(cdc.tail)
app.command("apply")(cdc.apply)
app.command("import-debezium")(import_debezium)


@app.command("status")
def status(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Generations in order, and how far each registered writer has promised to go."""
    context = resolve(bootstrap, cluster)
    with connect(context) as client:
        state = client.read_barrier()
    topic, seconds = topic_name(context.cluster, CDC.suffix), log_retention(state)
    kept = retention_of(admin_client(context.bootstrap), topic)
    found = views.cdc(state) | {"retention": retention_json(kept, seconds)}
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table("generation", "operates from", "status", "ranges", "streams", box=None, padding=(0, 2))
    for row in found["generations"]:
        table.add_row(row["id"], when(row["timestamp"]), row["status"], str(row["ranges"]), str(row["streams"]))
    out.print(table if found["generations"] else "no generation yet; the first node that joins makes one")
    if found["prepared"] is not None:
        out.print(f"prepared: {found['prepared']['id']}, {found['prepared']['received']} parts")
    writers = Table("writer", "horizon", "low-watermark", "incarnation", "", box=None, padding=(0, 2))
    for row in found["writers"]:
        fenced = "" if row["fenced"] is None else f"fenced since epoch {row['fenced']}"
        writers.add_row(row["name"], when(row["horizon"]), when(row["low_watermark"]), row["incarnation"], fenced)
    if found["writers"]:
        out.print(writers)
    for line in clock_lines(state, SystemClock().now_us(), None):
        out.print(line, markup=False)
    out.print(f"rows: kept {lifetime(kept.ms)} by the topic, {lifetime(seconds, 1)} promised by tables")
    if not kept.covers(seconds):
        out.print("rows may be gone before their tables' ttl; a running job mends it if it may, or by hand:")
        out.print(f"  {mending(context.bootstrap, topic, kept, seconds)}", soft_wrap=True)


def retention_json(kept: Retention, seconds: int | None) -> dict[str, object]:
    """How long rows of the CDC log are kept; null: for ever."""
    return {
        "promised_seconds": seconds,
        "kept_ms": None if kept.ms == FOR_EVER else kept.ms,
        "kept_bytes": None if kept.bytes == FOR_EVER else kept.bytes,
        "enough": kept.covers(seconds),
    }


def audit_command(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    written: Annotated[int | None, typer.Option(help="Number of writes that must have CDC rows.")] = None,
    rejected: Annotated[int | None, typer.Option(help="Number of writes that must be dead letters.")] = None,
    generations: Annotated[int | None, typer.Option(help="Number of generations that must hold 10 % each.")] = None,
    lake: Annotated[str | None, typer.Option(help="Folder or address of the lake, to be compared, too.")] = None,
    as_json: Json = False,
) -> None:
    """Prove the CDC log right against the mutations, sharing no routing code with the job.

    Exit status 1 if it is not.
    """
    from ringlog.audit.lake import audit_lake
    from ringlog.audit.topics import AuditError
    from ringlog.audit.verify import Expected, audit
    from ringlog.demo.summary import show_audit

    context = resolve(bootstrap, cluster)
    say = (lambda _: None) if as_json else (lambda text: out.print(f"  {text}"))
    try:
        report = audit(context.bootstrap, context.cluster, Expected(written, rejected, generations), say)
        if lake is not None:
            audit_lake(context.bootstrap, context.cluster, lake, report, say)
    except AuditError as error:
        fail("audit_impossible", str(error))
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show_audit(out, report)
    raise typer.Exit(0 if report.ok else 1)


def demo(
    flights: Annotated[int | None, typer.Option(help="Send only so many flights.", min=2_000)] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The demo's folder; emptied at the start.")] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Leave broker and Redis running at the end.")] = True,
) -> None:
    """The whole system once, on real components and real data, with a node joining in the middle; then the audit."""
    from ringlog.demo.main import run_demo

    raise typer.Exit(run_demo(flights, data or default_data_dir() / "demo", keep, out))
