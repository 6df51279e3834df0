"""A tablet whose rows are asked for in vain turns back when that was often enough, and operators see both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlog.kernel.commands.placement.tablets import RevertTablets, Shard, TabletMigration
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.stages import CLEANUP_TARGET, STREAMING, session
from ringlog.operator.views.tablets import troubles, troubles_view
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.wire.records import FailedTries, NodeAck
from tests.kernel.entries import applied
from tests.kernel.tablets import lives

Acks = dict[str, NodeAck]


@pytest.fixture(scope="module")
def streaming() -> ClusterState:
    """A tablet is streamed to another node of its rack."""
    state = lives.with_table(lives.three_racks(), lives.factor(3), 2)
    return lives.started(state, lives.migration(state), STREAMING)


def tried(state: ClusterState, count: int, since: int = 0) -> Acks:
    """Who is to come has asked for the rows that often."""
    moving = lives.tablet(state).transition
    assert moving is not None
    (comes,) = {one.node for one in moving.next} - {one.node for one in lives.tablet(state).replicas}
    source = lives.tablet(state).replicas[0].node
    tries = (FailedTries(session(lives.TABLE, 0, moving), source, count, since, 0, "away"),)
    epoch = state.epoch
    ack = NodeAck(state.cluster_id, comes, "1", epoch, epoch, (), 0, 0, tries, state_id_at(state, epoch))
    return {comes: ack}


def turned_back(state: ClusterState, acks: Acks) -> list[RevertTablets]:
    proposed = [one.command for one in propose(CoordinatorView(state, acks, state.epoch, 0))]
    return [one for one in proposed if isinstance(one, RevertTablets)]


def test_it_turns_back_when_it_was_tried_as_often_as_it_may_be(streaming: ClusterState) -> None:
    assert not turned_back(streaming, tried(streaming, 199))
    (back,) = turned_back(streaming, tried(streaming, 200))
    assert "200 times to get rows" in back.tablets[0].reason
    assert back.tablets[0].reason.endswith("away")
    state = applied(streaming, back)
    assert not turned_back(state, tried(streaming, 200)), "it is on its way back"


def test_what_another_history_or_session_says_turns_nothing_back(streaming: ClusterState) -> None:
    acks = tried(streaming, 200)
    (comes, ack), *_ = acks.items()
    assert not turned_back(streaming, {comes: replace(ack, state_id="of a log that is gone")})
    of_before = replace(ack.tries[0], operation=f"{lives.TABLE}/0@1")
    assert not turned_back(streaming, {comes: replace(ack, tries=(of_before,))})


def test_a_copy_turns_back_when_nobody_is_left_who_knows_every_row() -> None:
    """The only replica is declared down while a second one is made of it; rows that have come already count."""
    state = lives.with_table(lives.three_racks(), lives.factor(1), 2)
    ((source, _),) = lives.places(lives.tablet(state))
    state = applied(state, AlterKeyspace("ks", lives.factor(2)))
    copy = TabletMigration(lives.TABLE, 0, "rebuild", None, Shard(lives.free_node(state), 0))
    streaming = lives.started(state, copy, STREAMING)
    assert not turned_back(streaming, {})
    state = applied(streaming, DeclareDown(source, "burnt"))
    (back,) = turned_back(state, {})
    assert back.tablets[0].reason == f"too few know every row; dead: {state.nodes[source].name}"
    moving = lives.tablet(applied(state, back)).transition
    assert moving is not None
    assert moving.stage == CLEANUP_TARGET
    reported = lives.step(streaming).tablets[0].reports
    epoch = state.epoch
    said = {
        name: NodeAck(state.cluster_id, name, "1", epoch, epoch, reported, 0, 0, (), state_id_at(state, epoch))
        for name in state.nodes
    }
    assert not turned_back(state, said), "it goes on"


def test_operators_see_who_asks_in_vain_and_why_it_turns_back(streaming: ClusterState) -> None:
    acks = tried(streaming, 7)
    (row,) = troubles_view(streaming, acks)
    assert (row["tablet"], row["stage"], row["reason"], row["tries"][0]["count"]) == (0, STREAMING, None, 7)
    assert "7 times without success: away" in next(troubles([row]))
    assert troubles_view(streaming, {}) == [] == troubles_view(streaming, acks, "ks.other")
    state = applied(streaming, *turned_back(streaming, tried(streaming, 200)))
    (row,) = troubles_view(state, {}, lives.TABLE)
    assert "tried 200 times" in row["reason"]
    assert "cleanup_target" in next(troubles([row]))
