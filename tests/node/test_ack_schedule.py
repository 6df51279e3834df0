"""The schedule of acknowledgements: each one is published when a step waits for it, and rarely otherwise."""

from __future__ import annotations

import errno
import threading

import pytest
from immutables import Map

from ringlog.client.participant.retry import Stopped
from ringlog.kernel.model.modes import ServiceMember
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import GAINING_MUST_STAGES, GATED_STAGES, gate, gate_nodes, is_met
from ringlog.kernel.service import JOINING, LEAVING, MEMBER
from ringlog.kernel.values import Witness, replace
from ringlog.node.protocol.acks import Keep
from ringlog.node.reports.acks import Acks
from ringlog.protocol.nodes.ack_schedule import SELDOM_US, AckContent, AckSchedule
from tests.kernel.entries import Noop, applied, founded
from tests.kernel.operations.driver import at_every_stage, joining
from tests.kernel.ownership.rings import a_cluster
from tests.kernel.tablets import clusters

WORDS: AckContent = ((), ())
FAR = {"A": [100], "B": [200], "C": [300], "D": [1_000], "E": [1_100], "F": [1_200], "X": []}
"""X joins at 150 with two replicas. D, E and F own no affected range, except for the ranges after C's."""


def stages() -> dict[str, ClusterState]:
    return at_every_stage(*joining(a_cluster(FAR), "X", [150]))


class Node:
    """A node that adopts each epoch at once, and its acknowledgement schedule."""

    def __init__(self, name: str) -> None:
        self.schedule = AckSchedule(name)
        self.said: list[int] = []

    def sees(self, state: ClusterState, now: int, words: AckContent = WORDS) -> None:
        if self.schedule.is_due(state, state.epoch, words, now):
            self.schedule.sent(state.epoch, words, now)
            self.said.append(state.epoch)


def test_an_idle_node_acknowledges_at_intervals_independent_of_epochs() -> None:
    node, state = Node("A"), founded()
    for number in range(1_000):  # Ten seconds, a hundred epochs in each.
        state = applied(state, Noop())
        node.sees(state, number * 10_000)
    assert len(node.said) == 1 + 9_990_000 // SELDOM_US


def test_an_unchanged_acknowledgement_is_not_repeated() -> None:
    node, state = Node("A"), founded()
    for now in range(0, 10 * SELDOM_US, SELDOM_US):
        node.sees(state, now)
    assert node.said == [state.epoch]


@pytest.mark.parametrize("stage", sorted({*GATED_STAGES, *GAINING_MUST_STAGES} & stages().keys()))
def test_required_nodes_acknowledge_a_gate_at_once(stage: str) -> None:
    """The gate opens without any time passing, and only the nodes that it needs acknowledge."""
    before, state = founded(), stages()[stage]
    (operation,) = state.operations.values()
    nodes = {name: Node(name) for name in FAR}
    for node in nodes.values():
        node.sees(replace(state, epoch=1, operations=before.operations), 0)
        node.sees(state, 1)
        node.sees(replace(state, epoch=state.epoch + 1), 2)
    asked = {name for name, node in nodes.items() if len(node.said) > 1}
    assert (
        asked
        == gate_nodes(state, operation)
        == {*gate(state, operation).must}.union(*(need.members for need in gate(state, operation).needs))
    )
    assert is_met(state, operation, [Witness(name, state.epoch, state.epoch) for name in asked])
    assert "E" not in asked
    assert {len(node.said) for node in nodes.values()} == {1, 2}, (
        "each node acknowledges once, for any number of later epochs"
    )


def test_a_node_that_is_behind_acknowledges_when_it_comes_to_the_stage() -> None:
    state = stages()["prepared"]
    schedule = AckSchedule("A")
    schedule.sent(state.epoch - 2, WORDS, 0)
    assert not schedule.is_due(state, state.epoch - 1, WORDS, 1), "its registers have not adopted the epoch yet"
    assert schedule.is_due(state, state.epoch, WORDS, 2)


def test_arrived_rows_are_reported_at_once() -> None:
    node, state = Node("A"), founded()
    node.sees(state, 0)
    node.sees(state, 1, (("join-7",), ()))
    assert node.said == [state.epoch, state.epoch]


def test_an_acknowledgement_is_renewed_before_the_log_prunes_its_epoch() -> None:
    node, state = Node("A"), founded(history_entries=100)
    node.sees(state, 0)
    for _ in range(400):
        state = applied(state, Noop())
        node.sees(state, 1)
        assert state.history.at(node.said[-1]) is not None
    assert len(node.said) < 12


def test_the_nodes_of_a_tablet_acknowledge_its_stage_at_once() -> None:
    before = clusters.with_table(clusters.three_racks(), clusters.factor(2), 4)
    move = clusters.migration(before)
    state = clusters.started(before, move)
    transition = state.tablets[clusters.TABLE].transitions[0]
    concerned = {one.node for one in (*transition.next, *clusters.tablet(before).replicas)}
    asked = set()
    for name in state.nodes:
        node = Node(name)
        node.sees(before, 0)
        node.sees(state, 1)
        asked |= {name} if node.said[-1] >= transition.stage_epoch > before.epoch else set()
    assert asked == concerned < set(state.nodes)


def test_write_group_members_acknowledge_a_step_of_the_service_at_once() -> None:
    before = a_cluster(FAR)
    schedules = {name: AckSchedule(name) for name in ("A", "B", "C")}
    for stage, asked in ((JOINING, {"A", "B"}), (LEAVING, {"A", "B"}), (MEMBER, set[str]())):
        state = replace(before, epoch=before.epoch + 2)
        members = {"A": ServiceMember("A", MEMBER, 1), "B": ServiceMember("B", stage, state.epoch - 1)}
        state = replace(state, service=Map(members))
        for one in schedules.values():
            one.sent(before.epoch, WORDS, 0)
        assert {name for name, one in schedules.items() if one.is_due(state, state.epoch, WORDS, 1)} == asked
        for one in schedules.values():
            one.sent(state.epoch, WORDS, 1)
        assert not any(
            one.is_due(replace(state, epoch=state.epoch + 1), state.epoch + 1, WORDS, 2) for one in schedules.values()
        )


# The acknowledging thread while the disk or the process has no space.


KEEP = Keep("cluster", 7, "state")


class Disk:
    """A disk that raises the given errors in order and then accepts writes."""

    def __init__(self, *refusals: int) -> None:
        self._refusals = list(refusals)
        self.kept: list[int] = []

    def keep(self, cluster_id: str, epoch: int, state_id: str) -> None:
        if self._refusals:
            raise OSError(self._refusals.pop(0), "refused", "acknowledged.new")
        self.kept.append(epoch)


def acks(disk: Disk, stopping: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Acks:
    monkeypatch.setattr("ringlog.node.reports.acks.AGAIN_S", 0.0)
    return Acks("127.0.0.1:1", "c", disk.keep, dict, stopping)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT])
def test_an_acknowledgement_waits_for_descriptors_and_disk_space(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(number, number)
    acks(disk, threading.Event(), monkeypatch).handlers[Keep](KEEP)
    assert disk.kept == [7]


def test_an_acknowledgement_does_not_wait_for_a_broken_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="refused"):
        acks(Disk(errno.EIO), threading.Event(), monkeypatch).handlers[Keep](KEEP)


def test_a_stopping_node_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()
    stopping.set()
    disk = Disk(errno.ENOSPC)
    with pytest.raises(Stopped):
        acks(disk, stopping, monkeypatch).handlers[Keep](KEEP)
    assert disk.kept == []
