"""Keyspaces placed by a zone: a table has a tablet for each partition, and data moves with the partition."""

from __future__ import annotations

from random import Random

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.zones import AlterZone, DropZone, SetDataNodes
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.encoding.encoder import encode
from ringlog.kernel.generations.describe import tables_in_tablets
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import uniform_ends
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.groups import serving
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import Command, DatacenterReplication, Replication, TabletOptions, replace
from ringlog.kernel.zones.data import goal_of, holders
from ringlog.kernel.zones.resets import has_quorum
from ringlog.operator.views.zones import full_view
from ringlog.protocol.rebalancer.core import RebalancerView, idle_zones, propose, rejections
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES
from ringlog.protocol.rebalancer.zone_tablets import migrations
from ringlog.protocol.rebalancer.zone_waits import GONE, MISPLACED, waits_of
from tests.kernel.tablets.clusters import normal
from tests.kernel.zones.states import (
    answer,
    cancel,
    done,
    down,
    ids,
    letter,
    partition,
    reset,
    restart,
    shown,
    switch,
    to,
    tried,
    trigger,
)
from tests.kernel.zones.zone_keyspaces import (
    REPLICATION,
    TABLE,
    create_table,
    migration,
    node_reports,
    of_coordinator,
    of_rebalancer,
    on,
    run_to_idle,
    with_data,
    zone_only,
)

IN_DC1 = (DatacenterReplication("dc1", 1),)


def waits(state: ClusterState) -> str | None:
    """Return the wait reason of the first partition in ``ringlog zone show``."""
    found: str | None = full_view(state, state.zones["z"], node_reports(state))["partitions"][0]["waits"]
    return found


def some_steps(state: ClusterState, count: int, table: str = TABLE) -> ClusterState:
    """Start tablet moves and advance them by ``count`` stages."""
    moves = migrations(state)
    assert moves is not None
    state = done(state, moves)
    for _ in range(count):
        state = done(state, next(of_coordinator(state)))
    return state


def test_a_replication_without_a_zone_keeps_its_bytes() -> None:
    assert b"zone" not in encode(Replication("tablets", 2))
    assert b"zone" in encode(REPLICATION)


def test_a_table_has_a_tablet_for_each_partition() -> None:
    state = with_data("ABCD", partitions=3, replicas=2)
    tablets = state.tablets[TABLE]
    assert tablets.ends == uniform_ends(3)
    for number in range(3):
        assert on(state, number) == shown(partition(state, number).stable)
    group = serving(state, "ks", "t", 0)
    assert group is not None
    assert len(group[0].read) == 2
    shards = [one.shard for number in range(3) for one in tablets.replicas(number)]
    assert set(shards) == {0, 1}, "shards of a node alternate"


def test_a_second_table_uses_the_same_nodes() -> None:
    state = done(with_data("ABC", replicas=2), create_table("u", 2), create_table("v", 3, TabletOptions(base="u")))
    assert [on(state, number, "ks.u") for number in (0, 1)] == [on(state, number) for number in (0, 1)]
    assert "ks.v" not in state.tablets


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CreateKeyspace("a", Replication("zone", 0, zone="y")), "unknown_zone"),
        (CreateKeyspace("a", Replication("zone", 0)), "bad_field"),
        (CreateKeyspace("a", Replication("zone", 2, zone="z")), "bad_field"),
        (CreateKeyspace("a", Replication("simple", 2, zone="z")), "bad_field"),
        (CreateKeyspace("a", Replication("tablets", 2, zone="z")), "bad_field"),
        (CreateKeyspace("a", Replication("tablets", 1, IN_DC1, zone="z")), "bad_field"),
        (CreateKeyspace("a", Replication("zone", 0, IN_DC1, zone="z")), "bad_field"),
        (AlterKeyspace("ks", Replication("tablets", 1)), "conversion_impossible"),
        (AlterKeyspace("ks", Replication("simple", 1)), "conversion_impossible"),
        (AlterKeyspace("ks", REPLICATION), "bad_field"),
        (DropZone("z"), "zone_in_use"),
        (AlterZone("z", partitions=3), "partitions_fixed"),
        (DecideResize(TABLE, "split", 1), "cut_by_zone"),
        (create_table("u", 2, TabletOptions(count=8)), "bad_tablets"),
        (AlterTable("ks", "t", tablets=TabletOptions(min_count=2)), "bad_tablets"),
    ],
)
def test_invalid_commands_are_rejected(command: Command, code: str) -> None:
    state = with_data("ABC", replicas=2)
    assert tried(state, command)[1] == code


