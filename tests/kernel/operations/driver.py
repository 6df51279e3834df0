"""Advance operations with their rules but without a log. Each accepted command makes the next epoch."""

from __future__ import annotations

from collections.abc import Iterable

from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState, Generation, Operation
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.operations.kinds import kind_of, next_stage
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.registry import RULES
from ringlog.kernel.values import Command, GenerationRange, StreamReport, Witness, replace

SEED = bytes(range(16))


def decided(state: ClusterState, command: Command) -> Decision:
    """Return the decision on the next entry."""
    context = EntryContext(state.epoch + 1, f"s{state.epoch + 1}", 1_000 * (state.epoch + 1))
    return RULES[type(command)](state, command, context)


def applied(state: ClusterState, command: Command) -> ClusterState:
    """Return the next state, and assert that the command is accepted."""
    decision = decided(state, command)
    assert isinstance(decision, Accepted), decision
    return replace(decision.state, epoch=state.epoch + 1, time=1_000 * (state.epoch + 1))


def refused(state: ClusterState, command: Command) -> Rejected:
    """Return the rejection, and assert that the command is rejected."""
    decision = decided(state, command)
    assert isinstance(decision, Rejected), decision
    return decision


def joining(state: ClusterState, node: str, tokens: Iterable[int]) -> tuple[ClusterState, str]:
    """Return the state after an admitted join, and the operation's id."""
    after = applied(state, Join(node, tuple(tokens), SEED))
    return after, f"join-{after.epoch}"


def admitted(state: ClusterState, command: Command) -> tuple[ClusterState, str]:
    """Return the state after an admitted request, and the operation's id."""
    after = applied(state, command)
    return after, next(found.id for found in after.operations.values() if found.marks[0].epoch == after.epoch)


def all_witnesses(state: ClusterState) -> tuple[Witness, ...]:
    """Return the acknowledgement of the current epoch by each node."""
    return tuple(Witness(node, state.epoch, state.epoch) for node in sorted(state.nodes))


def report_of(operation: Operation) -> StreamReport:
    """Return the stream report of the joining node."""
    return StreamReport(operation.node, operation.id, 17, "00ff")


def with_generation(state: ClusterState, operation: Operation, status: str = "published") -> ClusterState:
    """Return the state with a committed generation for the operation, published if ``status`` says so."""
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
    """Return the command for the next stage, with all possible acknowledgements and reports."""
    found = state.operations[operation]
    to = next_stage(found)
    assert to is not None
    gaining = gaining_nodes(found) if found.stage in REPORTED_STAGES else ()
    reports = tuple(StreamReport(node, found.id, 17, "00ff") for node in gaining)
    return AdvanceOperation(operation, to, all_witnesses(state), reports)


def stepped(state: ClusterState, operation: str) -> ClusterState:
    """Advance by one stage, with all acknowledgements and the generation available."""
    found = state.operations[operation]
    if found.stage == "commit_cdc_generation":
        state = with_generation(state, found)
    return applied(state, advance_of(state, operation))


def driven(state: ClusterState, operation: str, stage: str) -> ClusterState:
    """Advance to ``stage``."""
    while state.operations[operation].stage != stage:
        state = stepped(state, operation)
    return state


def at_every_stage(state: ClusterState, operation: str) -> dict[str, ClusterState]:
    """Return stage to state, for each stage from the current one to the last."""
    seen = {state.operations[operation].stage: state}
    stages = kind_of(state.operations[operation]).stages
    for stage in stages[stages.index(state.operations[operation].stage) + 1 :]:
        state = stepped(state, operation)
        seen[stage] = state
    return seen
