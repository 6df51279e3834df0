"""``ringlog cluster``: found a cluster, choose one, and its settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from ringlog.cache.redis_url import redis_address
from ringlog.cli import cluster_certificates, cluster_use
from ringlog.cli.cluster_acls import acls
from ringlog.cli.connection import Bootstrap, Json, broker_of, fail, out, tell_replay
from ringlog.cli.submitting import asks
from ringlog.cli.verbs import looks, newest, show_table
from ringlog.client.founding import Founding, found_cluster
from ringlog.kernel.commands.features import EnableFeature
from ringlog.kernel.settings import SETTINGS
from ringlog.operator import views
from ringlog.operator.intents import Intent, named
from ringlog.runtime.context import ClusterContext, remember
from ringlog.runtime.kafka_config import VARIABLE
from ringlog.runtime.trust import TRUST_VARIABLE

app = typer.Typer(no_args_is_help=True)
cluster_use.register(app)
cluster_certificates.register(app)
app.command("acls")(acls)
Setting = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting; may be repeated.")]


def parse_settings(given: list[str] | None) -> tuple[tuple[str, int], ...]:
    """``NAME=VALUE`` options as pairs."""
    pairs = []
    for item in given or []:
        name, _, value = item.partition("=")
        try:
            pairs.append((name, int(value)))
        except ValueError:
            fail("bad_setting", f"{item}: expected NAME=NUMBER; names: {', '.join(sorted(SETTINGS))}", 2)
    return tuple(pairs)


@app.command("found")
def found_command(
    name: Annotated[str, typer.Argument(help="Name of the new cluster; its topics begin with it.")],
    settings: Setting = None,
    replication: Annotated[
        int | None,
        typer.Option(help="Copies of each record. None: 3 on three brokers, 1 on one; else it is asked.", min=1),
    ] = None,
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Create the topics, append the founding entry and read it back. Later commands use this cluster."""
    broker = broker_of(bootstrap)
    brokers = broker.bootstrap
    if broker.redis:
        redis_address(broker.redis)
    founding = found_cluster(brokers, name, dict(parse_settings(settings)), replication=replication, tell=tell_replay)
    try:
        _say_founded(founding, brokers, as_json)
    finally:  # where it cannot be remembered, it is founded none the less, and that was said
        files = {"kafka_config": os.environ.get(VARIABLE, ""), "trust_config": os.environ.get(TRUST_VARIABLE, "")}
        remember(ClusterContext(brokers, name, broker.redis, cluster_id=founding.cluster_id, **files))


def _say_founded(founding: Founding, brokers: str, as_json: bool) -> None:
    if as_json:
        told = {"cluster": founding.name, "cluster_id": founding.cluster_id, "founded_here": founding.here}
        typer.echo(json.dumps(told | {"copies": founding.copies}))
        return
    if founding.here:
        out.print(
            Text.assemble("cluster ", (founding.name, "bold"), f" founded on {brokers}, id {founding.cluster_id}")
        )
    else:
        out.print(Text.assemble("cluster ", (founding.name, "bold"), f" was there already, id {founding.cluster_id}"))
    one = "1 copy: a broker that loses its disk loses the cluster"
    out.print(f"each record has {one if founding.copies == 1 else f'{founding.copies} copies'}")


@app.command("enable-feature")
@asks
def enable_feature(
    feature: Annotated[str, typer.Argument(help="Name of the feature; every member must support it.")],
) -> Intent:
    """Enable a feature, for good: nodes that lack it can neither register nor join any more."""
    return named(EnableFeature(feature))


@app.command("features")
@looks
def features_command(context: ClusterContext) -> Iterator[Any]:
    """The features that are enabled, and those that members support, with the nodes that lack them."""
    found = views.features(newest(context))
    yield found
    rows = ((row["name"], str(row["enabled"] or "-"), ", ".join(row["lacked_by"]) or "-") for row in found)
    none = "no feature is enabled, and no member supports one"
    show_table(("feature", "enabled at epoch", "lacked by"), rows, none)


@app.command("settings")
@looks
def settings_command(context: ClusterContext) -> Iterator[Any]:
    """Every setting of the cluster with its value, unit and meaning."""
    values = views.settings(newest(context))
    yield values
    rows = ((name, str(value), SETTINGS[name].unit, SETTINGS[name].meaning) for name, value in values.items())
    show_table(("setting", "value", "unit", "meaning"), rows)
