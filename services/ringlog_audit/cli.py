"""``ringlog audit``: compare the CDC log with the mutations and print the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ringlog.cli import help as help_texts
from ringlog.cli.metadata.log import InArchive
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.log.archive.archive import Archive
from ringlog.log.archive.locations import open_location
from ringlog_audit.report import AuditReport

POLL_S = 1.0
"""Seconds between two audits while the command waits for the CDC job."""


def audit(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    written: Annotated[int | None, typer.Option(min=0, help="Number of writes that must have CDC rows.")] = None,
    rejected: Annotated[int | None, typer.Option(min=0, help="Number of writes that must be dead letters.")] = None,
    generations: Annotated[
        int | None, typer.Option(min=0, help="Number of generations with at least 10 % of the rows each.")
    ] = None,
    base: Annotated[
        int | None,
        typer.Option(min=0, help="Number of partitions of each table to compare with rows on the nodes. 0: all."),
    ] = None,
    lake: Annotated[str | None, typer.Option(help=help_texts.LAKE)] = None,
    wait: Annotated[
        float, typer.Option("--wait-seconds", "--wait", min=0.0, help="Seconds to wait for the CDC job.")
    ] = 0.0,
    archive: InArchive = None,
    as_json: Json = False,
) -> None:
    """Check the CDC log against the mutations.

    Shares no routing code with the job. The exit status is 1 if the check fails, or if the job has not processed every
    mutation yet.
    """
    from ringlog_audit.lake import audit_lake
    from ringlog_audit.sources.topics import AuditError, KafkaTopics
    from ringlog_audit.verify import Expected
    from ringlog_audit.verify import audit as prove

    context = resolve(bootstrap, cluster)
    say: Callable[[str], None] = (lambda _: None) if as_json else (lambda text: out.print(f"  {text}"))
    held = None if archive is None else Archive(open_location(archive))
    archived = () if held is None else tuple(record.data for record in held.records(held.existing_segments()))
    expected = Expected(written, rejected, generations, base=base, archived=archived)
    topics, deadline = KafkaTopics(context.bootstrap, context.cluster), time.monotonic() + wait
    try:
        report, printed = prove(topics, expected, say), 0
        while (left := report.counts["not_carried_out"]) and time.monotonic() < deadline:
            if left != printed:
                say(f"mutations that the job has not processed: {left:,}")
            printed = left
            time.sleep(POLL_S)
            report = prove(topics, expected, lambda _: None)
        if lake is not None:
            audit_lake(topics, lake, report, say, archived)
    except AuditError as error:
        fail("audit_impossible", str(error))
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show_audit(out, report)
    raise typer.Exit(0 if report.ok else 1)


def show_audit(console: Console, report: AuditReport) -> None:
    """Print the checks of the audit."""
    for check in report.checks:
        mark = ("✓", "green") if check.ok else ("✗", "red")
        console.print(Text.assemble("  ", mark, f" {check.statement}"))
        for example in check.examples:
            console.print(f"      {example}", markup=False)
        if check.failures > len(check.examples):
            console.print(f"      and {check.failures - len(check.examples):,} more")
    for generation in report.generations:
        console.print(f"    generation of {generation['timestamp']}: {generation['rows']:,} rows")
