"""Snapshots on a real broker: agents store and confirm a snapshot, and start from it after a restart."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise

import pytest
from tests.system.agents_world import DEADLINE_S, AgentsWorld, until

from ringlog.agents.status import StatusReader
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot, last_snapshot
from ringlog.kernel.encoding.encoder import digest
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA
from ringlog.log.opening import open_snapshots, start_point_finder
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import ListedSnapshot, SnapshotTopic
from ringlog.protocol.submission.results import AppliedResult

pytestmark = [pytest.mark.system, pytest.mark.slow]
ROLES = ("keeper", "publisher", "validator")


def are_at_work(status: StatusReader) -> bool:
    return tuple(agent.role for agent in status.read() if agent.caught_up) == ROLES


def taken(world: AgentsWorld, topic: SnapshotTopic) -> ListedSnapshot:
    """Return a new snapshot, once it is confirmed."""
    answer = world.client.submit(TakeSnapshot(), timeout_s=DEADLINE_S)
    assert isinstance(answer, AppliedResult)
    epoch = answer.epoch
    found = until(lambda: [one for one in topic.listed() if one.head.epoch == epoch and not one.code], "a confirmation")
    return found[0]


def test_the_size_of_the_log_causes_a_snapshot(world: AgentsWorld) -> None:
    """Two agents suffice, because the coordinator records a mark even if no agent stores the snapshot."""
    for role in ("coordinator", "validator"):
        world.spawn(role)
    size = 2_000
    settings = ChangeSettings((("snapshot_bytes", size),))
    assert isinstance(world.client.submit(settings, timeout_s=DEADLINE_S), AppliedResult)
    for _ in range(2):
        _fill(world, last_snapshot(world.state), 2 * size)
    entries = {epoch: len(encoded) for epoch, encoded in enumerate(world.records(METADATA), start=1)}
    marks = sorted(one.epoch for one in world.state.snapshots.values())
    grown = [sum(size for epoch, size in entries.items() if low < epoch < high) for low, high in pairwise((0, *marks))]
    assert min(grown) >= size


def _fill(world: AgentsWorld, before: int, size: int) -> None:
    """Append entries until a mark is after that epoch; entries of that size must cause it automatically."""
    while last_snapshot(world.state) == before:
        assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)
        if world.client.replica.recent.since_mark > size:
            world.client.replica.wait_for(lambda state: last_snapshot(state) > before, DEADLINE_S, "a mark")


def test_agents_store_confirm_and_load_snapshots(world: AgentsWorld) -> None:
    place = world.stack.bootstrap_servers, world.cluster
    agents = {role: world.spawn(role) for role in ROLES}
    with closing(open_snapshots(*place)) as topic:
        with StatusReader(*place) as status:
            until(lambda: are_at_work(status), "all agents to be active")
        first = taken(world, topic)
        assert (first.head.by, first.confirmed_by) == ("keeper", ("publisher",))
        assert digest(topic.state(first.head)) == first.head.digest
        newest = [taken(world, topic) for _ in range(4)][-1]
        for role in ("keeper", "publisher"):
            agents[role].kill()
        for _ in range(3):
            assert isinstance(world.client.submit(Noop(), timeout_s=DEADLINE_S), AppliedResult)
        for role in ("keeper", "publisher"):
            world.spawn(role)
        with StatusReader(*place) as status:
            until(lambda: are_at_work(status), "all agents to be active again")
    with closing(KafkaLog(*place)) as log:

        def is_same_epoch() -> bool:
            with LogReplica(log) as replica:
                whole = replica.read_barrier(DEADLINE_S)
            with LogReplica(log, start_finder=start_point_finder(*place)) as replica:
                state, folded = replica.read_barrier(DEADLINE_S), sum(replica.counts.values())
                assert state.epoch != whole.epoch or digest(state) == digest(whole)
                return (state.epoch, folded) == (whole.epoch, log.end_offset() - newest.head.position)

        until(is_same_epoch, "both readers to have the same state, one of them from the snapshot")
