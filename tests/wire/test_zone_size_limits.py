"""Records of zones respect the weights and bounds that commands about zones are checked against."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel import size_limits as carried
from ringlog.kernel.changes import ChangeRecord, diff
from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    SwitchStable,
    TriggerRebalance,
    ZoneCopy,
)
from ringlog.kernel.commands.placement.zones import (
    DATA_NODES_MAX,
    PROFILES_MAX,
    AlterZone,
    CreateZone,
    DropZone,
    SetDataNodes,
)
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.model.zones import (
    HIGH_AVAILABILITY,
    NEVER,
    REPLICAS_MAX,
    Zone,
    ZoneCancel,
    ZoneLink,
    ZonePartition,
    ZoneRevisions,
    ZoneStep,
    partition_key,
)
from ringlog.kernel.size_limits import CHANGE_BYTES_MAX, weight_of_partition
from ringlog.kernel.values import Command, replace
from ringlog.kernel.zones.filter import LENGTH_MAX
from ringlog.kernel.zones.queue import STEPS_MAX
from ringlog.kernel.zones.rebalance import CHAIN_MAX, RESULTS
from ringlog.wire.changes import encode_change_record
from tests.kernel.entries import applied, entry, founded, node, uuid
from tests.kernel.tablets.clusters import normal

LATEST = 2**62
NAME = "z" * 48
IDS = tuple(uuid(number, space=2) for number in range(1, REPLICAS_MAX + 1))


def size(record: ChangeRecord) -> int:
    """Return the bytes of a record's key and value."""
    _, key, value = encode_change_record(record)
    return len(key) + len(value or b"")


def size_of(partition: ZonePartition) -> int:
    """Return the size of the record of a zone partition."""
    key = partition_key(partition.zone, partition.number)
    partitions = EMPTY_STATE.zone_partitions.set(key, partition)
    found = diff(EMPTY_STATE, replace(EMPTY_STATE, epoch=LATEST, zone_partitions=partitions))
    return max(size(record) for record in found if record.topic == "zones")


nodes = st.integers(0, REPLICAS_MAX).map(lambda count: IDS[:count])
steps = st.builds(ZoneStep, nodes, nodes, st.booleans(), st.booleans())
partitions = st.builds(
    ZonePartition,
    st.just(NAME),
    st.just(64_999),
    st.none() | steps,
    st.none() | steps,
    st.lists(steps, max_size=3).map(tuple),
    st.none() | steps,
    st.none() | st.builds(ZoneCancel, steps, steps, st.just(LATEST)),
    nodes,
    nodes,
    st.lists(st.builds(ZoneLink, nodes, st.just(LATEST)), max_size=CHAIN_MAX).map(tuple),
    st.just(LATEST),
    st.just(ZoneRevisions(LATEST, LATEST, LATEST, LATEST, LATEST)),
    st.just("pending_updated"),
)


@settings(max_examples=40, deadline=None)
@given(partitions)
def test_a_partition_record_is_at_most_its_weight(partition: ZonePartition) -> None:
    assert size_of(partition) <= weight_of_partition(partition)


def test_the_largest_partition_fits() -> None:
    full = ZoneStep(IDS)
    cancel = ZoneCancel(full, full, LATEST)
    chain = (ZoneLink(IDS, LATEST),) * CHAIN_MAX
    found = ZonePartition(NAME, 64_999, full, full, (full,) * STEPS_MAX, full, cancel, IDS, IDS, chain)
    assert size_of(found) <= weight_of_partition(found) <= carried._PARTITION_MOST < CHANGE_BYTES_MAX


def test_the_largest_zone_fits() -> None:
    ids = tuple(uuid(number) for number in range(DATA_NODES_MAX))
    profiles = ("p" * 100,) * PROFILES_MAX
    path = "\U0010ffff" * LENGTH_MAX
    zone = Zone(NAME, 65_000, 64, 32, path, profiles, NEVER, NEVER, HIGH_AVAILABILITY, ids, LATEST, LATEST, 65_000)
    state = replace(EMPTY_STATE, epoch=LATEST, zones=EMPTY_STATE.zones.set(NAME, zone))
    assert max(map(size, diff(EMPTY_STATE, state))) < CHANGE_BYTES_MAX


# No sequence of commands creates an oversized record


