"""The commands ``ringlog cdc run`` and ``ringlog cdc launcher``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ringlog.files import PROPERTIES_BYTES_MAX, read_text
from ringlog.log.errors import LogError
from ringlog.runtime.context import current_cluster, use_stored_login
from ringlog.runtime.kafka.config import VARIABLE, brokers_of_file, spark_options, use
from ringlog.runtime.kafka.properties import BadPropertyLine, read_properties
from ringlog.runtime.kafka.security import BadKafkaConfig
from ringlog.stack.commands import kafka_config_of_stack
from ringlog_cdc.driver.preflight import check_installation
from ringlog_cdc.errors import CdcError
from ringlog_cdc.settings import JobSettings
from ringlog_cdc.topics.sink import ORDER, unfit

ROW_BYTES_MAX = 2_000_000
"""Limit of ``--row-bytes-max``. The CDC topic accepts records of 2 MiB, and key and header of a row need little."""

PATTERNS_MAX, PATTERN_CHARS_MAX = 100, 200
"""Limits of ``--lake-table``. The patterns are in each commit of the lake's authors."""

MetricsOption = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the metrics for Prometheus. Default: no metrics.")
]
ProducerOption = Annotated[Path | None, typer.Option(help="Options of the Kafka producers, from `ringlog cdc grant`.")]
LakeOption = Annotated[str | None, typer.Option(help="Folder or URL of the Delta tables.")]
LakeTableOption = Annotated[
    list[str] | None, typer.Option(help="Table for the lake, or a pattern: shop.*. Repeatable. Default: all.")
]

KafkaConfigOption = Annotated[Path | None, typer.Option(envvar=VARIABLE, help="Kafka login: a client.properties file.")]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="The CDC pipeline on Spark.")


@app.callback()
def _commands() -> None:
    """The CDC pipeline on Spark."""


@app.command()
def run(
    cluster: Annotated[str, typer.Option(envvar="RINGLOG_CLUSTER", help="Name of the cluster.")],
    checkpoint: Annotated[Path, typer.Option(help="Local folder of plans, offsets and progress.", file_okay=False)],
    bootstrap: Annotated[str | None, typer.Option(envvar="RINGLOG_BOOTSTRAP_SERVERS", help="Kafka brokers.")] = None,
    writer: Annotated[str, typer.Option(help="Name of the CDC writer in the metadata log.")] = "spark",
    max_offsets_per_trigger: Annotated[int, typer.Option(min=1, help="Most mutations in a batch.")] = 500_000,
    trigger_seconds: Annotated[float, typer.Option(min=0.0, help="Shortest time between two batches.")] = 0.5,
    row_bytes_max: Annotated[
        int, typer.Option(min=1, max=ROW_BYTES_MAX, help="Larger CDC rows become dead letters.")
    ] = 1_048_576,
    master: Annotated[
        str | None,
        typer.Option(help="Spark master. Default: that of spark-submit, or local[2]. Empty: Spark's settings."),
    ] = None,
    jars: Annotated[
        str, typer.Option(envvar="RINGLOG_SPARK_JARS", help="Jars of the connector. Default: Spark has them.")
    ] = "",
    java_options: Annotated[
        str, typer.Option(help="Options of the driver's JVM. Example: -XX:TieredStopAtLevel=1, for short runs.")
    ] = "",
    producer: ProducerOption = None,
    lake: LakeOption = None,
    lake_table: LakeTableOption = None,
    stop_when_idle: Annotated[
        bool, typer.Option("--stop-when-idle", help="Stop when all mutations have durable rows.")
    ] = False,
    metrics_port: MetricsOption = None,
    image_ttl: Annotated[
        int, typer.Option(min=0, help="Seconds until an unchanged row loses its preimage. 0: never.")
    ] = 0,
    images_anew: Annotated[
        bool,
        typer.Option("--reset-images", "--images-anew", help="Start without images if the stored rows were lost."),
    ] = False,
    direct: Annotated[bool, typer.Option("--direct", help="Append write leases without a validator.")] = False,
    kafka_config: KafkaConfigOption = None,
) -> None:
    """Write the CDC rows of the cluster's mutations.

    SIGTERM stops the job after the current batch.
    """
    settings = JobSettings(
        bootstrap_servers=log_in(bootstrap, kafka_config),
        cluster=cluster,
        checkpoint=checkpoint.absolute(),
        writer=writer,
        max_offsets_per_trigger=max_offsets_per_trigger,
        trigger_seconds=trigger_seconds,
        row_bytes_max=row_bytes_max,
        stop_when_idle=stop_when_idle,
        direct=direct,
        metrics_port=metrics_port,
        image_ttl_s=image_ttl,
        images_anew=images_anew,
        producer=() if producer is None else producer_options(producer),
        lake=lake_root(lake),
        lake_tables=lake_patterns(lake, lake_table or ()),
    )
    _carry_on(settings, tuple(Path(name) for name in jars.split(",") if name), master, java_options)


