"""``ringlog status``, ``health`` and ``doctor``: the health of a cluster for people and for probes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.text import Text

from ringlog.agents.monitoring.health_view import ACTIVE
from ringlog.agents.status import AgentView, read_statuses, views_of
from ringlog.cli.shared.connection import fail, out, used_broker
from ringlog.cli.shared.options import VIEWING, newest, show_view, view_command, with_options
from ringlog.cli.shared.tables import show_table
from ringlog.errors import RinglogError
from ringlog.kernel.generations.packed import streams_in
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Micros, asdict
from ringlog.log.kafka.lag import writer_lags
from ringlog.operator.balancing import last_heard, read_acks
from ringlog.operator.doctor import FAIL, VERDICTS, examine, worst
from ringlog.operator.protection import missing_protection
from ringlog.operator.views import views
from ringlog.operator.views.clocks import seen_until
from ringlog.operator.views.service import recovery_lines
from ringlog.operator.views.summary import OK, WARN, format_truncation, status_view
from ringlog.operator.views.words import (
    OPERATION_COLUMNS,
    format_node_state,
    format_pause,
    format_refused,
    operation_rows,
    printable,
)
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import current as kafka_config
from ringlog.runtime.trust import current as current_trust

CRITICAL = "CRITICAL"
LEVELS = (OK, WARN, CRITICAL)
"""Levels of ``health``; the index is the exit status."""
LEVEL_STYLES = {OK: "green", WARN: "yellow", CRITICAL: "red"}
VERDICT_STYLES = dict(zip(VERDICTS, ("green", "dim", "yellow", "red"), strict=True))


@view_command
def status(
    context: ClusterContext,
    cached: Annotated[bool, typer.Option("--cached", help="Print epoch and nodes from Redis.")] = False,
) -> Iterator[Any]:
    """Show the health of the cluster, its nodes and agents.

    The first line is OK or WARN, and what protection the connections lack. The reasons follow. Then come nodes,
    operations in flight, stuck partitions and agents.
    """
    if cached:
        _cached_status(context)
        return
    state, agents, now, whole = _read(context)
    yield whole
    _print_summary(whole["summary"], whole["insecure"])
    broker = used_broker()
    assert broker is not None, "the context has a broker"
    out.print(f"broker {broker.bootstrap}, set by {broker.origin}")
    if not state.principals:
        out.print(views.NOT_AUTHENTICATED)
    _print_status(state, whole["directory"])
    for pause in whole["pauses"]:
        out.print(printable(format_pause(pause)))
    if whole["operations"]:
        show_table(OPERATION_COLUMNS, operation_rows(whole["operations"], now))
    for zone in whole["zones"]:
        for row in zone["stuck"]:
            out.print(printable(f"zone {zone['zone']}, partition {row['partition']}: {row['waits']}"), markup=False)
    shown = (a.readiness if a.caught_up else Text(a.readiness, "yellow") for a in agents)
    rows = ((a.role, str(a.term), str(a.epoch), readiness) for a, readiness in zip(agents, shown, strict=True))
    show_table(("agent", "term", "epoch", "state"), rows)
    for one in (refused for a in agents for refused in a.refused):
        out.print(printable(format_refused(one)), markup=False)
    for agent in agents:
        if agent.state == ACTIVE and agent.why:
            out.print(f"{agent.role}: {printable(agent.why)}", markup=False)
    for timer in whole["zone_timers"]:
        out.print(printable(f"zone {timer['zone']}: {timer['text']}"), markup=False)
    for line in whole["clocks"]:
        out.print(line, markup=False)
    if whole["truncation"] is not None:
        out.print(format_truncation(whole["truncation"]), markup=False)


def _read(context: ClusterContext) -> tuple[ClusterState, Sequence[AgentView], Micros, dict[str, Any]]:
    """Return the state, the agents, the time of the reading, and the view of ``status``."""
    with ThreadPoolExecutor(5) as pool:  # The reads use separate connections, so they can run in parallel.
        acks = pool.submit(read_acks, context.bootstrap, context.cluster)
        agent_reports = pool.submit(read_statuses, context.bootstrap, context.cluster)
        loads = pool.submit(last_heard, context.bootstrap, context.cluster)
        seen = pool.submit(seen_until, context.bootstrap, context.cluster)
        state = newest(context)
    if any(ack.applied > state.epoch for ack in acks.result().values()):
        state = newest(context)  # The state must contain every acknowledged epoch.
    now = SystemClock().now_us()
    agents = views_of(agent_reports.result(), state.epoch, now)
    lags = writer_lags(context.bootstrap, state)
    whole = status_view(state, acks.result(), loads.result(), agents, lags, seen.result(), now)
    whole["bootstrap"] = context.bootstrap
    connection = context.bootstrap, kafka_config().security, current_trust()
    whole["insecure"] = missing_protection(*connection, has_principals=bool(state.principals))
    return state, agents, now, whole


class Verdicts:
    """The worst verdict of a command, which becomes its exit status."""

    def __init__(self) -> None:
        self.status = 0


def _probe(view: Callable[[ClusterContext, Verdicts], Iterator[Any]], **options: Any) -> None:
    verdicts = Verdicts()
    show_view(lambda context: view(context, verdicts), **options)
    raise typer.Exit(verdicts.status)


def _health() -> None:
    """Show the health in one line, with an exit status for probes.

    The exit status is 0 for OK, 1 for WARN and 2 for CRITICAL: the log cannot be read, no validator works, or a
    recovery is open. The reasons are those of `ringlog status`.
    """


def _judge_health(context: ClusterContext, verdicts: Verdicts) -> Iterator[Any]:
    try:
        state, agents, _, whole = _read(context)
    except RinglogError as error:
        level, reasons = CRITICAL, [f"{error.code}: {getattr(error, 'message', error)}"]
    else:
        works = any(agent.role == "validator" and agent.is_at_work for agent in agents)
        level, reasons = whole["summary"]["level"], whole["summary"]["reasons"]
        level = CRITICAL if not works or in_recovery(state) is not None else level
    verdicts.status = LEVELS.index(level)
    yield {"level": level, "reasons": reasons}
    out.print(Text(level, LEVEL_STYLES[level]))
    for reason in reasons:
        out.print(printable(f"  {reason}"), markup=False)


def _doctor() -> None:
    """Examine the cluster, its brokers and this machine.

    Each finding has a verdict (`ok`, `warn`, `fail`, or `skipped` without a broker) and a remedy. The exit status is 1
    if a check fails.
    """


def _judge_parts(context: ClusterContext, verdicts: Verdicts) -> Iterator[Any]:
    findings = list(examine(context, newest))
    verdicts.status = int(worst(findings) == FAIL)
    yield {"verdict": worst(findings), "findings": [asdict(one) for one in findings]}
    rows = [(one.check, Text(one.verdict, VERDICT_STYLES[one.verdict]), printable(one.text)) for one in findings]
    show_table(("check", "verdict", "finding"), rows)
    for one in findings:
        for fix in one.fixes:
            out.print(printable(f"{one.check}: {fix}"), markup=False)


health = with_options(_health, VIEWING, lambda _verb, **options: _probe(_judge_health, **options))
doctor = with_options(_doctor, VIEWING, lambda _verb, **options: _probe(_judge_parts, **options))


def _print_summary(found: dict[str, Any], insecure: Sequence[str]) -> None:
    """Print the level and the missing protection in a line, and a line for each reason."""
    level = Text(found["level"], "green" if found["level"] == OK else "yellow")
    out.print(level.append(f", insecure: {', '.join(insecure)}", "red") if insecure else level)
    for reason in found["reasons"]:
        out.print(printable(f"  {reason}"), markup=False)


def _cached_status(context: ClusterContext) -> None:
    from ringlog.cache.reader import CachedReader, CacheNotReady  # The Redis client is slow to load.
    from ringlog.cache.redis_cache import RedisCache

    if not context.redis:
        fail("no_cache", "no Redis is configured; set RINGLOG_REDIS_URL")
    try:
        view = CachedReader(RedisCache(context.redis, context.cluster), SystemClock().now_us).read()
    except CacheNotReady as again:
        fail("try_again", str(again))
    typer.echo(json.dumps({"epoch": view.epoch, "age_s": view.age_s, "nodes": view.nodes}))


def _print_status(state: ClusterState, directory: list[dict[str, Any]]) -> None:
    for line in recovery_lines(state):
        out.print(line, style="red", markup=False)
    generation = state.generations[-1] if state.generations else None
    out.print(Text.assemble("cluster ", (state.name, "bold"), f" {state.cluster_id}  epoch {state.epoch}"))
    out.print(f"chain {state.epoch}:{state.chain.hex()}", style="dim")
    if generation is not None:
        streams = streams_in(generation.ranges)
        out.print(f"CDC generation {generation.id} ({generation.status}), {streams} streams")
    rows = [
        (row["name"], *format_node_state(row), str(len(row["tokens"])), row["address"], row["datacenter"], row["rack"])
        for row in directory
    ]
    show_table(("node", "state", "heard", "tokens", "address", "datacenter", "rack"), rows)
