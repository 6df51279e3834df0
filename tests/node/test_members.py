"""Members of groups: which words a node says of its partitions, and how many of them. What replicas have is stubbed;
``tests/node/test_followers.py`` is about that.
"""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import StreamReport
from ringlog.node.protocol import acks, groups
from ringlog.node.protocol.followers import RowGroupReplicas
from ringlog.node.protocol.groups import Member
from ringlog.node.rows.replica import RowReplica
from ringlog.node.stream_attempts import StreamAttempts
from ringlog.protocol.rebalancer.zone_groups import HAS, RETURNED, session
from tests.kernel.zones.scenes import NoRows, cancel, done, down, ids, partition, trigger, with_zone


def begun(partitions: int = 1) -> ClusterState:
    """Each partition has one replica, and is to have three."""
    state = done(with_zone("ABC", replicas=1, partitions=partitions), AlterZone("z", replicas=3))
    return done(state, trigger(state))


def test_who_has_seen_the_cancel_has_returned_and_strangers_say_nothing() -> None:
    state = done(begun(), cancel(begun()))
    for node in ids("ABC"):
        (report,) = Member(node, NoRows()).reports(state, state.epoch)
        assert report.operation == session(partition(state), RETURNED)
    assert Member(ids("D")[0], NoRows()).reports(state, state.epoch) == ()


def test_an_acknowledgement_has_no_more_words_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REPORTS_MAX", 3)
    state = begun(5)
    found = Member(ids("A")[0], NoRows()).reports(state, state.epoch)
    assert [word.operation for word in found] == [session(partition(state, number), HAS) for number in range(3)]


def test_steps_that_wait_for_the_dead_keep_no_others_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A is on its way to D with three partitions, which is as many as may be told; then D dies."""
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
    """Registers that hold up what is above ``epoch``."""

    def __init__(self, epoch: int = 10**9) -> None:
        self.epoch = epoch

    def acknowledgeable(self) -> int:
        return self.epoch

    def received(self, operation: str) -> bool:
        return bool(operation)


def test_an_acknowledgement_has_a_bounded_number_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out follows: rows that came are told first, words of partitions fill what is left."""
    monkeypatch.setattr(acks, "REPORTS_MAX", 4)
    state, (node,) = begun(5), ids("A")
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


def test_an_acknowledgement_that_perhaps_was_published_is_never_followed_by_a_lower_one() -> None:
    """A node that becomes a member may hold less of the log than it acknowledged before."""
    state, (node,) = begun(), ids("A")
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
            name = f"ks.t/{len(published)}@9"  # one more thing to acknowledge
            row_replica.reports = {name: StreamReport(node, name, 1, "ab")}
        effect = steps.send(answer)
    assert published == [state.epoch] * 3
