"""Replicas of a partition: start, catch up, lag, restart from stored rows, fail, stop. Each test runs with rows in a
file and with the rows of the simulator. The nodes run production code. Instead of a broker, each partition of the topic
is a number.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.commands.placement.rebalances import FinishCancel
from ringlog.kernel.commands.placement.zones import AlterZone
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.zones.rebalance import ROLLED_BACK
from ringlog.node.protocol.acks import News, PublishAcknowledgement, TopicEnds, acknowledge
from ringlog.node.protocol.followers import RowGroupReplicas
from ringlog.node.rows.disk_rows import ROWS, DiskRows
from ringlog.node.rows.replica import RowReplica
from ringlog.node.rows.store import RowStore
from ringlog.protocol.effects import Now, Steps, WallClock
from ringlog.protocol.rebalancer.zone_groups import (
    CAUSES,
    FAILED,
    HAS,
    RETURNED,
    failure_causes,
    previous_nodes,
    session,
    session_reports,
    unanswered_nodes,
)
from ringlog.wire.records import NodeAck
from ringlog_sim.actors.nodes.kept_rows import SimRows
from ringlog_sim.devices.world import SimWorld
from tests.kernel.zones.states import cancel, done, ids, partition, switch, trigger, with_zone

PARTITIONS = 2


class OnDisk:
    """Rows in a file of a temporary folder."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder, self._node, self._copies = folder / node, node, 0
        self._folder.mkdir()
        self.rows = DiskRows(self._folder / ROWS, node)

    def durable(self) -> dict[int, int]:
        """Return the positions that a copy of the folder has."""
        self._copies += 1
        copied = shutil.copytree(self._folder, self._folder.with_suffix(f".{self._copies}"))
        store = DiskRows(copied / ROWS, self._node)
        store.close()
        return dict(store.mark.positions)

    def restart(self) -> RowStore:
        self.rows.close()
        self.rows = DiskRows(self._folder / ROWS, self._node)
        return self.rows

    def fail(self) -> None:
        self.rows._db.execute("PRAGMA query_only = ON")


class Simulated:
    """Rows on a simulated disk that loses unsynced rows at a restart."""

    def __init__(self, _: Path, node: str) -> None:
        world = SimWorld(7)
        host = world.host(node)
        world.boot(host)
        self.rows = SimRows(world, host)

    def durable(self) -> dict[int, int]:
        return dict(self.rows.safe.positions)

    def restart(self) -> RowStore:
        self.rows.crash(self.rows.unsynced)
        self.rows.fails = False
        return self.rows

    def fail(self) -> None:
        self.rows.fails = True


Disk = OnDisk | Simulated


