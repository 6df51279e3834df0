"""``ringlog cdc import-debezium``: convert change events of Debezium sources to mutations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from confluent_kafka import KafkaException

from ringlog.cli import help as help_texts
from ringlog.cli.cdc.watching import MetricsPort, Watched, served
from ringlog.cli.shared.connection import Bootstrap, Cluster, Json, connect, fail, resolve
from ringlog.files import read_text
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.process import stop_on_signals

if TYPE_CHECKING:
    from ringlog_debezium.stage import ImportFigures


class EventFormat(Enum):
    """The encoding of change events."""

    JSON = "json"
    CONFLUENT = "confluent-avro"
    APICURIO = "apicurio-avro"


class Unit(Enum):
    """The unit of numeric times in events without a schema."""

    UNKNOWN = ""
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


def import_debezium(
    topic: Annotated[list[str], typer.Option(help="Topic of change events. May be repeated.")],
    form: Annotated[
        EventFormat,
        typer.Option("--format", metavar="json|confluent-avro|apicurio-avro", help="Encoding of keys and values."),
    ] = EventFormat.JSON,
    schema: Annotated[
        list[str] | None, typer.Option(help="Avro schema of the registry, with its number. May be repeated.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE=KEYSPACE.TABLE", help="Table of a source, if the names differ. May be repeated."),
    ] = None,
    group: Annotated[str, typer.Option(help="Consumer group, which names the import.")] = "ringlog-import",
    instance: Annotated[str, typer.Option(help="Name of this process, unique in the group.")] = "1",
    unit: Annotated[Unit, typer.Option(help="Unit of times in events without schemas.")] = Unit.UNKNOWN,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Ignore columns that the table does not have.")
    ] = False,
    until_end: Annotated[bool, typer.Option("--until-end", help=help_texts.UNTIL_END)] = False,
    metrics_port: MetricsPort = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Import change events of Debezium as mutations.

    Each event is imported once, until SIGTERM. Rejected events go to the dead letters.
    """
    from ringlog_debezium.envelope import BadRecord, Form, avro_schema
    from ringlog_debezium.mutations import ImportRules
    from ringlog_debezium.stage import Import, ImportSettings, rename

    if not group.strip():  # The Kafka client would exit the process without a message.
        fail("bad_option", "--group: must name the import", 2)
    context = resolve(bootstrap, cluster)
    try:
        files = rename(schema or ())
        schemas = {int(number): avro_schema(read_text(Path(name).absolute())) for number, name in files.items()}
        tables = rename(table or ())
    except (ValueError, OSError, BadRecord) as error:
        fail("bad_option", str(error))
    settings = ImportSettings(
        bootstrap_servers=context.bootstrap,
        cluster=context.cluster,
        topics=tuple(topic),
        group=group,
        form=Form(form.value, schemas),
        rules=ImportRules(tables, unit.value, ignore_unknown),
        until_end=until_end,
        instance=instance,
    )
    with connect(context) as client:
        stage = Import(settings, client, _print_json if as_json else _print_counts)
        stop_on_signals(stage.stopping)
        with served(metrics_port, Watched(lambda: _samples(stage.figures))):
            try:
                stage.run()
            except KafkaException as error:
                fail("import_failed", f"{error}. No event is lost or imported twice: start the import again")


def _samples(found: ImportFigures) -> Iterator[Sample]:
    return (Sample("ringlog_import_events", count, (outcome,)) for outcome, count in asdict(found).items())


def _print_json(found: ImportFigures) -> None:
    typer.echo(json.dumps(asdict(found)))


def _print_counts(found: ImportFigures) -> None:
    counts = f"{found.mutations:,} mutations, {found.refused:,} refused, {found.unchanged:,} changed nothing"
    typer.echo(f"{counts}, {found.tombstones:,} tombstones")