def test_each_partition_of_a_zone_needs_a_node() -> None:
    assert on(with_data("ABC", replicas=2, mode="high_availability")) != ""
    state = done(with_data("ABC", replicas=2), AlterZone("z", mode="high_availability"), AlterZone("z", mode="strong"))
    assert state.zones["z"].mode == "strong"
    state = done(zone_only("ABC", replicas=2), AlterZone("z", partitions=3))
    assert tried(state, CreateKeyspace("ks", REPLICATION))[1] == "replication_impossible", "a partition has no node"


def test_a_zone_whose_nodes_have_not_joined_places_nothing() -> None:
    state = zone_only("ABC", replicas=3)
    gone = done(state, *down("AB"))
    assert tried(gone, CreateKeyspace("ks", REPLICATION))[1] == "replication_impossible"
    state = done(state, CreateKeyspace("ks", REPLICATION), *down("A"), create_table())
    assert on(state) == "BC", "a majority is enough, and a dead node gets its replica later"
    state, _ = run_to_idle(done(state, DeclareUp(ids("A")[0], "")))
    assert on(state) == "ABC"


def test_a_zone_without_keyspaces_may_be_dropped_again() -> None:
    state = done(
        with_data("ABC"), DropTable("ks", "t"), DropKeyspace("ks"), AlterZone("z", partitions=3), DropZone("z")
    )
    assert "z" not in state.zones


def test_an_example_from_the_trigger_to_the_stable_configuration() -> None:
    """Node C replaces B. The reports of the nodes arrive immediately, the data stage by stage."""
    state = to(with_data("AB", "C", partitions=1, replicas=2), "AC")
    assert (shown(partition(state).pending[0]), on(state)) == ("AC", "AB")
    assert tried(state, switch(state))[1] == "awaits_data"
    assert [type(one).__name__ for one in of_rebalancer(state)] == ["MigrateTablets"]
    state = some_steps(state, 3)
    assert tried(state, switch(state))[1] == "awaits_data", "the tablet is migrating"
    assert waits(state) == "for its group to have A, C; for migrating tablet ks.t/0 (ringlog tablet explain)"
    state, asked = run_to_idle(state)
    assert asked == [*["AdvanceTablets"] * 4, "SwitchStable"]
    assert waits(state) is None
    assert (shown(partition(state).stable), on(state)) == ("AC", "AC")
    assert partition(state).pending == ()


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("A", "C", "outside_of_partition"),
        ("B", "D", "outside_of_partition"),
        ("", "D", "outside_of_partition"),
        ("A", "", "outside_of_partition"),
        ("B", "", "replicas_as_wanted"),
        ("B", "C", ""),
        ("", "C", ""),
    ],
)
def test_a_tablet_moves_from_leaving_to_new_nodes(source: str, target: str, code: str) -> None:
    state = to(with_data("AB", "CD", partitions=1, replicas=2), "AC")
    kind = "migration" if source and target else "rebuild"
    assert tried(state, migration(state, source, target, kind=kind))[1] == code


def test_an_idle_tablet_changes_only_its_shard() -> None:
    state = with_data("AB", "C", partitions=1, replicas=2)
    assert tried(state, migration(state, "B", "C"))[1] == "outside_of_partition"
    shard = state.tablets[TABLE].replicas(0)[0].shard
    one = migration(state, "A", "A", kind="intranode_migration").migrations[0]
    assert one.to is not None
    assert (
        tried(
            state,
            replace(
                migration(state, "A", "A"),
                migrations=(replace(one, kind="intranode_migration", to=replace(one.to, shard=1 - shard)),),
            ),
        )[1]
        == ""
    )


def test_replica_changes_include_new_tables() -> None:
    state = done(with_data("ABCD", partitions=2, replicas=1), AlterZone("z", replicas=3))
    state = done(state, trigger(state), create_table("u", 2))
    state, _ = run_to_idle(state)
    for table in (TABLE, "ks.u"):
        assert [len(on(state, number, table)) for number in (0, 1)] == [3, 3]
    state = done(state, AlterZone("z", replicas=2))
    state, _ = run_to_idle(done(state, trigger(state)))
    assert [on(state, number) for number in (0, 1)] == [shown(partition(state, number).stable) for number in (0, 1)]
    assert [len(on(state, number)) for number in (0, 1)] == [2, 2]


