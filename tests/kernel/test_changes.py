"""Change records: the sum of all differences is the projection of the last state, in the published order."""

import random

import pytest

from ringlog.kernel.changes import (
    CHANGE_TOPICS,
    EPOCHS,
    HEAD,
    Change,
    ChangeRecord,
    EpochChange,
    GenerationChange,
    PlacementChange,
    StreamsChange,
    diff,
    project,
)
from ringlog.kernel.commands.cdc.generations import CommitCdcGeneration, PublishCdcGeneration, parts_of
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.commands.schema.user_types import DropType
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.describe import generate_for, ranges_digest, to_prepare
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, in_order
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.sections import CDC_GENERATIONS, CDC_STREAMS, PLACEMENTS, SCHEMA
from ringlog.kernel.values import Witness, replace
from tests.kernel.entries import applied, entry, founded, node, random_command, random_history

SEED = bytes(range(16))
Topics = dict[tuple[str, str], Change]


def apply_records(topics: Topics, records: tuple[ChangeRecord, ...]) -> None:
    """Apply the records to a compacted topic."""
    for record in records:
        if record.value is None:
            del topics[record.topic, record.key]
        else:
            topics[record.topic, record.key] = record.value


def without_epochs(topics: Topics) -> Topics:
    return {key: replace(value, epoch=0) for key, value in topics.items()}


@pytest.mark.parametrize("seed", range(16))
def test_all_differences_together_are_the_projection(seed: int) -> None:
    draw = random.Random(seed)
    state = founded(operations_kept_max=2)
    topics: Topics = {}
    apply_records(topics, diff(EMPTY_STATE, state))
    for _ in range(400):
        after = fold(state, entry(state, random_command(draw, state))).state
        before = dict(topics)
        records = diff(state, after)
        assert [CHANGE_TOPICS.index(record.topic) for record in records] == sorted(
            CHANGE_TOPICS.index(record.topic) for record in records
        )
        assert len({(record.topic, record.key) for record in records}) == len(records), "one record for each key"
        apply_records(topics, records)
        changed = {key for key, value in topics.items() if before.get(key) != value}
        assert all(topics[key].epoch == after.epoch for key in changed)
        state = after
    assert without_epochs(topics) == without_epochs(project(state))
    assert topics[EPOCHS, HEAD] == EpochChange(
        state.epoch, state.cluster_id, state.state_id, state.time, state.chain.hex()
    )


def test_a_gap_of_several_epochs_is_one_difference() -> None:
    draw = random.Random(99)
    states = [founded()]
    for _ in range(300):
        states.append(fold(states[-1], entry(states[-1], random_command(draw, states[-1]))).state)
    topics: Topics = {}
    for before, after in zip([EMPTY_STATE, *states[::40]], [*states[::40], states[-1]], strict=True):
        apply_records(topics, diff(before, after))
    assert without_epochs(topics) == without_epochs(project(states[-1]))


def test_an_unchanged_state_has_no_difference() -> None:
    state = founded()
    assert diff(state, state) == ()
    assert diff(EMPTY_STATE, EMPTY_STATE) == ()
    after = applied(state, Noop())
    assert diff(state, after) == (
        ChangeRecord(
            EPOCHS, HEAD, EpochChange(after.epoch, after.cluster_id, after.state_id, after.time, after.chain.hex())
        ),
    )


def joined(state: ClusterState, number: int, *tokens: int) -> ClusterState:
    """Return the state after the join of node ``number`` has reached the stage that waits for a generation."""
    registration = node(number)
    state = applied(state, registration, Join(registration.id, tokens, SEED))
    operation = f"join-{state.epoch}"
    for stage in ("prepared", "commit_cdc_generation"):
        state = applied(
            state, AdvanceOperation(operation, stage, (Witness(registration.id, state.epoch, state.epoch),))
        )
    return state


def test_a_committed_generation_is_published_after_its_streams() -> None:
    state = joined(founded(), 1, -100, 100)
    wanted = to_prepare(state)
    assert wanted is not None
    ranges = generate_for(state, wanted[1])
    with_data = applied(state, *parts_of(wanted[0], ranges))
    assert not [record for record in diff(state, with_data) if record.topic.startswith("cdc")]
    committed = applied(with_data, CommitCdcGeneration(wanted[0], 1_000, ranges_digest(ranges)))
    records = [record for record in diff(with_data, committed) if record.topic.startswith("cdc")]
    assert [record.topic for record in records] == [CDC_STREAMS, CDC_STREAMS, CDC_GENERATIONS]
    epoch = committed.epoch
    assert records[0] == ChangeRecord(
        CDC_STREAMS, f"{wanted[0]}/-100", StreamsChange(epoch, wanted[0], 1_000, 100, -100, 12, ranges[0].streams, None)
    )
    told_now = records[2].value
    assert isinstance(told_now, GenerationChange)
    assert (told_now.status, told_now.ranges, told_now.streams) == ("committed", 2, 4)
    assert told_now.digest == ranges_digest(ranges)
    published = applied(committed, PublishCdcGeneration(wanted[0]))
    (again,) = (record for record in diff(committed, published) if record.topic.startswith("cdc"))
    assert again.key == wanted[0]
    assert isinstance(again.value, GenerationChange)
    assert (again.value.status, again.value.published) == ("published", published.epoch)


def _without_types(state: ClusterState) -> ClusterState:
    """Return ``state`` after the drop of all user types, unused ones first."""
    while state.types:
        for _, found in in_order(state.types):
            folded = fold(state, entry(state, DropType(found.keyspace, found.name)))
            state = folded.state if folded.outcome.kind is OutcomeKind.APPLIED else state
    return state


def test_tombstones_of_a_dropped_keyspace() -> None:
    state = founded()
    for seed in range(100):
        state = random_history(random.Random(seed), 60)
        if any(placement.ranges for placement in state.placements.values()) and not in_flight(state):
            break
    assert state.placements
    while state.tables:
        _, table = sorted(state.tables.items())[0]
        state = applied(state, DropTable(table.keyspace, table.name))
    state = _without_types(state)
    before = state
    for name in sorted(state.keyspaces):
        state = applied(state, DropKeyspace(name))
    records = diff(before, state)
    assert {record.key for record in records if record.topic == SCHEMA} == {
        f"keyspace/{name}" for name in before.keyspaces
    }
    gone = {
        f"{key}/{end}"
        for key, placement in before.placements.items()
        if key not in state.placements
        for end in placement.ends
    }
    assert gone
    assert {record.key for record in records if record.topic == PLACEMENTS} == gone
    assert all(record.value is None for record in records if record.topic in (SCHEMA, PLACEMENTS))


def test_a_placement_names_readers_writers_and_their_epochs() -> None:
    draw = random.Random(5)
    state = founded()
    while not any(placement.ranges for placement in state.placements.values()):
        state = fold(state, entry(state, random_command(draw, state))).state
    key, placement = next((key, found) for key, found in sorted(state.placements.items()) if found.ranges)
    group = placement.ranges[0]
    assert project(state)[PLACEMENTS, f"{key}/{group.end}"] == PlacementChange(
        state.epoch, key, group.start, group.end, group.read, group.write, group.changed
    )
