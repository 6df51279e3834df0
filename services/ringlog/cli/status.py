"""``ringlog status``: the cluster at a glance."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from rich.table import Table

from ringlog.agents.status import read_said, views_of
from ringlog.cli.connection import Bootstrap, Cluster, Json, asked, connect, fail, out, resolve
from ringlog.kernel.generations.packed import streams_in
from ringlog.kernel.operations.node_states import node_statuses
from ringlog.kernel.state import ClusterState
from ringlog.operator import views
from ringlog.operator.clocks import clock_lines, seen_until
from ringlog.operator.service import recovery_lines
from ringlog.operator.shown import printable
from ringlog.operator.words import refused_words
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext


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
    with ThreadPoolExecutor() as beside:  # three questions to the broker, each with connections of its own
        said = beside.submit(read_said, context.bootstrap, context.cluster)
        seen = beside.submit(seen_until, context.bootstrap, context.cluster)
        with connect(context) as client:
            state = client.read_barrier()
    now = SystemClock().now_us()
    agents = views_of(said.result(), state.epoch, now)
    clocks = clock_lines(state, now, seen.result())
    if as_json:
        whole = views.cluster(state) | {"agents": [views.agent(a) for a in agents], "directory": views.nodes(state)}
        typer.echo(json.dumps(whole | {"clocks": clocks, "bootstrap": context.bootstrap}))
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


def _cached_status(context: ClusterContext) -> None:
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
    for line in recovery_lines(state):
        out.print(line, style="red", markup=False)
    generation = state.generations[-1] if state.generations else None
    out.print(f"cluster [bold]{state.name}[/bold] {state.cluster_id}  epoch {state.epoch}")
    if generation is not None:
        streams = streams_in(generation.ranges)
        out.print(f"CDC generation {generation.id} ({generation.status}), {streams} streams")
    table = Table("node", "state", "tokens", "address", "datacenter", "rack", box=None, padding=(0, 2))
    statuses = node_statuses(state)
    for node in sorted(state.nodes.values(), key=lambda n: n.name):
        state_shown = statuses[node.id].state + (", down" if node.down else "")
        table.add_row(node.name, state_shown, str(len(node.tokens)), node.address, node.datacenter, node.rack)
    out.print(table)