def test_a_node_whose_role_changes_keeps_its_tablets() -> None:
    state = with_data("ABCD", partitions=1, replicas=4)
    assert len(shown(partition(state).stable).split("/")) == 2, "one of four learns"
    learner = shown(partition(state).stable)[-1]
    voter = shown(partition(state).stable)[0]
    state = to(state, "ABCD".replace(voter, ""))
    assert len(partition(state).pending) == 2
    assert learner not in shown(partition(state).pending[0])
    kept = set()
    for _ in range(100):
        commands = (*of_coordinator(state), *of_rebalancer(state))
        if not commands:
            break
        state = done(state, commands[0])
        kept.add(learner in on(state))
    assert kept == {True}
    assert on(state) == "ABCD".replace(voter, "")


@pytest.mark.parametrize("stages", [0, 2, 4, 6])
def test_a_cancel_reverts_the_data(stages: int) -> None:
    state = some_steps(to(with_data("AB", "C", partitions=1, replicas=2), "AC"), stages)
    state = done(state, cancel(state))
    assert tried(state, answer(state, "already_new"))[1] == "awaits_data"
    assert tried(state, answer(state, "rolled_back"))[1] == "awaits_data"
    state, asked = run_to_idle(state)
    assert "FinishCancel" in asked
    # The nodes report the revert, so the cancel ends as rolled back. The moved data has returned.
    assert (shown(partition(state).stable), on(state)) == ("AB", "AB")


def test_a_cancel_after_the_data_move_may_finish_the_step() -> None:
    state = to(with_data("AB", "C", partitions=1, replicas=2), "AC")
    state = some_steps(state, 7)
    state = done(state, cancel(state))
    assert tried(state, answer(state, "rolled_back"))[1] == "awaits_data"
    state = done(state, answer(state, "already_new"))
    assert (shown(partition(state).stable), on(state)) == ("AC", "AC")


def test_a_revert_ignores_dead_nodes() -> None:
    """B gives its tablet to D. Then the step is cancelled, and B is dead."""
    state = to(with_data("ABC", "D", partitions=1, replicas=3), "ACD")
    state = some_steps(state, 7)
    state = done(state, *down("B"), cancel(state))
    state, _ = run_to_idle(state)
    assert (shown(partition(state).stable), on(state)) == ("ABC", "AC")
    state, _ = run_to_idle(done(state, DeclareUp(ids("B")[0], "")))
    assert on(state) == "ABC"


def test_a_dead_new_node_is_replaced_by_another_target() -> None:
    state = done(with_data("ABC", "DE", partitions=1, replicas=3), create_table("u", 2))
    state = to(state, "ABD")
    state = done(state, *down("D"))
    assert str(waits(state)).startswith("stuck: for its group to have A, B, D; not yet: D, of which D are down; ")
    assert str(waits(state)).endswith("; D cannot get tablets now: start them again, or ringlog zone cancel")
    state, asked = run_to_idle(to(state, "ABE"))
    assert "CancelRebalance" in asked
    assert (on(state), on(state, 0, "ks.u"), shown(partition(state).stable)) == ("ABE", "ABE", "ABE")


def test_restarted_replicas_get_their_data() -> None:
    state = with_data("ABC", partitions=1, replicas=3)
    before = {one.node: one.since for one in state.tablets[TABLE].replicas(0)}
    state, _ = run_to_idle(done(state, restart(state, "B")))
    after = {one.node: one.since for one in state.tablets[TABLE].replicas(0)}
    assert on(state) == "ABC"
    assert [node for node in sorted(after) if after[node] != before[node]] == [ids("B")[0]]


def data_nodes(state: ClusterState) -> ClusterState:
    """Set the data nodes as the rebalancer does without a delay."""
    for command in new_data_nodes(updated_timers(Timers(), state), state, 0):
        state = done(state, command)
    return state


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_leaving_node_is_drained_first_in_a_zone(replicas: int) -> None:
    state = with_data("ABC", partitions=3, replicas=replicas, scale_up=0)
    state = data_nodes(done(state, Leave(ids("B")[0])))
    assert state.zones["z"].nodes == ids("AC")
    state, _ = run_to_idle(state)
    assert all("B" not in on(state, number) for number in range(3))
    assert [one.stage for one in in_flight(state)] == ["requested"]