def drawn(draw: random.Random, state: ClusterState) -> Command:
    """Return a command about a zone that is likely to apply."""
    everybody = sorted(state.nodes)
    some = tuple(draw.sample(everybody, draw.randint(3, len(everybody))))
    zone, number, epoch = draw.choice(["y", "z"]), draw.randrange(12), max(1, state.epoch)
    one = state.zone_partitions.get(partition_key(zone, number))
    choices: list[Command] = [
        CreateZone(zone, some, draw.choice([4, 12, 40]), draw.randint(1, 3), mode=HIGH_AVAILABILITY),
        AlterZone(zone, partitions=draw.choice([4, 12, 40]), replicas=draw.randint(1, 3)),
        AlterZone(zone, mode=draw.choice(["strong", HIGH_AVAILABILITY])),
        SetDataNodes(zone, some, epoch),
        TriggerRebalance(zone, epoch),
        TriggerRebalance(zone, epoch, tuple(range(draw.randint(1, 4)))),
        DeclareDown(draw.choice(everybody), ""),
        ResetPartitions(zone, (), "manual", epoch, tuple(ZoneCopy(number, name, 3) for name in everybody)),
    ]
    if one is not None and one.pending:
        step, revision = one.pending[0], one.revisions.pending
        switch = SwitchStable(zone, number, step.nodes, step.learners, one.revisions)
        choices += [switch, switch, switch, CancelRebalance(zone, number, revision)]
        choices += [FinishCancel(zone, number, revision, draw.choice(RESULTS))] if one.cancel else []
    return draw.choice(choices) if draw.random() < 0.97 else DropZone(zone)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4_000, 16_000]))
def test_no_sequence_of_zone_commands_makes_a_change_too_large(seed: int, most: int) -> None:
    """The bounds are low enough for small zones to reach them. Commands about one partition are never rejected for
    size.
    """
    draw = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carried, "PARTITIONS_BYTES_MAX", most)
        patch.setattr(carried, "NAMED_NODES_MAX", 9)
        patch.setattr("ringlog.kernel.zones.resets.REPLICAS_MAX", 3)
        state = normal(founded(), *(node(number) for number in range(1, 7)))
        for _ in range(60):
            command = drawn(draw, state)
            folded = fold(state, entry(state, command))
            assert folded.outcome.kind in (OutcomeKind.APPLIED, OutcomeKind.REFUSED), folded.outcome
            if isinstance(command, (SwitchStable, CancelRebalance, FinishCancel)):
                assert folded.outcome.code not in ("too_large", "too_many")
            records = [record for record in diff(state, folded.state) if "partition/" in record.key]
            assert sum(size(record) for record in records if record.value is not None) <= most
            assert sum(len(zone.nodes) for zone in folded.state.zones.values()) <= 9
            for one in folded.state.zone_partitions.values():
                assert all(len(step.nodes) <= 3 for step in one.pending)
            state = folded.state


def test_an_oversized_change_is_rejected_and_passes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    state = normal(founded(), *(node(number) for number in range(1, 5)))
    ids = tuple(sorted(state.nodes))
    state = applied(state, CreateZone("z", ids[:2], 40, 2), SetDataNodes("z", ids, state.epoch))
    monkeypatch.setattr(carried, "PARTITIONS_BYTES_MAX", 20_000)
    whole = fold(state, entry(state, TriggerRebalance("z", state.epoch)))
    assert whole.outcome.code == "too_large"
    assert "20,000" in whole.outcome.detail
    assert whole.state is state
    for first in range(0, 40, 10):
        state = applied(state, TriggerRebalance("z", state.epoch, tuple(range(first, first + 10))))
    assert state.zones["z"].moving > 10


def test_data_nodes_of_all_zones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "NAMED_NODES_MAX", 5)
    state = normal(founded(), *(node(number) for number in range(1, 5)))
    ids = tuple(sorted(state.nodes))
    state = applied(state, CreateZone("y", ids[:3], 1), CreateZone("z", ids[:2], 1))
    for command in (CreateZone("x", ids[:1], 1), SetDataNodes("z", ids, 1), AlterZone("z", filter="$[0]", nodes=ids)):
        refused = fold(state, entry(state, command))
        assert refused.outcome.code == "too_many", command
        assert refused.outcome.detail.endswith("data nodes, the limit is 5")
    assert applied(state, SetDataNodes("y", ids[:1], state.epoch)).zones["y"].nodes == ids[:1]


def test_nodes_with_the_longest_logs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog.kernel.zones.resets.REPLICAS_MAX", 2)
    state = normal(founded(), *(node(number) for number in range(1, 7)))
    ids = tuple(sorted(state.nodes))
    state = applied(state, CreateZone("z", ids[:2], 1, 2), *(DeclareDown(one, "") for one in ids[:2]))
    copies = tuple(ZoneCopy(0, one, length) for length, one in enumerate(ids[2:]))
    state = applied(state, ResetPartitions("z", (0,), "manual", state.epoch, copies))
    one = state.zone_partitions["z/0"]
    assert one.pending[0].peers == (ids[5],)
    assert one.planned is not None
    assert one.planned.nodes == ids[4:6]
