"""A tablet migration reverts after the permitted number of failed row requests, and operators see the failures and the
revert.
"""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.placement.tablets import RevertTablets, Shard, TabletMigration
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.stages import CLEANUP_TARGET, STREAMING, session
from ringlog.kernel.values import replace
from ringlog.operator.views.tablets import troubles, troubles_view
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.wire.records import FailedTries, NodeAck
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters

Acks = dict[str, NodeAck]


@pytest.fixture(scope="module")
def streaming() -> ClusterState:
    """Return a state that streams a tablet to another node of its rack."""
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 2)
    return clusters.started(state, clusters.migration(state), STREAMING)


def failed_requests(state: ClusterState, count: int, since: int = 0) -> Acks:
    """Return an acknowledgement with that many failed row requests of the target."""
    moving = clusters.tablet(state).transition
    assert moving is not None
    (comes,) = {one.node for one in moving.next} - {one.node for one in clusters.tablet(state).replicas}
    source = clusters.tablet(state).replicas[0].node
    tries = (FailedTries(session(clusters.TABLE, 0, moving), source, count, since, 0, "away"),)
    epoch = state.epoch
    ack = NodeAck(state.cluster_id, comes, "1", epoch, epoch, (), 0, 0, tries, state_id_at(state, epoch))
    return {comes: ack}


def reverted(state: ClusterState, acks: Acks) -> list[RevertTablets]:
    proposed = [one.command for one in propose(CoordinatorView(state, acks, state.epoch, 0))]
    return [one for one in proposed if isinstance(one, RevertTablets)]


def test_a_tablet_reverts_after_the_permitted_attempts(streaming: ClusterState) -> None:
    assert not reverted(streaming, failed_requests(streaming, 199))
    (back,) = reverted(streaming, failed_requests(streaming, 200))
    assert "200 times to get rows" in back.tablets[0].reason
    assert back.tablets[0].reason.endswith("away")
    state = applied(streaming, back)
    assert not reverted(state, failed_requests(streaming, 200)), "the tablet is reverting"


def test_reports_of_another_history_or_session_revert_nothing(streaming: ClusterState) -> None:
    acks = failed_requests(streaming, 200)
    (comes, ack), *_ = acks.items()
    assert not reverted(streaming, {comes: replace(ack, state_id="of a log that is gone")})
    of_before = replace(ack.tries[0], operation=f"{clusters.TABLE}/0@1")
    assert not reverted(streaming, {comes: replace(ack, tries=(of_before,))})


def test_a_copy_reverts_without_a_complete_source() -> None:
    """The only replica is declared down while its copy is built; arrived rows already count."""
    state = clusters.with_table(clusters.three_racks(), clusters.factor(1), 2)
    ((source, _),) = clusters.places(clusters.tablet(state))
    state = applied(state, AlterKeyspace("ks", clusters.factor(2)))
    copy = TabletMigration(clusters.TABLE, 0, "rebuild", None, Shard(clusters.free_node(state), 0))
    streaming = clusters.started(state, copy, STREAMING)
    assert not reverted(streaming, {})
    state = applied(streaming, DeclareDown(source, "burnt"))
    (back,) = reverted(state, {})
    assert back.tablets[0].reason == f"too few live replicas have all rows; dead: {state.nodes[source].name}"
    moving = clusters.tablet(applied(state, back)).transition
    assert moving is not None
    assert moving.stage == CLEANUP_TARGET
    reported = clusters.step(streaming).tablets[0].reports
    epoch = state.epoch
    said = {
        name: NodeAck(state.cluster_id, name, "1", epoch, epoch, reported, 0, 0, (), state_id_at(state, epoch))
        for name in state.nodes
    }
    assert not reverted(state, said), "the copy continues"


def test_operators_see_failed_requests_and_the_reason_of_the_revert(streaming: ClusterState) -> None:
    acks = failed_requests(streaming, 7)
    (row,) = troubles_view(streaming, acks)
    assert (row["tablet"], row["stage"], row["reason"], row["tries"][0]["count"]) == (0, STREAMING, None, 7)
    assert "7 times without success: away" in next(troubles([row]))
    assert troubles_view(streaming, {}) == [] == troubles_view(streaming, acks, "ks.other")
    state = applied(streaming, *reverted(streaming, failed_requests(streaming, 200)))
    (row,) = troubles_view(state, {}, clusters.TABLE)
    assert "tried 200 times" in row["reason"]
    assert "cleanup_target" in next(troubles([row]))