def test_data_of_a_removed_node_comes_from_the_others() -> None:
    state = with_data("ABC", "D", partitions=3, replicas=3, scale_up=0)
    state = done(state, *down("B"))
    assert data_nodes(state).zones["z"].nodes == ids("ABCD"), "scale_down is never"
    state, _ = run_to_idle(data_nodes(done(state, Remove(ids("B")[0]))))
    assert [on(state, number) for number in range(3)] == ["ACD"] * 3


def test_the_only_data_node_cannot_leave() -> None:
    state = with_data("A", "B", replicas=1)
    assert tried(state, Leave(ids("A")[0]))[1] == "drain_impossible"


def test_a_node_that_has_not_joined_is_not_a_data_node() -> None:
    state = with_data("AB", replicas=2, scale_up=0)
    state = done(state, letter("C"))
    assert data_nodes(state).zones["z"].nodes == ids("AB")
    assert data_nodes(normal(state, letter("D"))).zones["z"].nodes == ids("ABD")


def test_the_balancer_leaves_zones_alone() -> None:
    state = with_data("AB", "CDE", partitions=4, replicas=2)
    advice = advise(state, {})
    assert (advice.commands, advice.inputs.tables) == ((), ())


def test_a_table_with_a_log_has_streams_of_its_tablets() -> None:
    state = done(with_data("AB", partitions=3, replicas=2), create_table("c", 2, cdc=True))
    (described,) = tables_in_tablets(state)
    assert described.ends == state.tablets["ks.c"].ends


def test_a_departed_node_of_a_reverted_partition_is_replaced() -> None:
    """B was about to leave, so its departure does not change the zone. But it never returns."""
    state = to(with_data("ABC", "DE", partitions=1, replicas=3), "ACD")
    state = done(state, cancel(state))
    state, _ = run_to_idle(state)
    assert shown(partition(state).stable) == "ABC"
    state, asked = run_to_idle(done(state, *down("B"), Assassinate(ids("B")[0])))
    assert "TriggerRebalance" in asked
    assert (shown(partition(state).stable), on(state)) == ("ACD", "ACD")


def test_a_revert_to_a_departed_node_shows_its_remedy() -> None:
    state = to(done(with_data("ABC", "DE", partitions=1, replicas=3), *down("B"), Assassinate(ids("B")[0])), "ACD")
    state, _ = run_to_idle(done(state, cancel(state)))
    assert waits(state) == "stuck: it was reverted to B, which have left; ringlog zone rebalance z 0"
    state, _ = run_to_idle(done(state, trigger(state)))
    assert (shown(partition(state).stable), on(state), waits(state)) == ("ACD", "ACD", None)


def test_a_step_to_a_departed_node_is_reverted() -> None:
    """D was the only data node, so no other target exists."""
    state = to(with_data("ABC", "D", partitions=1, replicas=3), "D")
    state = done(state, *down("D"))
    assert run_to_idle(state)[1] == [], "it may return"
    state, _ = run_to_idle(data_nodes(done(state, Assassinate(ids("D")[0]))))
    assert (shown(partition(state).stable), partition(state).pending, state.zones["z"].nodes) == ("ABC", (), ())


def test_a_departed_node_of_a_smaller_group_is_ignored() -> None:
    """Two of three replicas remain and merge the rows of the third one, which is removed meanwhile."""
    state = done(with_data("ABC", partitions=1, replicas=3), AlterZone("z", replicas=2))
    state = some_steps(done(state, trigger(state)), 2)
    assert [one.stage for _, one in transitions(state)] == ["streaming"]
    stays = shown(partition(state).pending[0])[0]
    state = data_nodes(done(state, *down(stays), Assassinate(ids(stays)[0])))
    state, _ = run_to_idle(state)
    assert (waits(state), on(state)) == (None, "ABC".replace(stays, ""))


