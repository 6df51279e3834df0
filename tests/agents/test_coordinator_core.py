"""Proposals of the coordinator: the next step as soon as its conditions hold, and no step that would be refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
    RequestCdcGeneration,
)
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join, Leave
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, replace
from ringlog.protocol.coordinator.ack_book import matches_log
from ringlog.protocol.coordinator.core import (
    HORIZON_WAIT_US,
    UNWATCHED_MARGIN_US,
    awaits_publication,
    prepared_in_full,
    propose,
)
from ringlog.protocol.validator.limits import too_far_ahead
from ringlog.wire.records import NodeAck

from .operation_runner import NOW, acks_of, finish_operations, known
from .world import World

LEAD_US = 2_000_000
START = NOW + LEAD_US
"""Start of the first generation and of the first writer."""

LATER = NOW + 10_000_000


def node(number: int) -> str:
    return f"{number}{number}{number}{number}{number}{number}{number}{number}-1111-4111-8111-111111111111"


def applied(world: World, *commands: Command) -> ClusterState:
    for command in commands:
        world.direct(command)
    return world.state


def joining(world: World, number: int) -> ClusterState:
    """Return a state with a requested join."""
    name, port = f"n{number}", 7_000 + number
    register = RegisterNode(name, node(number), f"127.0.0.1:{port}", "dc", "r", 2, 12, "1", (), 1)
    return applied(world, register, Join(node(number), (number * 1_000, number * 10**15), bytes(16)))


def finish(world: World) -> list[str]:
    """Complete all operations and return the kinds and stages on the way."""
    steps = []
    while proposals := propose(known(world.state)):
        command = proposals[0].command
        steps.append(command.to if isinstance(command, AdvanceOperation) else type(command).__name__)
        world.direct(command)
    return steps


@pytest.fixture
def world() -> World:
    return World()


def test_a_join_goes_through_every_stage_with_its_generation(world: World) -> None:
    joining(world, 1)
    assert finish(world) == [
        "prepared",
        "commit_cdc_generation",
        "PutCdcGenerationData",
        "CommitCdcGeneration",
        "publish_cdc_generation",
        "PublishCdcGeneration",
        "write_both_read_old",
        "write_both_read_new",
        "finished",
    ]
    assert world.state.nodes[node(1)].state == "normal"
    joining(world, 2)
    finish(world)
    logged(world)
    assert endings(world, NOW + 2**50) == [], "no writer has logged rows in it"
    assert [generation.status for generation in world.state.generations] == ["published", "published"]


def test_without_logged_tables_generations_advance_automatically(world: World) -> None:
    joining(world, 1)
    finish(world)
    joining(world, 2)
    assert "CloseCdcGeneration" not in finish(world), "a client could create a table now and write to it"
    end = world.state.generations[1].timestamp + 5_000_000 + UNWATCHED_MARGIN_US
    assert propose(known(world.state, now=end)) == ()
    assert endings(world, end + 1) == ["CloseCdcGeneration", "ExpireCdcGeneration", "ForgetCdcGeneration"]
    assert [generation.status for generation in world.state.generations] == ["expired", "published"]
    assert world.state.generations[0].ranges == ()


def test_an_expired_generation_is_published_before_it_is_pruned(world: World) -> None:
    prepared(world)
    finish(world)
    logged(world, ttl=3600)
    following = world.state.generations[-1].timestamp
    applied(world, AdvanceCdcWriter("spark", "a", max(world.state.writers["spark"].horizon, following), following))
    closed_at = following + 7_000_000
    assert endings(world, closed_at) == ["CloseCdcGeneration"]
    end = closed_at + 3600 * 1_000_000
    assert endings(world, end - 1) == []
    (expiry,) = propose(known(world.state, now=end))
    assert expiry.command == ExpireCdcGeneration(world.state.generations[0].id, end)
    state = applied(world, expiry.command)
    assert too_far_ahead(state, ExpireCdcGeneration("x", end), end) is None
    refused = too_far_ahead(state, ExpireCdcGeneration("x", end), end - 901_000_000)
    assert refused is not None
    assert refused.code == "timestamp_too_far_ahead"
    assert propose(known(state, now=end, published=state.epoch - 1)) == ()
    assert [proposal.command for proposal in propose(known(state, now=end))] == [
        ForgetCdcGeneration(state.generations[0].id)
    ]


def endings(world: World, now: int) -> list[str]:
    """Return the applied kinds until the coordinator proposes nothing at ``now``."""
    kinds = []
    while proposals := propose(known(world.state, now=now)):
        kinds.append(type(proposals[0].command).__name__)
        applied(world, proposals[0].command)
    return kinds


def logged(world: World, ttl: int = 86_400) -> None:
    """Return a state with a table that has a log."""
    options = CdcOptions(enabled=True, ttl=ttl)
    columns = (Column("k", "int"),)
    applied(world, CreateKeyspace("ks", Replication("simple", 1)))
    applied(world, CreateTable("ks", "logged", node(9), columns, ("k",), (), options))


def test_without_acknowledgements_no_gated_step_advances(world: World) -> None:
    state = joining(world, 1)
    (first,) = propose(known(state, acks={}))
    assert isinstance(first.command, AdvanceOperation)
    state = applied(world, first.command)
    assert propose(known(state, acks={})) == ()
    others = {name: replace(ack, cluster_id=world.uuid()) for name, ack in acks_of(state).items()}
    assert propose(known(state, acks=others)) == ()
    assert len(propose(known(state))) == 1


def test_acknowledgements_count_once_the_log_vouches_for_them(world: World) -> None:
    state = applied(world, propose(known(joining(world, 1)))[0].command)
    acks = acks_of(state)
    ahead = {name: replace(ack, applied=10**6, drained=10**6) for name, ack in acks.items()}
    other = {name: replace(ack, state_id=world.uuid()) for name, ack in acks.items()}
    assert propose(known(state, acks=ahead)) == propose(known(state, acks=other)) == ()
    mine = {name: replace(ack, state_id=state.state_id, drained=10**6) for name, ack in acks.items()}
    (proposal,) = propose(known(state, acks=mine))
    assert isinstance(proposal.command, AdvanceOperation)
    assert {(witness.applied, witness.drained) for witness in proposal.command.witnesses} == {(state.epoch,) * 2}


def test_reports_of_other_operations_are_not_shown(world: World) -> None:
    joining(world, 1)
    state = world.state
    while state.operations and next(iter(state.operations.values())).stage != "write_both_read_old":
        state = applied(world, propose(known(state))[0].command)
    late = {
        name: replace(ack, reports=tuple(replace(report, operation="join-1") for report in ack.reports))
        for name, ack in acks_of(state).items()
    }
    assert propose(known(state, acks=late)) == ()
    assert len(propose(known(state))) == 1


def test_the_same_view_sends_the_same_id_and_a_newer_view_another(world: World) -> None:
    state = joining(world, 1)
    (first,) = propose(known(state))
    assert propose(known(state)) == (first,)
    state = applied(world)
    world.direct()
    (later,) = propose(known(world.state))
    assert later.request_id != first.request_id
    assert later.since_epoch == world.state.epoch


def prepared(world: World, horizon: int = LATER + 9_000_000) -> ClusterState:
    """Return a generation with all of its data, and a writer with a distant lease."""
    joining(world, 1)
    finish(world)
    applied(world, RegisterCdcWriter("spark", "a"), AdvanceCdcWriter("spark", "a", horizon, START))
    joining(world, 2)
    while prepared_in_full(world.state) is None:
        applied(world, propose(known(world.state))[0].command)
    return world.state


def commits(state: ClusterState, **changes: object) -> list[int]:
    commands = [proposal.command for proposal in propose(known(state, **changes))]
    return [command.timestamp for command in commands if isinstance(command, CommitCdcGeneration)]


def test_a_new_generation_starts_above_the_leases_of_live_writers(world: World) -> None:
    state = prepared(world)
    assert commits(state, now=LATER, complete_since=LATER) == []
    assert commits(state, now=LATER, complete_since=LATER - HORIZON_WAIT_US) == [LATER + 9_000_001]
    applied(world, AdvanceCdcWriter("spark", "a", LATER + 1_000, START))
    assert commits(world.state, now=LATER, complete_since=LATER) == [LATER + LEAD_US]


def test_a_generation_too_far_ahead_waits_until_the_validator_accepts_it(world: World) -> None:
    """A client with a fast clock wrote a distant lease; without the wait the refusal would repeat without end."""
    far = LATER + 1_000_000_000
    prepared(world, far)
    for seconds in (0, 60, 800, 850, 878, 882, 883, 900, 1_100):
        now = LATER + seconds * 1_000_000
        timestamps = commits(world.state, now=now)
        assert timestamps == ([] if seconds < 883 else [max(far + 1, now + LEAD_US)])
        for timestamp in timestamps:
            assert too_far_ahead(world.state, CommitCdcGeneration("x", timestamp, ""), now - LEAD_US) is None


def test_a_new_generation_starts_above_the_previous_one_after_a_clock_decrease(world: World) -> None:
    state = prepared(world)
    assert state.generations[-1].timestamp == START
    applied(world, AdvanceCdcWriter("spark", "a", START, START))
    assert commits(world.state, now=NOW - 60_000_000, complete_since=NOW) == [START + 1]


def test_publication_is_recorded_only_when_the_change_topics_have_it(world: World) -> None:
    joining(world, 1)
    while not world.state.generations:
        applied(world, propose(known(world.state))[0].command)
    state = world.state
    assert awaits_publication(state)

    def publications(published: int) -> int:
        proposals = propose(known(state, published=published))
        return sum(isinstance(proposal.command, PublishCdcGeneration) for proposal in proposals)

    committed = state.generations[-1].committed
    assert publications(committed - 1) == 0
    assert publications(committed) == 1


def test_a_generation_is_sealed_only_when_its_writers_are_done(world: World) -> None:
    prepared(world)
    finish(world)
    following = world.state.generations[-1].timestamp
    assert [generation.status for generation in world.state.generations] == ["published", "published"]
    horizon = world.state.writers["spark"].horizon
    applied(world, AdvanceCdcWriter("spark", "a", max(horizon, following), following))
    assert [type(proposal.command) for proposal in propose(known(world.state))] == [CloseCdcGeneration]


def test_a_request_for_a_generation_is_served(world: World) -> None:
    joining(world, 1)
    finish(world)
    applied(world, RequestCdcGeneration(bytes(range(16))))
    assert finish(world) == []
    assert len(world.state.generations) == 1


def test_data_of_former_owners_is_written_again(world: World) -> None:
    state = prepared(world)
    assert state.prepared is not None
    (part,) = (ranges for _, ranges in state.prepared.received)
    stale = PutCdcGenerationData(state.prepared.id, 0, 1, part[:1])
    state = applied(world, stale)
    (again,) = [
        proposal.command for proposal in propose(known(state)) if not isinstance(proposal.command, AdvanceOperation)
    ]
    assert isinstance(again, PutCdcGenerationData)
    assert again.ranges == part


def test_a_finished_cluster_gets_no_proposal(world: World) -> None:
    assert propose(known(world.state)) == ()
    joining(world, 1)
    finish(world)
    assert propose(known(world.state)) == ()
    assert finish_operations(world.state, lambda state, _: state) == []


def test_several_operations_advance_together_with_separate_reports(world: World) -> None:
    for number in (1, 2, 3, 4):
        joining(world, number)
    assert len(propose(known(world.state))) == 4
    finish(world)
    assert {one.state for one in world.state.nodes.values()} == {"normal"}
    applied(world, CreateKeyspace("ks", Replication("simple", 2)), Leave(node(2)))
    while next(op for op in world.state.operations.values() if op.kind == "leave").stage != "write_both_read_old":
        applied(world, propose(known(world.state))[0].command)
    (proposal,) = [one for one in propose(known(world.state)) if isinstance(one.command, AdvanceOperation)]
    reports = proposal.command.reports
    assert len(reports) > 1
    assert {report.operation for report in reports} == {proposal.command.operation}
    silent = {
        name: replace(ack, reports=()) if name == reports[0].node else ack for name, ack in acks_of(world.state).items()
    }
    assert propose(known(world.state, acks=silent)) == ()


def test_only_permitted_operations_advance(world: World) -> None:
    applied(world, ChangeSettings((("operations_concurrent_max", 2),)))
    for number in (1, 2, 3):
        joining(world, number)
    assert len(propose(known(world.state))) == 2
    finish(world)
    assert {one.state for one in world.state.nodes.values()} == {"normal"}


# --------------------------------------------------------------------------- acknowledgements of another history


def acknowledging_nodes(state: ClusterState, acks: Mapping[str, NodeAck]) -> set[str]:
    """Return the acknowledging nodes of a proposal."""
    (proposal,) = propose(known(state, acks=acks))
    assert isinstance(proposal.command, AdvanceOperation)
    return {witness.node for witness in proposal.command.witnesses}


def test_acknowledgements_of_a_lost_history_do_not_count() -> None:
    state = joining(World(), 1)
    acks = acks_of(state)
    mine = {node: replace(ack, state_id=state.state_id) for node, ack in acks.items()}
    lost = {node: replace(ack, state_id=node) for node, ack in acks.items()}
    assert acknowledging_nodes(state, mine) == acknowledging_nodes(state, acks) == set(acks)
    assert acknowledging_nodes(state, lost) == set()


def test_an_acknowledgement_counts_once_its_epoch_is_folded() -> None:
    """An epoch that the coordinator has not folded, or has pruned, cannot be compared."""
    state = joining(World(), 1)
    (ack,) = acks_of(state).values()
    ahead = replace(ack, applied=state.epoch + 1, state_id=state.state_id)
    assert not matches_log(ahead, state)
    assert matches_log(replace(ahead, applied=state.epoch), state)
    assert not matches_log(replace(ahead, applied=state.epoch, cluster_id=ack.node), state)
