"""``ringlog cdc export``: publish the change stream to Kafka topics for other programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from ringlog.cli.cdc.consume import Columns, From, SkipLost, Tables, UntilEnd
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, fail, out, report_replay, resolve
from ringlog.client.cdc.export import CdcExport, ExportFigures, ExportFormat, ExportSettings
from ringlog.client.cdc.reader import EARLIEST
from ringlog.runtime.process import stop_on_signals


def export(
    form: Annotated[
        ExportFormat, typer.Option("--format", metavar="debezium|cloudevents", help="Format of the records.")
    ] = ExportFormat.DEBEZIUM,
    topic: Annotated[str, typer.Option("--topic", help="Topic for the changes of all tables.")] = "",
    prefix: Annotated[
        str,
        typer.Option("--topic-prefix", metavar="NAME", help="A topic for each table: PREFIX.KEYSPACE.TABLE."),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="Name of the export. A process with the same name continues it.")
    ] = "export",
    table: Tables = None,
    column: Columns = None,
    start: From = EARLIEST,
    partitions: Annotated[int, typer.Option("--partitions", help="Number of partitions.", min=1, max=10_000)] = 8,
    no_tombstones: Annotated[
        bool, typer.Option("--no-tombstones", help="Write no record without value after a delete.")
    ] = False,
    commit_every: Annotated[
        int, typer.Option("--commit-every", help="Most changes in a transaction.", min=1, max=100_000)
    ] = 5_000,
    until_end: UntilEnd = False,
    skip_lost: SkipLost = False,
    skip_oversized: Annotated[
        bool, typer.Option("--skip-oversized", help="Leave out records that are larger than their topic permits.")
    ] = False,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Publish changes to Kafka topics, each exactly once.

    Records and position are in one transaction, so a read_committed consumer gets each change once, also after a crash.
    The key of a record is the key of the row. The command runs until SIGTERM. A new process with the same name fences
    the old one and continues. A topic that does not exist is created.
    """
    if bool(topic) == bool(prefix) or not name:
        fail("bad_usage", "pass a name, and either --topic or --topic-prefix", 2)
    context = resolve(bootstrap, cluster)
    settings = ExportSettings(
        bootstrap_servers=context.bootstrap,
        cluster=context.cluster,
        name=name,
        form=form,
        topic=topic,
        topic_prefix=prefix,
        partitions=partitions,
        tables=tuple(table or ()),
        columns=tuple(column or ()),
        start=start,
        commit_every=commit_every,
        has_tombstones=not no_tombstones,
        skips_lost=skip_lost,
        skips_oversized=skip_oversized,
        until_end=until_end,
    )
    stage = CdcExport(settings, _Reports(as_json).report, report_replay)
    stop_on_signals(stage.stopping)
    stage.run()


class _Reports:
    """Prints the figures of an export if they have changed."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last: ExportFigures | None = None

    def report(self, found: ExportFigures) -> None:
        """Print the figures as a line."""
        if found == self._last:
            return
        self._last = ExportFigures(**asdict(found))
        if self._as_json:
            typer.echo(json.dumps(asdict(found)))
            return
        behind = "the broker does not answer" if found.behind is None else f"{found.behind:,} offsets behind"
        more = f", {found.oversized:,} left out" if found.oversized else ""
        more += f", {found.lost_rows:,} rows lost" if found.lost_rows else ""
        out.print(f"{found.changes:,} changes, {found.records:,} records{more}; {behind}")