class Topic:
    """The mutation topic: the number of records of each partition."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.answers = True

    def append(self, count: int, number: int = 0) -> None:
        self.ends[number] += count


class Here:
    """Registers that delay no acknowledgement."""

    def acknowledgeable(self) -> int:
        return 10**9

    def received(self, operation: str) -> bool:
        return bool(operation)


class GroupNode:
    """A node named by a letter. ``acks``: the published acknowledgements."""

    def __init__(self, letter: str, disk: Disk, topic: Topic) -> None:
        (self.node,) = ids(letter)
        self.disk, self.topic = disk, topic
        self.acks: list[NodeAck] = []
        self.clock, self.lives = 0, 0
        self.is_over = False
        self.start()

    def start(self) -> None:
        """Start the node with the stored rows."""
        self.lives += 1
        self.row_replica = RowReplica(self.node, self.disk.restart() if self.lives > 1 else self.disk.rows)
        self.row_replica.caught_up = True
        self.replicas = RowGroupReplicas(self.row_replica)
        self.steps: Steps[None] = acknowledge(
            self.row_replica, Here(), StreamAttempts(), str(self.lives), self.replicas
        )
        self.effect: object = self.steps.send(None)

    def adopt(self, state: ClusterState) -> None:
        self.row_replica.adopt(state)
        self.speak()

    def read(self, count: int, number: int = 0) -> None:
        """Apply up to that many more records of a partition of the topic."""
        at = self.row_replica.positions.get(number, 0)
        self.row_replica.advance_position(number, min(at + count, self.topic.ends[number]))

    def read_all(self) -> None:
        for number, end in self.topic.ends.items():
            self.row_replica.advance_position(number, end)
        self.speak()

    def speak(self) -> None:
        """Publish the pending acknowledgements."""
        assert isinstance(self.effect, News)
        try:
            effect: object = self.steps.send(None)
            while not isinstance(effect, News):
                effect = self.steps.send(self._perform(effect))
            self.effect = effect
        except StopIteration:
            self.is_over = True

    def _perform(self, effect: object) -> Any:
        match effect:
            case Now() | WallClock():
                self.clock += 10_000_000  # New reports are due at once.
                return self.clock
            case TopicEnds():
                return dict(self.topic.ends) if self.topic.answers else None
            case PublishAcknowledgement():
                self._check(effect.ack)
                self.acks.append(effect.ack)
                return True
        return None

    def _check(self, ack: NodeAck) -> None:
        """Check that each claim is on the disk."""
        has = [one for one in ack.reports if one.operation.endswith(HAS)]
        if has:
            assert max(one.rows for one in has) <= sum(self.disk.durable().values())

    def said(self, one: ZonePartition) -> str:
        """Return the last pending report."""
        found = [report.operation for report in (self.acks[-1].reports if self.acks else ())]
        words = [word for word in (HAS, RETURNED, FAILED) if session(one, word) in found]
        assert len(words) <= 1
        return words[0] if words else ""


Make = Callable[[str], GroupNode]


@pytest.fixture(params=[OnDisk, Simulated])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Topic, Make]]:
    """Return a topic and a factory of its readers."""
    made, nodes = Topic(), list[GroupNode]()

    def make(letter: str) -> GroupNode:
        nodes.append(GroupNode(letter, request.param(tmp_path, ids(letter)[0]), made))
        return nodes[-1]

    yield made, make
    for node in nodes:
        node.disk.rows.close()


Coming: TypeAlias = tuple[Topic, ClusterState, GroupNode]


@pytest.fixture
def coming(topic: tuple[Topic, Make]) -> Coming:
    """Return a cluster with a started step, and the node that the step adds."""
    made, make = topic
    state = begin_growth()
    return made, state, make(member_of(state, comes=True))


def begin_growth(partitions: int = 1) -> ClusterState:
    """Return a cluster with one replica per partition and a target of three."""
    state = done(with_zone("ABC", replicas=1, partitions=partitions), AlterZone("z", replicas=3))
    return done(state, trigger(state))


def member_of(state: ClusterState, *, comes: bool) -> str:
    """Return the letter of a node that has or receives the partition."""
    stable = partition(state).stable
    assert stable is not None
    return next(letter for letter in "ABC" if (ids(letter)[0] in stable.nodes) is not comes)


def test_a_replica_of_an_empty_partition_follows_at_once(topic: tuple[Topic, Make]) -> None:
    state = begin_growth()
    for comes in (True, False):
        node = topic[1](member_of(state, comes=comes))
        node.adopt(state)
        assert node.said(partition(state)) == HAS


@pytest.mark.parametrize("comes", [True, False])
def test_a_lagging_node_counts_after_it_has_caught_up(topic: tuple[Topic, Make], comes: bool) -> None:
    made, make = topic
    state = begin_growth()
    node = make(member_of(state, comes=comes))
    made.append(5)
    made.append(2, 1)
    node.read(3)
    node.adopt(state)
    assert node.said(partition(state)) == ""
    node.read(2)
    node.speak()
    assert node.said(partition(state)) == "", "another partition of the topic has two records"
    node.read(2, 1)
    node.speak()
    assert node.said(partition(state)) == HAS
    assert [one.rows for one in node.acks[-1].reports] == [7], "it reports the length of its log"


def test_a_step_does_not_wait_for_later_writes(coming: Coming) -> None:
    made, state, node = coming
    made.append(5)
    node.adopt(state)
    made.append(1_000)
    node.read(5)
    node.speak()
    assert node.said(partition(state)) == HAS


def test_each_step_requires_a_new_catch_up(coming: Coming) -> None:
    """A node that caught up for one step and lagged afterwards does not count for the next step."""
    made, state, node = coming
    node.adopt(state)
    assert node.said(partition(state)) == HAS
    made.append(9)
    state = done(done(state, switch(state)), AlterZone("z", replicas=2))
    state = done(state, trigger(state))
    node.adopt(state)
    assert partition(state).pending
    assert node.said(partition(state)) == ""
    node.read_all()
    assert node.said(partition(state)) == HAS


def test_a_node_reports_nothing_before_the_step_has_a_start_position(coming: Coming) -> None:
    made, state, node = coming
    made.answers = False
    node.adopt(state)
    assert node.said(partition(state)) == ""
    assert node.acks[-1].applied == state.epoch, "the node continues and publishes no position"
    made.answers = True
    node.speak()
    assert node.said(partition(state)) == HAS


def test_a_restarted_replica_continues_from_its_stored_rows(coming: Coming) -> None:
    made, state, node = coming
    made.append(5)
    node.adopt(state)
    node.read_all()
    assert node.said(partition(state)) == HAS
    made.append(3)
    node.read(2)  # only in memory
    node.start()
    assert node.replicas.log_length(partition(state)) == 5
    node.adopt(state)
    assert node.said(partition(state)) == "", "it reports its positions again"
    node.read_all()
    assert node.said(partition(state)) == HAS


def test_a_replica_with_a_failed_disk_reports_only_the_failure(coming: Coming) -> None:
    made, state, node = coming
    made.append(5)
    node.adopt(state)
    before = node.acks[-1]
    node.disk.fail()
    node.read_all()
    assert node.is_over
    last = node.acks[-1]
    assert (last.applied, last.drained, last.state_id) == (before.applied, before.drained, before.state_id)
    assert [(one.operation, CAUSES[one.rows]) for one in last.reports] == [
        (session(partition(state), FAILED), "rows_damaged")
    ]
    words = session_reports(state, {node.node: last})
    assert failure_causes(partition(state), words) == ("rows_damaged",)
    assert node.node in unanswered_nodes(partition(state), words)


def test_an_existing_replica_with_a_failed_disk_reports_nothing(topic: tuple[Topic, Make]) -> None:
    state = begin_growth()
    node = topic[1](member_of(state, comes=False))
    node.adopt(state)
    node.replicas.fail("rows_damaged")
    node.speak()
    assert node.is_over
    assert node.acks[-1].reports == ()


def test_a_failure_without_a_number_is_unknown() -> None:
    replicas = RowGroupReplicas(RowReplica(ids("A")[0]))
    assert replicas.failure() is None
    replicas.fail("something_else")
    assert CAUSES[replicas.failure() or 0] == "unknown"


def test_a_replica_stops_with_its_step(coming: Coming) -> None:
    made, state, node = coming
    made.append(5)
    made.answers = False
    node.adopt(state)
    assert node.replicas.steps_without_start()
    state = done(state, cancel(state))
    node.adopt(state)
    assert node.said(partition(state)) == RETURNED
    state = done(state, FinishCancel("z", 0, partition(state).revisions.pending, ROLLED_BACK))
    node.adopt(state)
    assert node.said(partition(state)) == ""
    assert node.replicas.steps_without_start() == (), "no step needs the start position"
    node.replicas.set_start([("z/0", 7)], {0: 1})
    assert not node.replicas.has_caught_up(partition(begin_growth())), "the position does not matter either"


def test_a_group_continues_with_a_majority_and_all_new_members(topic: tuple[Topic, Make]) -> None:
    made, make = topic
    state = done(with_zone("ABCD", replicas=3), AlterZone("z", replicas=4))
    state = done(state, trigger(state))
    one = partition(state)
    assert one.reached is not None
    made.append(6)
    nodes = {letter: make(letter) for letter in "ABCD"}
    for node in nodes.values():
        node.adopt(state)

    def waited_for() -> str:
        acks = {node.node: node.acks[-1] for node in nodes.values()}
        missing = unanswered_nodes(one, session_reports(state, acks))
        return "".join(letter for letter in "ABCD" if ids(letter)[0] in missing)

    (newcomer,) = [letter for letter in "ABCD" if ids(letter)[0] not in one.reached.nodes]
    voters = [letter for letter in "ABCD" if ids(letter)[0] in one.reached.peers]
    assert set(waited_for()) >= {*voters, newcomer}
    for letter in voters[: len(voters) // 2 + 1]:
        nodes[letter].read_all()
    assert newcomer in waited_for()
    nodes[newcomer].read_all()
    assert waited_for() == "", "one voter of three is still behind"


@pytest.mark.parametrize("seed", range(6))
def test_a_reported_catch_up_is_durable_in_any_order_of_events(topic: tuple[Topic, Make], seed: int) -> None:
    made, make = topic
    draw, state, log = Random(seed), begin_growth(), {}
    log[state.epoch] = dict(made.ends)
    node = make(member_of(state, comes=True))
    for _ in range(60):
        match draw.choice(["append", "append", "read", "read", "commit", "speak", "step", "crash", "deaf"]):
            case "append":
                made.append(draw.randint(1, 4), draw.randrange(PARTITIONS))
            case "read":
                node.read(draw.randint(1, 6), draw.randrange(PARTITIONS))
            case "commit":
                node.row_replica.commit()
            case "speak":
                node.adopt(state)
                node.speak()
            case "step":
                state = done(done(state, switch(state)), AlterZone("z", replicas=draw.randint(1, 3)))
                state = done(state, trigger(state))
                log[partition(state).revisions.pending] = dict(made.ends)
            case "crash":
                node.start()
            case "deaf":
                made.answers = not made.answers
        if node.acks and not node.is_over:
            for revision, ends in log.items():
                if f"zone/z/0@{revision}/{HAS}" in [one.operation for one in node.acks[-1].reports]:
                    durable = node.disk.durable()
                    assert all(durable.get(number, 0) >= end for number, end in ends.items())
    made.answers = True
    node.adopt(state)
    node.read_all()
    one = partition(state)
    is_asked = one.pending and node.node in (*previous_nodes(one), *one.pending[0].nodes)
    assert node.said(one) == (HAS if is_asked else "")
