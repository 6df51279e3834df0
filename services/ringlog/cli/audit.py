"""``ringlog audit``: the second opinion on the CDC log."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ringlog.cli.connection import Bootstrap, Cluster, Json, fail, out, resolve
from ringlog.cli.log import InArchive
from ringlog.log.archive import Archive
from ringlog.log.archive_places import place_of


def audit(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    written: Annotated[int | None, typer.Option(min=0, help="Number of writes that must have CDC rows.")] = None,
    rejected: Annotated[int | None, typer.Option(min=0, help="Number of writes that must be dead letters.")] = None,
    generations: Annotated[
        int | None, typer.Option(min=0, help="Number of generations that must hold 10 % each.")
    ] = None,
    base: Annotated[
        int | None,
        typer.Option(min=0, help="Number of partitions of each table whose rows on the nodes are compared; 0: all."),
    ] = None,
    lake: Annotated[str | None, typer.Option(help="Folder or address of the lake, to be compared, too.")] = None,
    archive: InArchive = None,
    as_json: Json = False,
) -> None:
    """Prove the CDC log right against the mutations, sharing no routing code with the job.

    Exit status 1 if it is not.
    """
    from ringlog.audit.lake import audit_lake
    from ringlog.audit.topics import AuditError
    from ringlog.audit.verify import Expected
    from ringlog.audit.verify import audit as prove
    from ringlog.demo.summary import show_audit

    context = resolve(bootstrap, cluster)
    say = (lambda _: None) if as_json else (lambda text: out.print(f"  {text}"))
    held = None if archive is None else Archive(place_of(archive))
    archived = () if held is None else (record.data for record in held.records(held.present()))
    expected = Expected(written, rejected, generations, base=base, archived=archived)
    try:
        report = prove(context.bootstrap, context.cluster, expected, say)
        if lake is not None:
            audit_lake(context.bootstrap, context.cluster, lake, report, say)
    except AuditError as error:
        fail("audit_impossible", str(error))
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show_audit(out, report)
    raise typer.Exit(0 if report.ok else 1)
