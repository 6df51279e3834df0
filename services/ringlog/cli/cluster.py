"""``ringlog cluster``, ``ringlog status`` and ``ringlog submit``: found a cluster, look at it, ask for a change."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from ringlog.agents.status import read_status
from ringlog.cli import contexts, views
from ringlog.cli.clocks import clock_lines, seen_until
from ringlog.cli.connection import Bootstrap, Cluster, Json, asked, broker_of, connect, fail, out, resolve, tell_replay
from ringlog.cli.shown import printable
from ringlog.cli.submitting import submit_json
from ringlog.cli.waiting import refused_words
from ringlog.client.founding import found_cluster
from ringlog.client.results import AppliedResult, ExpiredResult, WithdrawnResult
from ringlog.kernel.settings import SETTINGS
from ringlog.kernel.state import ClusterState
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import Context, remember
from ringlog.runtime.kafka_config import VARIABLE

app = typer.Typer(help="Found a cluster, choose one, and look at it.", no_args_is_help=True)
contexts.register(app)
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
    founding = found_cluster(brokers, name, dict(parse_settings(settings)), replication=replication, tell=tell_replay)
    remember(Context(brokers, name, broker.redis, os.environ.get(VARIABLE, ""), founding.cluster_id))
    if as_json:
        told = {"cluster": founding.name, "cluster_id": founding.cluster_id, "founded_here": founding.here}
        typer.echo(json.dumps(told | {"copies": founding.copies}))
    elif founding.here:
        out.print(f"cluster [bold]{founding.name}[/bold] founded on {brokers}, id {founding.cluster_id}")
    else:
        out.print(f"cluster [bold]{founding.name}[/bold] was there already, id {founding.cluster_id}")
    if not as_json:
        one = "1 copy: a broker that loses its disk loses the cluster"
        out.print(f"each record has {one if founding.copies == 1 else f'{founding.copies} copies'}")


@app.command("settings")
def settings_command(bootstrap: Bootstrap = None, cluster: Cluster = None, as_json: Json = False) -> None:
    """Every setting of the cluster with its value, unit and meaning."""
    with connect(resolve(bootstrap, cluster)) as client:
        values = views.settings(client.read_barrier())
    if as_json:
        typer.echo(json.dumps(values))
        return
    table = Table("setting", "value", "unit", "meaning", box=None, padding=(0, 2))
    for name, value in values.items():
        table.add_row(name, str(value), SETTINGS[name].unit, SETTINGS[name].meaning)
    out.print(table)


def status(
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    as_json: Json = False,
    cached: Annotated[bool, typer.Option("--cached", help="Read the state from Redis instead of the log.")] = False,
) -> None:
    """The cluster at a glance: epoch, nodes, operations, generations, and whether each agent is caught up."""
    context = resolve(bootstrap, cluster)
    if cached:
        _cached_status(context)
        return
    with connect(context) as client:
        state = client.read_barrier()
    agents = read_status(context.bootstrap, context.cluster, tell_replay)
    now = SystemClock().now_us()
    clocks = clock_lines(state, now, seen_until(context.bootstrap, context.cluster))
    if as_json:
        agent_rows = [
            {"role": a.role, "instance": a.instance, "term": a.term, "epoch": a.epoch, "caught_up": a.caught_up}
            | ({"refused": [asdict(one) for one in a.refused]} if a.refused else {})
            for a in agents
        ]
        whole = views.cluster(state) | {"agents": agent_rows, "directory": views.nodes(state), "clocks": clocks}
        whole |= {"bootstrap": context.bootstrap}
        typer.echo(json.dumps(whole))
        return
    broker = asked()
    assert broker is not None, "the context came from it"
    out.print(f"broker {broker.bootstrap}, named by {broker.origin}")
    _print_status(state)
    table = Table("agent", "term", "epoch", "state", box=None, padding=(0, 2))
    for a in agents:
        table.add_row(a.role, str(a.term), str(a.epoch), "caught up" if a.caught_up else f"[yellow]{a.lag}[/yellow]")
    out.print(table)
    for one in (refused for a in agents for refused in a.refused):
        out.print(printable(refused_words(one)), markup=False)
    for line in clocks:
        out.print(line, markup=False)


def _cached_status(context: Context) -> None:
    from ringlog.cache.reader import CachedReader, TryAgain  # Redis is slow to load and nothing else here needs it
    from ringlog.cache.redis_cache import RedisCache

    if not context.redis:
        fail("no_cache", "no Redis is known; set RINGLOG_REDIS_URL")
    try:
        view = CachedReader(RedisCache(context.redis, context.cluster), SystemClock().now_us).read()
    except TryAgain as again:
        fail("try_again", str(again))
    typer.echo(json.dumps({"epoch": view.epoch, "age_s": view.age_s, "nodes": view.nodes}))


def _print_status(state: ClusterState) -> None:
    generation = state.generations[-1] if state.generations else None
    out.print(f"cluster [bold]{state.name}[/bold] {state.cluster_id}  epoch {state.epoch}")
    if generation is not None:
        streams = sum(len(r.streams) for r in generation.ranges)
        out.print(f"CDC generation {generation.id} ({generation.status}), {streams} streams")
    table = Table("node", "state", "tokens", "address", "datacenter", "rack", box=None, padding=(0, 2))
    for node in sorted(state.nodes.values(), key=lambda n: n.name):
        state_shown = node.state + (", down" if node.down else "")
        table.add_row(node.name, state_shown, str(len(node.tokens)), node.address, node.datacenter, node.rack)
    out.print(table)


def submit(
    command: Annotated[str | None, typer.Argument(help='JSON, e.g. {"command": "Noop"}; none: standard input.')] = None,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 30.0,
    request_id: Annotated[str | None, typer.Option(help="Ask again under the id of an earlier try.")] = None,
    since_epoch: Annotated[int | None, typer.Option(help="The epoch that the earlier try gave.")] = None,
) -> None:
    """Submit one command through the validator and print what became of it, as JSON."""
    try:
        given: Any = json.loads(command if command is not None else sys.stdin.read())
    except (ValueError, RecursionError) as error:
        fail("bad_json", str(error), 2)
    submit_json(
        resolve(bootstrap, cluster), given, True, timeout_s=timeout, request_id=request_id, since_epoch=since_epoch
    )


def withdraw(
    request_id: Annotated[str, typer.Argument(help="The request's id, as the error gave it.")],
    since_epoch: Annotated[int, typer.Argument(help="Its epoch, as the error gave it.")],
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
) -> None:
    """End a request whose fate is open: after this it is applied, or never will be. Prints which, as JSON."""
    with connect(resolve(bootstrap, cluster)) as client:
        ended = client.withdraw(request_id, since_epoch)
    outcome = {AppliedResult: "applied", WithdrawnResult: "withdrawn", ExpiredResult: "expired"}[type(ended)]
    epoch = {} if isinstance(ended, ExpiredResult) else {"epoch": ended.epoch}
    typer.echo(json.dumps({"outcome": outcome, **epoch, "request_id": ended.request_id}))
