"""The balancer at work: knows the newest load of each node, looks at each change of what it plans with, asks the
validator for the next migrations and decisions, and again as long as there are some.

After its take-over it reads the compacted topic ``load`` from the beginning, then what comes in. What it asks for is a
pure function of the state and of these reports (``ringlog.kernel.balance.advice``), under request ids that are one of
subject, epoch and command. It writes to no topic of its own, so its term in the log is all the fence it needs:
migrations name the term that they were planned in, and are refused once another instance acts.

It plans when the coordinator has nothing to do for a node operation, on every edge of a stage of a tablet (which is an
entry that changes tablets), when reports come, and after each plan that was not empty. Reports age by the broker's time
of the newest one, so its own clock moves nothing; while all nodes are silent their last words stand.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Load balancing".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.resizes import DecideResize
from ringlog.kernel.commands.tablets import BALANCER, MigrateTablets
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command
from ringlog.protocol.coordinator import Note, Wait, ask
from ringlog.protocol.coordinator_core import TABLETS, Proposal, Refusal, proposal_of
from ringlog.protocol.effects import At, Newest, Steps
from ringlog.protocol.load_book import measured, take
from ringlog.protocol.role import Accept, Look

ROLE: Final = BALANCER
_PARTS: Final = ("settings", "nodes", "keyspaces", "tables", "operations", "tablets", "pauses")
"""What a plan depends on."""


@dataclass(frozen=True, slots=True)
class ReadLoads:
    """Outcome: what is in the topic ``load`` (``load_book.Heard``), from its beginning."""


@dataclass(frozen=True, slots=True)
class NewLoads:
    """Wait; outcome: what came into the topic since the last time. A report or an epoch is news."""

    wait: Wait


def balance() -> Steps[None]:
    """Serve one term of the balancer; ends by what the driver raises."""
    heard = yield ReadLoads()
    reports = take(Reports(), heard, (yield Newest()))
    yield Accept()
    seen: tuple[object, ...] = ()
    wait = Wait.NOTHING
    while True:
        heard = yield NewLoads(wait)
        yield Look()
        state: ClusterState = yield Newest()
        reports = take(reports, heard, state)
        wait = Wait.NEWS
        if (inputs := _inputs(state, reports)) == seen:
            continue
        seen = inputs
        advice = advise(state, measured(reports))
        refused = []
        for proposal in proposals(state, advice):
            yield At("balancing")
            refusal = yield from ask(proposal)
            if refusal is not None:
                refused.append(refusal)
            wait = Wait.NOTHING
        yield Note((*complaints(state, advice, reports), *refused))
        if refused:
            seen, wait = (), Wait.PAUSE


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
    """What operators should hear of: drains that cannot succeed, planned moves that the state refuses, reports that
    are ignored.
    """
    for row in advice.plan.obstacles:
        name = state.nodes[row.node].name
        yield Refusal(f"{row.table}/{row.tablet}", "drain", row.code, f"on {name}, rack {row.rack}: {row.detail}")
    for one in advice.refused:
        yield Refusal(f"{one.migration.table}/{one.migration.tablet}", "MigrateTablets", one.code, one.detail)
    for code, count in sorted(reports.ignored.items()):
        yield Refusal("load", "NodeLoad", code, f"{count} reports ignored")


def _inputs(state: ClusterState, reports: Reports) -> tuple[Any, ...]:
    """Equal as long as a plan would be the same."""
    return (*(state.changed.get(part, 0) for part in _PARTS), reports.newest)