@pytest.mark.parametrize("moving", [False, True])
def test_a_lost_majority_is_reported_with_its_remedy(moving: bool) -> None:
    """Without a step, and during a step with migrating tablets."""
    state = with_data("ABC", "DE", partitions=1, replicas=3)
    if moving:
        state = some_steps(to(state, "ADE"), 2)
    state = done(state, *down("BC"))
    while commands := new_data_nodes(updated_timers(Timers(), state), state, 0):
        state = done(state, *commands)
    state, _ = run_to_idle(done(state, Assassinate(ids("B")[0]), Assassinate(ids("C")[0])))
    said_ = str(waits(state))
    assert said_.startswith("stuck: ")
    assert "for a quorum of its voters: B, C are down; " in said_
    assert "ringlog zone cancel" not in said_, "no node could report the revert"
    state, _ = run_to_idle(done(state, reset(state, {"A": 1}, admits_loss=True)))
    assert waits(state) is None
    assert "A" in shown(partition(state).stable)
    assert on(state) == shown(partition(state).stable)


def check_final_state(state: ClusterState) -> None:
    """Declare the live nodes up. Operators follow only the wait reasons of partitions."""
    state = done(state, *(DeclareUp(one.id, "") for one in state.nodes.values() if one.down and one.state != "left"))
    state = done(state, *(CancelOperation(one.id, "") for one in in_flight(state)))
    while commands := new_data_nodes(updated_timers(Timers(), state), state, 0):
        state = done(state, *commands)
    state, _ = run_to_idle(state)
    words = node_reports(state)
    for number in range(2):
        found = waits_of(state, partition(state, number), words)
        assert all(one.is_stuck for one in found), "all other steps are automatic"
        if {one.code for one in found} & {GONE, MISPLACED}:
            state, _ = run_to_idle(done(state, TriggerRebalance("z", state.epoch, (number,))))
    for number in range(2):
        one = partition(state, number)
        if waits_of(state, one, node_reports(state)):
            assert not has_quorum(state, state.zones["z"], one), "no other partition is stuck"
            continue
        assert one.pending == ()
        for tablets in state.tablets.values():
            tablet = tablets.tablet(number)
            assert tablet.transition is None
            assert holders(tablet) == goal_of(one).must


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_end_with_data_in_place(seed: int) -> None:
    """Random events: data nodes change, nodes die, return, leave or are removed, steps are cancelled, tables come and
    go.

    The driver checks the invariants of each state. At the end each tablet is on the nodes of its partition.
    """
    random, rest = Random(seed), NO_IDLE_ZONES
    state = done(with_data("ABCD", "EF", partitions=2, replicas=3), create_table("u", 2))
    for round_ in range(60):
        dice = random.random()
        if dice < 0.12:
            wanted: list[Command] = [SetDataNodes("z", ids("".join(sorted(random.sample("ABCDEF", 4)))), state.epoch)]
            wanted.append(trigger(state, state.epoch + 1))
        elif dice < 0.18:
            wanted = [cancel(state)]
        elif dice < 0.24 and not any(one.down for one in state.nodes.values()):
            wanted = list(down(random.choice("ABCDEF")))
        elif dice < 0.34:
            wanted = [DeclareUp(one.id, "") for one in state.nodes.values() if one.down]
        elif dice < 0.38:
            wanted = [restart(state, random.choice("ABCDEF"))]
        elif dice < 0.42:
            wanted = [
                AlterZone("z", replicas=random.choice([1, 2, 3])),
                create_table("w", 100 + round_),
                DropTable("ks", "w"),
            ]
        elif dice < 0.48:
            wanted = [random.choice([Leave, Assassinate])(ids(random.choice("ABCDEF"))[0])]
        elif dice < 0.52:
            wanted = [
                *new_data_nodes(updated_timers(Timers(), state), state, 0),
                *(CancelOperation(one.id, "") for one in in_flight(state)),
            ]
        else:
            whole = RebalancerView(state, node_reports(state))
            rest = idle_zones(replace(whole, idle=rest))
            asked = propose(replace(whole, idle=rest))
            assert asked == propose(whole), "idle zones need no command"
            assert list(rejections(replace(whole, idle=rest))) == list(rejections(whole)), "no zone is stuck"
            wanted = [*of_coordinator(state), *(one.command for one in asked)]
            random.shuffle(wanted)
        for command in wanted[: random.choice([1, 2, 9])]:
            state, _ = tried(state, command)
    check_final_state(state)
