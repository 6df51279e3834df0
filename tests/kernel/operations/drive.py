"""Driving operations through their rules without a log: each accepted command makes the next epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState, Generation, Operation
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.operations.kinds import kind_of, next_stage
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.registry import RULES
from ringlog.kernel.values import Command, GenerationRange, StreamReport, Witness

SEED = bytes(range(16))


def decided(state: ClusterState, command: Command) -> Decision:
    """The decision on the next entry."""
    context = EntryContext(state.epoch + 1, f"s{state.epoch + 1}", 1_000 * (state.epoch + 1))
    return RULES[type(command)](state, command, context)


def applied(state: ClusterState, command: Command) -> ClusterState:
    """The next state; the command must be accepted."""
    decision = decided(state, command)
    assert isinstance(decision, Accepted), decision
    return replace(decision.state, epoch=state.epoch + 1, time=1_000 * (state.epoch + 1))


def refused(state: ClusterState, command: Command) -> Rejected:
    """The rejection; the command must be refused."""
    decision = decided(state, command)
    assert isinstance(decision, Rejected), decision
    return decision


def joining(state: ClusterState, node: str, tokens: Iterable[int]) -> tuple[ClusterState, str]:
    """The state after an admitted join, and the operation's id."""
    after = applied(state, Join(node, tuple(tokens), SEED))
    return after, f"join-{after.epoch}"


def begun(state: ClusterState, command: Command) -> tuple[ClusterState, str]:
    """The state after an admitted request, and the operation's id."""
    after = applied(state, command)
    return after, next(found.id for found in after.operations.values() if found.marks[0].epoch == after.epoch)


def everyone(state: ClusterState) -> tuple[Witness, ...]:
    """All nodes have acknowledged all there is."""
    return tuple(Witness(node, state.epoch, state.epoch) for node in sorted(state.nodes))


def report_of(operation: Operation) -> StreamReport:
    """The joiner's report."""
    return StreamReport(operation.node, operation.id, 17, "00ff")


def with_generation(state: ClusterState, operation: Operation, status: str = "published") -> ClusterState:
    """The state as if a generation made for the operation had been committed, and published if ``status`` says so."""
    ends = sorted(target_owners(state))
    ranges = tuple(GenerationRange(end, 12, (b"\0" * 16,)) for end in ends)
    published = state.epoch if status == "published" else None
    generation = Generation(f"g-{operation.id}", 1, ranges, status, state.epoch, published, None, ())
    made = replace(operation, generation=generation.id)
    return replace(
        state,
        generations=(*(g for g in state.generations if g.id != generation.id), generation),
        operations=state.operations.set(made.id, made),
    )


def advance_of(state: ClusterState, operation: str) -> AdvanceOperation:
    """The command that moves the operation one stage on, with every witness and report that could be asked for."""
    found = state.operations[operation]
    to = next_stage(found)
    assert to is not None
    gaining = gaining_nodes(found) if found.stage in REPORTED_STAGES else ()
    reports = tuple(StreamReport(node, found.id, 17, "00ff") for node in gaining)
    return AdvanceOperation(operation, to, everyone(state), reports)


def stepped(state: ClusterState, operation: str) -> ClusterState:
    """One stage on, with every node acknowledging and the generation at hand."""
    found = state.operations[operation]
    if found.stage == "commit_cdc_generation":
        state = with_generation(state, found)
    return applied(state, advance_of(state, operation))


def driven(state: ClusterState, operation: str, stage: str) -> ClusterState:
    """On to ``stage``."""
    while state.operations[operation].stage != stage:
        state = stepped(state, operation)
    return state


def at_every_stage(state: ClusterState, operation: str) -> dict[str, ClusterState]:
    """Stage to the state in which the operation has just entered it, from the present one to the end."""
    seen = {state.operations[operation].stage: state}
    stages = kind_of(state.operations[operation]).stages
    for stage in stages[stages.index(state.operations[operation].stage) + 1 :]:
        state = stepped(state, operation)
        seen[stage] = state
    return seen
