"""The balancer's controller: its sources are the nodes' load reports, its planner is ``ringlog.kernel.balance.advice``.

After the take-over it reads the compacted topic ``load`` from the beginning, then new records. It writes to no topic,
so its term in the log is a sufficient fence. Migrations name the planner's term, and the fold rejects them once another
instance is active.

It plans when a section of ``PARTS`` changes, which includes each stage of a tablet, when reports differ, and after
each plan that was not empty. For reports alone it plans at most once in ``nodes / PLANS_PER_ROUND`` of them, so the
number of plans does not grow with the number of nodes. The age of a report counts from the broker's time of the newest
report, never from this machine's clock. If all nodes are silent, their last reports therefore stay valid.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Load balancing".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.measures import kinds_mixed_in
from ringlog.kernel.balance.model import BYTES, CANNOT_MEET, STATISTICS_MISSING, MeasuredLoads
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.balance.source import limits_of
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import BALANCER, MigrateTablets
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, NodeId, Value, replace
from ringlog.protocol.balancer.load_book import ReceivedLoad, ignored, measured, take
from ringlog.protocol.controller import TABLETS, Controller, Proposal, Rejection, RoundPlan, Wait, control, proposal_of
from ringlog.protocol.effects import Effect, Newest, Steps

ROLE: Final = BALANCER
PARTS: Final = ("settings", "nodes", "keyspaces", "tables", "table_ids", "operations", "tablets", "pauses")
"""The state sections that a plan depends on."""
PLANS_PER_ROUND: Final = 16
"""The most plans for one report of each node, if nothing else changes."""
REPORTED_MAX: Final = 100
"""The most impossible drains, and the most refused moves, that are reported one by one."""


class ReadLoads(Effect[Sequence[ReceivedLoad]], Value):
    """Outcome: each record of the topic ``load``, from its beginning, as ``load_book.ReceivedLoad``."""


class NewLoads(Effect[Sequence[ReceivedLoad]], Value):
    """Wait. Outcome: the new records of the topic. A report or an epoch is news."""

    wait: Wait


class BalancerController(Controller):
    """One term of the balancer.

    ``_parts``: the epochs of the last changes of ``PARTS``, and ``_loads``: the loads, both at the last evaluation;
    ``_fresh``: records since then. ``_seen``: the inputs of the last plan.
    """

    fault_point = "balancing"

    def __init__(self) -> None:
        self._reports = Reports()
        self._seen: tuple[object, ...] = ()
        self._parts: tuple[int, ...] = ()
        self._loads: dict[NodeId, MeasuredLoads] = {}
        self._fresh = 0

    async def start(self) -> None:
        """Read all load reports."""
        records = await ReadLoads()
        self._reports = take(self._reports, records, await Newest())

    async def update(self, wait: Wait) -> None:
        """Read new load reports."""
        self._came = await NewLoads(wait)

    async def plan(self) -> RoundPlan | None:
        """Return the next decisions and migrations."""
        state = await Newest()
        self._reports = take(self._reports, self._came, state)
        self._fresh += len(self._came)
        parts = tuple(state.changed.get(part, 0) for part in PARTS)
        if parts == self._parts and self._fresh * PLANS_PER_ROUND < len(self._loads):
            return None
        loads = measured(self._reports, state)
        self._parts, self._loads, self._fresh = parts, loads, 0
        if (inputs := (parts, _used(state, loads), ignored(self._reports, state))) == self._seen:
            return None
        self._seen = inputs
        advice = advise(state, loads)
        return RoundPlan(proposals(state, advice), tuple(complaints(state, advice, self._reports)))

    def forget_inputs(self) -> None:
        """Evaluate and plan in the next round."""
        self._seen, self._parts = (), ()


def balance() -> Steps[None]:
    """Serve one term of the balancer. Only an exception of the driver ends it."""
    return control(BalancerController())


def proposals(state: ClusterState, advice: Advice) -> tuple[Proposal, ...]:
    """Return one proposal for each decision, so that a rejected one leaves the others, and one for all migrations."""
    return tuple(
        proposal_of(ROLE, state, command.table if isinstance(command, DecideResize) else TABLETS, command)
        for command in (_of_this_term(state, command) for command in advice.commands)
    )


def _of_this_term(state: ClusterState, command: Command) -> Command:
    """Return the command with the acting term. A resize decision has a sequence number instead."""
    acting = state.terms.get(ROLE)
    return replace(command, term=acting.term) if acting is not None and isinstance(command, MigrateTablets) else command


def complaints(state: ClusterState, advice: Advice, reports: Reports) -> Iterator[Rejection]:
    """Yield the rejections for operators: drains that cannot succeed, planned moves that the state refuses, ignored
    reports, and nodes that are not balanced because a size is missing. Each ends with its cause.
    """
    for row in advice.plan.obstacles[:REPORTED_MAX]:
        name = state.nodes[row.node].name
        yield Rejection(f"{row.table}/{row.tablet}", "drain", row.code, f"on {name}, rack {row.rack}: {row.detail}")
    if (more := len(advice.plan.obstacles) - REPORTED_MAX) > 0:
        yield Rejection("drain", "drain", advice.plan.obstacles[-1].code, f"{more} more replicas have no target shard")
    for stop in advice.plan.stops:
        if stop.code == CANNOT_MEET:
            yield Rejection(stop.what, "DecideResize", stop.code, stop.detail)
    for one in advice.refused[:REPORTED_MAX]:
        yield Rejection(f"{one.migration.table}/{one.migration.tablet}", "MigrateTablets", one.code, one.detail)
    for node, code in ignored(reports, state):
        name = state.nodes[node].name if node else "a node that is not registered, or an unreadable record"
        yield Rejection("load", "NodeLoad", code, f"the last report of {name} is ignored")
    for stop in dict.fromkeys(advice.plan.stops):
        if stop.code == STATISTICS_MISSING:
            yield Rejection("load", "NodeLoad", stop.code, f"{state.nodes[stop.what].name}: {stop.detail}")


def _used(state: ClusterState, loads: Mapping[NodeId, MeasuredLoads]) -> dict[NodeId, MeasuredLoads]:
    """Return the loads without kinds that the settings ignore, such as rates of reads, which differ in each report."""
    used = (BYTES, *kinds_mixed_in(limits_of(state)))
    return {node: replace(one, loads={kind: one.loads.get(kind, {}) for kind in used}) for node, one in loads.items()}