def _carry_on(settings: JobSettings, jars: tuple[Path, ...], master: str | None, java_options: str) -> None:
    """Run the job. Exit with status 1 if it fails."""
    try:
        check_installation(jars)  # before the import of Spark
        from ringlog_cdc.driver import program
        from ringlog_cdc.driver.session import LOCAL, is_submitted

        if master is None and not is_submitted():
            master = LOCAL
        program.run(settings, jars, master or None, java_options)
    except (CdcError, LogError) as error:
        # The text of a CdcError begins with its code.
        typer.echo(f"ringlog cdc: {error if isinstance(error, CdcError) else f'{error.code}: {error}'}", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        typer.echo(
            (f"ringlog cdc: checkpoint_unusable: {error} (fix the folder of --checkpoint, then start the job again)"),
            err=True,
        )
        raise typer.Exit(1) from error


@app.command()
def launcher(
    connectors: Annotated[
        bool, typer.Option("--print-jars", "--jars", help="Print the jars of the connector instead.")
    ] = False,
) -> None:
    """Print the path of the program for spark-submit.

    The program takes the options of `ringlog cdc run`.
    """
    if not connectors:
        typer.echo(Path(__file__).with_name("launcher") / "ringlog_cdc_run.py")
        return
    found = os.environ.get("RINGLOG_SPARK_JARS", "")
    if not found:
        typer.echo(
            ("ringlog cdc: connector_missing: the jars of the Kafka connector are not installed (run: make setup)"),
            err=True,
        )
        raise typer.Exit(1)
    typer.echo(found)


def lake_root(given: str | None) -> str | None:
    """Return the address of a lake, or the absolute path of its folder. None without a lake. Rejects an empty name."""
    if given == "":
        raise typer.BadParameter("must be a folder or a URL")
    return given if given is None or "://" in given else str(Path(given).absolute())


def lake_patterns(lake: str | None, given: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of the lake's tables. Rejects them without a lake, and those that no table can have."""
    if given and lake is None:
        raise typer.BadParameter("--lake-table needs --lake")
    if len(given) > PATTERNS_MAX or any(not 0 < len(one) <= PATTERN_CHARS_MAX or "," in one for one in given):
        raise typer.BadParameter(
            f"--lake-table: at most {PATTERNS_MAX} patterns of 1 to {PATTERN_CHARS_MAX} characters, without commas"
        )
    return tuple(given)


def log_in(bootstrap: str | None, given: Path | None) -> str:
    """Configure the login of all Kafka clients, from the given file or from the known settings of the brokers.

    Exits with status 1 if that fails.

    Returns:
        The brokers: the given ones, else those of the file, else those of the cluster in use.
    """
    try:
        if given is not None:
            use(given)
        last = current_cluster()
        brokers = bootstrap or brokers_of_file() or ("" if last is None else last.bootstrap)
        if not brokers:
            raise typer.BadParameter("no broker is set: pass --bootstrap, or select a cluster with ringlog cluster use")
        use_stored_login(brokers, kafka_config_of_stack(brokers))
        spark_options(brokers)  # fails now if Java clients cannot express the login, not in the first batch
    except BadKafkaConfig as error:
        typer.echo(f"ringlog cdc: {error.code}: {error}", err=True)
        raise typer.Exit(1) from error
    return brokers


def producer_options(path: Path) -> tuple[tuple[str, str], ...]:
    """Parse the ``name=value`` lines of a file, by the rules of Java's properties.

    Exits with status 2 for other lines.
    """
    try:
        lines = read_properties(read_text(path.absolute(), PROPERTIES_BYTES_MAX))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error
    except BadPropertyLine as bad:
        raise typer.BadParameter(f"{path}, {bad}") from bad
    for line in lines:
        if unfit(line.name, line.value):
            raise typer.BadParameter(f"{path}: the job sets {line.name} itself, {ORDER[line.name]}: remove the line")
    return tuple((line.name, line.value) for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Run ``ringlog cdc run`` with these arguments. Return the exit status."""
    try:
        app(["run", *arguments], prog_name="ringlog cdc")
    except SystemExit as end:
        return int(end.code or 0)
    return 0
