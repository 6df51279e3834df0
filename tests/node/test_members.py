"""Partition reports of group members: content and number. Replicas are stubs; see ``tests/node/test_followers.py`` for
real ones.
"""

from __future__ import annotations

import pytest

from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import StreamReport
from ringlog.node.protocol import acks
from ringlog.node.protocol.followers import RowGroupReplicas
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.nodes import groups
from ringlog.protocol.nodes.groups import Member
from ringlog.protocol.rebalancer.zone_groups import HAS, RETURNED, session
from tests.kernel.zones.states import NoRows, cancel, done, down, ids, partition, trigger, with_zone


def begin_growth(partitions: int = 1) -> ClusterState:
    """Return a cluster with one replica per partition and a target of three."""
    state = done(with_zone("ABC", replicas=1, partitions=partitions), AlterZone("z", replicas=3))
    return done(state, trigger(state))


def test_a_cancel_returns_members_and_other_nodes_report_nothing() -> None:
    state = done(begin_growth(), cancel(begin_growth()))
    for node in ids("ABC"):
        (report,) = Member(node, NoRows()).reports(state, state.epoch)
        assert report.operation == session(partition(state), RETURNED)
    assert Member(ids("D")[0], NoRows()).reports(state, state.epoch) == ()


def test_an_acknowledgement_has_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REPORTS_MAX", 3)
    state = begin_growth(5)
    found = Member(ids("A")[0], NoRows()).reports(state, state.epoch)
    assert [word.operation for word in found] == [session(partition(state, number), HAS) for number in range(3)]


def test_steps_blocked_by_dead_nodes_do_not_block_other_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moves three partitions to D, which fills one acknowledgement; then D dies."""
    monkeypatch.setattr(groups, "REPORTS_MAX", 3)
    state = done(with_zone("ABCD", replicas=1, partitions=1), *down("D"))
    (first,) = ids("A")
    state = done(state, CreateZone("a", (first,), 3, 1), CreateZone("b", (first,), 3, 1))
    for zone, to in (("a", "D"), ("b", "C")):
        state = done(state, SetDataNodes(zone, ids(to), state.epoch), TriggerRebalance(zone, state.epoch))
    for zone, back in (("b", []), ("a", [DeclareUp(ids("D")[0], "")])):
        found = Member(first, NoRows()).reports(done(state, *back), state.epoch)
        assert {report.operation.partition("@")[0] for report in found} == {
            f"zone/{zone}/{number}" for number in range(3)
        }


class Here:
    """Registers that delay acknowledgements above ``epoch``."""

    def __init__(self, epoch: int = 10**9) -> None:
        self.epoch = epoch

    def acknowledgeable(self) -> int:
        return self.epoch

    def received(self, operation: str) -> bool:
        return bool(operation)


def test_an_acknowledgement_has_a_bounded_number_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of arrived rows go first, reports of partitions fill the remaining space, and the others follow later."""
    monkeypatch.setattr(acks, "REPORTS_MAX", 4)
    state, (node,) = begin_growth(5), ids("A")
    row_replica = RowReplica(node)
    row_replica.adopt(state)
    row_replica.caught_up = True
    for count in (2, 6):
        row_replica.reports = {f"ks.t/{one}@9": StreamReport(node, f"ks.t/{one}@9", 1, "ab") for one in range(count)}
        steps = acks.acknowledge(row_replica, Here(), StreamAttempts(), "1", RowGroupReplicas(row_replica))
        assert isinstance(steps.send(None), acks.News)
        effect: object = steps.send(None)
        while not isinstance(effect, acks.PublishAcknowledgement):
            effect = steps.send({} if isinstance(effect, acks.TopicEnds) else 1)
        reported = [one.operation for one in effect.ack.reports]
        expected = [session(partition(state, number), HAS) for number in range(4 - min(count, 4))]
        assert reported == sorted(row_replica.reports)[:4] + expected


def test_acknowledgements_never_decrease_after_an_unconfirmed_one() -> None:
    """A new member may store less of the log than it acknowledged before."""
    state, (node,) = begin_growth(), ids("A")
    row_replica, registers = RowReplica(node), Here()
    row_replica.adopt(state)
    row_replica.caught_up = True
    steps = acks.acknowledge(row_replica, registers, StreamAttempts(), "1", RowGroupReplicas(row_replica))
    effect: object = steps.send(None)
    published = []
    while len(published) < 3:
        answer: object = {} if isinstance(effect, acks.TopicEnds) else 1
        if isinstance(effect, acks.PublishAcknowledgement):
            published.append(effect.ack.applied)
            registers.epoch = state.epoch - 1
            answer = len(published) == 2
            name = f"ks.t/{len(published)}@9"  # one more report to acknowledge
            row_replica.reports = {name: StreamReport(node, name, 1, "ab")}
        effect = steps.send(answer)
    assert published == [state.epoch] * 3
