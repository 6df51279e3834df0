"""``ringlog status``: the cluster at a glance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.text import Text

from ringlog.agents.status import read_said, views_of
from ringlog.agents.watched import ACTIVE
from ringlog.cli.connection import asked, fail, out
from ringlog.cli.verbs import looks, newest, show_table
from ringlog.kernel.generations.packed import streams_in
from ringlog.kernel.operations.node_states import node_statuses
from ringlog.kernel.state import ClusterState
from ringlog.operator import views
from ringlog.operator.clocks import clock_lines, seen_until
from ringlog.operator.service import recovery_lines
from ringlog.operator.shown import printable
from ringlog.operator.words import pause_words, refused_words
from ringlog.operator.zones import timers_view
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext


@looks
def status(
    context: ClusterContext,
    cached: Annotated[bool, typer.Option("--cached", help="Read the state from Redis instead of the log.")] = False,
) -> Iterator[Any]:
    """The cluster at a glance: epoch, nodes, operations, generations, and whether each agent is caught up."""
    if cached:
        _cached_status(context)
        return
    with ThreadPoolExecutor() as beside:  # three questions to the broker, each with connections of its own
        said = beside.submit(read_said, context.bootstrap, context.cluster)
        seen = beside.submit(seen_until, context.bootstrap, context.cluster)
        state = newest(context)
    now = SystemClock().now_us()
    agents = views_of(said.result(), state.epoch, now)
    clocks = clock_lines(state, now, seen.result())
    timers = timers_view(state)
    whole = views.cluster(state) | {"agents": [views.agent(a) for a in agents], "directory": views.nodes(state)}
    yield whole | {"clocks": clocks, "zone_timers": timers, "bootstrap": context.bootstrap}
    broker = asked()
    assert broker is not None, "the context came from it"
    out.print(f"broker {broker.bootstrap}, named by {broker.origin}")
    _print_status(state)
    for pause in whole["pauses"]:
        out.print(printable(pause_words(pause)))
    shown = (a.standing if a.caught_up else Text(a.standing, "yellow") for a in agents)
    rows = ((a.role, str(a.term), str(a.epoch), standing) for a, standing in zip(agents, shown, strict=True))
    show_table(("agent", "term", "epoch", "state"), rows)
    for one in (refused for a in agents for refused in a.refused):
        out.print(printable(refused_words(one)), markup=False)
    for agent in agents:
        if agent.state == ACTIVE and agent.why:
            out.print(f"{agent.role}: {printable(agent.why)}", markup=False)
    for timer in timers:
        out.print(printable(f"zone {timer['zone']}: {timer['text']}"), markup=False)
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
    out.print(Text.assemble("cluster ", (state.name, "bold"), f" {state.cluster_id}  epoch {state.epoch}"))
    if generation is not None:
        streams = streams_in(generation.ranges)
        out.print(f"CDC generation {generation.id} ({generation.status}), {streams} streams")
    rows = []
    statuses = node_statuses(state)
    for node in sorted(state.nodes.values(), key=lambda n: n.name):
        state_shown = statuses[node.id].state + (", down" if node.down else "")
        rows.append((node.name, state_shown, str(len(node.tokens)), node.address, node.datacenter, node.rack))
    show_table(("node", "state", "tokens", "address", "datacenter", "rack"), rows)
