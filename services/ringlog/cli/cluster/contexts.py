"""``ringlog cluster use|list|current``: the clusters that this user knows, and the one in use."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich.text import Text

from ringlog.cache.redis_url import without_password
from ringlog.cli.shared.connection import Bootstrap, Json, connect, fail, out, resolve
from ringlog.cli.shared.tables import show_table
from ringlog.kernel.values import replace
from ringlog.runtime.context import ClusterContext, current_cluster, store_cluster, stored_clusters
from ringlog.runtime.kafka.config import VARIABLE
from ringlog.runtime.trust import REQUEST_KEY_VARIABLE, TRUST_VARIABLE


def register(app: typer.Typer) -> None:
    """Add the commands to ``ringlog cluster``."""
    app.command("use")(use)
    app.command("list")(list_clusters)
    app.command("current")(current)


app = typer.Typer(no_args_is_help=True)
"""The same commands under the name that users of kubectl know."""


def use(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name or id of the cluster, or the beginning of its id.")],
    bootstrap: Bootstrap = None,
    as_json: Json = False,
) -> None:
    """Choose the cluster that later commands use.

    It is a cluster of `ringlog cluster list`, or with --bootstrap one at that broker.
    """
    chosen = known_cluster(name) if bootstrap is None else _asked_for(bootstrap, name)
    variables = {"kafka_config": VARIABLE, "trust_config": TRUST_VARIABLE, "request_key": REQUEST_KEY_VARIABLE}
    for name_of_file, variable in variables.items():
        source = context.get_parameter_source(name_of_file)
        if source is not None and source.name == "COMMANDLINE":
            chosen = replace(chosen, **{name_of_file: os.environ[variable]})
    store_cluster(chosen)
    _show(chosen, as_json)


def list_clusters(as_json: Json = False) -> None:
    """List the clusters that this user has created or used.

    Marks the cluster in use. Needs no broker.
    """
    found = stored_clusters()
    if as_json:
        typer.echo(json.dumps([_as_json(c) | {"in_use": c == found.current} for c in found.clusters]))
        return
    rows = [
        (
            "in use" if c == found.current else "",
            *(c.cluster, c.cluster_id, c.bootstrap, without_password(c.redis)),
            *(c.kafka_config, c.trust_config, c.request_key),
        )
        for c in found.clusters
    ]
    columns = ("", "cluster", "id", "broker", "redis", "log-in", "trust", "request key")
    show_table(columns, rows, "no cluster is known; create one: ringlog cluster create NAME")


def current(as_json: Json = False) -> None:
    """Show the cluster in use.

    Needs no broker.
    """
    found = current_cluster()
    if found is None:
        fail(
            "no_cluster",
            "no cluster is in use; choose one: ringlog cluster use NAME, or create one: ringlog cluster create NAME",
        )
    _show(found, as_json)


def known_cluster(name: str) -> ClusterContext:
    """Return the stored cluster with this name or this beginning of its id; fails if there is none or several."""
    clusters = stored_clusters().clusters
    by_name = [context for context in clusters if context.cluster == name]
    found = by_name or [context for context in clusters if name and context.cluster_id.startswith(name)]
    if len(found) > 1:
        which = "; ".join(f"{context.cluster_id} at {context.bootstrap}" for context in found)
        fail("ambiguous_cluster", f"{name} matches {which}: pass the id")
    if not found:
        fail("unknown_cluster", f"{name} is not known. See ringlog cluster list, or pass --bootstrap")
    return found[0]


def _asked_for(bootstrap: str, name: str) -> ClusterContext:
    """Return the context of a cluster at a broker, with the id that its log contains."""
    context = resolve(bootstrap, name)
    with connect(context) as client:
        return replace(context, cluster_id=client.read_barrier().cluster_id)


def _show(context: ClusterContext, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_as_json(context)))
    else:
        where = f" {context.cluster_id} at {context.bootstrap} is in use"
        out.print(Text.assemble("cluster ", (context.cluster, "bold"), where))


def _as_json(context: ClusterContext) -> dict[str, str]:
    return {
        "cluster": context.cluster,
        "cluster_id": context.cluster_id,
        "bootstrap": context.bootstrap,
        "redis": without_password(context.redis),
        "kafka_config": context.kafka_config,
        "trust_config": context.trust_config,
        "request_key": context.request_key,
    }


register(app)
