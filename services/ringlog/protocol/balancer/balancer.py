"""The balancer at work: knows the newest load of each node, looks at each change of what it plans with, asks the
validator for the next migrations and decisions, and again as long as there are some.

After its take-over it reads the compacted topic ``load`` from the beginning, then what comes in. What it asks for is a
pure function of the state and of these reports (``ringlog.kernel.balance.advice``), under request ids that are one of
subject, epoch and command. It writes to no topic of its own, so its term in the log is all the fence it needs:
migrations name the term that they were planned in, and are refused once another instance acts.

It plans when the coordinator has nothing to do for a node operation, on every edge of a stage of a tablet (which is an
entry that changes tablets), when reports say something else, and after each plan that was not empty. For reports
alone it plans at most once in ``nodes / PLANS_PER_ROUND`` of them, so the number of plans does not grow with that of
nodes. Reports age by the broker's time of the newest one, so its own clock moves nothing; while all nodes are silent
their last words stand.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Load balancing".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.measures import kinds_mixed_in
from ringlog.kernel.balance.model import BYTES, CANNOT_MEET, STATISTICS_MISSING, MeasuredLoads
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.balance.source import limits_of
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import BALANCER, MigrateTablets
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, NodeId
from ringlog.protocol.balancer.load_book import ignored, measured, take
from ringlog.protocol.coordinator.coordinator import ReportRejections, Wait, ask
from ringlog.protocol.coordinator.core import TABLETS, Proposal, Refusal, proposal_of
from ringlog.protocol.effects import FaultPoint, Newest, Steps
from ringlog.protocol.role import Accept, CheckSuperseded

ROLE: Final = BALANCER
_PARTS: Final = ("settings", "nodes", "keyspaces", "tables", "table_ids", "operations", "tablets", "pauses")
"""What a plan depends on."""
PLANS_PER_ROUND: Final = 16
"""The most plans for one report of each node, if nothing else changes."""
REPORTED_MAX: Final = 100
"""The most impossible drains, and the most refused moves, that are reported one by one."""


@dataclass(frozen=True, slots=True)
class ReadLoads:
    """Outcome: what is in the topic ``load`` (``load_book.Heard``), from its beginning."""


@dataclass(frozen=True, slots=True)
class NewLoads:
    """Wait; outcome: what came into the topic since the last time. A report or an epoch is news."""

    wait: Wait


def balance() -> Steps[None]:
    """Serve one term of the balancer; ends by what the driver raises."""
    records = yield ReadLoads()
    reports = take(Reports(), records, (yield Newest()))
    yield Accept()
    seen: tuple[object, ...] = ()
    parts: tuple[int, ...] = ()
    loads: dict[NodeId, MeasuredLoads] = {}
    fresh, wait = 0, Wait.NOTHING
    while True:
        records = yield NewLoads(wait)
        yield CheckSuperseded()
        state: ClusterState = yield Newest()
        reports = take(reports, records, state)
        fresh += len(records)
        wait = Wait.NEWS
        now = tuple(state.changed.get(part, 0) for part in _PARTS)
        if now == parts and fresh * PLANS_PER_ROUND < len(loads):
            continue
        parts, loads, fresh = now, measured(reports, state), 0
        if (inputs := (parts, _used(state, loads), ignored(reports, state))) == seen:
            continue
        seen = inputs
        advice = advise(state, loads)
        refused = []
        for proposal in proposals(state, advice):
            yield FaultPoint("balancing")
            refusal = yield from ask(proposal)
            if refusal is not None:
                refused.append(refusal)
            wait = Wait.NOTHING
        yield ReportRejections((*complaints(state, advice, reports), *refused))
        if refused:
            seen, parts, wait = (), (), Wait.PAUSE


def proposals(state: ClusterState, advice: Advice) -> tuple[Proposal, ...]:
    """What to ask for: each decision by itself, since another one must not fail with it; all migrations together."""
    return tuple(
        proposal_of(ROLE, state, command.table if isinstance(command, DecideResize) else TABLETS, command)
        for command in (_of_this_term(state, command) for command in advice.commands)
    )


def _of_this_term(state: ClusterState, command: Command) -> Command:
    """A plan with the term it is made in. A decision on sizes needs none: it has a number."""
    acting = state.terms.get(ROLE)
    return replace(command, term=acting.term) if acting is not None and isinstance(command, MigrateTablets) else command


def complaints(state: ClusterState, advice: Advice, reports: Reports) -> Iterator[Refusal]:
    """Refusals that operators should know: drains that cannot succeed, planned moves that the state refuses, ignored
    reports, and nodes that are not balanced because a size is missing. Each ends with its cause.
    """
    for row in advice.plan.obstacles[:REPORTED_MAX]:
        name = state.nodes[row.node].name
        yield Refusal(f"{row.table}/{row.tablet}", "drain", row.code, f"on {name}, rack {row.rack}: {row.detail}")
    if (more := len(advice.plan.obstacles) - REPORTED_MAX) > 0:
        yield Refusal("drain", "drain", advice.plan.obstacles[-1].code, f"{more} more replicas have nowhere to go")
    for stop in advice.plan.stops:
        if stop.code == CANNOT_MEET:
            yield Refusal(stop.what, "DecideResize", stop.code, stop.detail)
    for one in advice.refused[:REPORTED_MAX]:
        yield Refusal(f"{one.migration.table}/{one.migration.tablet}", "MigrateTablets", one.code, one.detail)
    for node, code in ignored(reports, state):
        name = state.nodes[node].name if node else "a node that is not registered, or an unreadable record"
        yield Refusal("load", "NodeLoad", code, f"the last report of {name} is ignored")
    for stop in dict.fromkeys(advice.plan.stops):
        if stop.code == STATISTICS_MISSING:
            yield Refusal("load", "NodeLoad", stop.code, f"{state.nodes[stop.what].name}: {stop.detail}")


def _used(state: ClusterState, loads: Mapping[NodeId, MeasuredLoads]) -> dict[NodeId, MeasuredLoads]:
    """The loads without kinds that the settings ignore, such as rates of reads, which differ in each report."""
    used = (BYTES, *kinds_mixed_in(limits_of(state)))
    return {node: replace(one, loads={kind: one.loads.get(kind, {}) for kind in used}) for node, one in loads.items()}
