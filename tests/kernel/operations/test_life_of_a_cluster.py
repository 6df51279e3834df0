"""From an empty cluster to four nodes, entry by entry through the fold, with the generations that joins really make."""

from __future__ import annotations

from ringlog.kernel.commands.cdc import CommitCdcGeneration, PublishCdcGeneration, parts_of
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.movements import Join
from ringlog.kernel.generations.describe import generate_for, ranges_digest, to_prepare
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.ownership.placements import canonical, nodes_of
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Replication
from tests.kernel.entries import applied, founded, node
from tests.kernel.operations.drive import SEED, advance_of


def _with_generation(state: ClusterState, publish: bool) -> ClusterState:
    """What the coordinator and the publisher do for an operation that waits for its generation."""
    if publish:
        return applied(state, PublishCdcGeneration(state.generations[-1].id))
    wanted = to_prepare(state)
    assert wanted is not None
    generation, seed = wanted
    ranges = generate_for(state, seed)
    state = applied(state, *parts_of(generation, ranges))
    timestamp = 1_000_000 * state.epoch
    return applied(state, CommitCdcGeneration(generation, timestamp, ranges_digest(ranges)))


def _joined(state: ClusterState, number: int, tokens: tuple[int, ...]) -> ClusterState:
    state = applied(state, node(number))
    name = state.node_names[f"n{number}"]
    state = applied(state, Join(name, tokens, SEED))
    operation = f"join-{state.epoch}"
    while (following := next_stage(state.operations[operation])) is not None:
        if following in ("publish_cdc_generation", "write_both_read_old"):
            state = _with_generation(state, publish=following == "write_both_read_old")
        state = applied(state, advance_of(state, operation))
    return state


def test_four_nodes_join_one_after_the_other() -> None:
    state = founded()
    for number in (1, 2, 3):
        state = _joined(state, number, (100 * number,))
    state = applied(state, CreateKeyspace("flights", Replication("simple", 2)))
    state = _joined(state, 4, (150, -150))
    assert [len(generation.ranges) for generation in state.generations] == [1, 2, 3, 5]
    assert all(generation.published is not None for generation in state.generations)
    assert {one.state for one in state.nodes.values()} == {"normal"}
    layout = canonical(Replication("simple", 2), state.token_owners, state.nodes, 0)
    live = state.placements["simple:2"].ranges
    assert [(one.start, one.end, nodes_of(one.read), nodes_of(one.write)) for one in live] == [
        (one.start, one.end, nodes_of(one.read), nodes_of(one.read)) for one in layout
    ]
