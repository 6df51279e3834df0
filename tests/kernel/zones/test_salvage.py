"""Reset of partitions with data after the loss of their majority: the remaining rows merge into one survivor."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ringlog.kernel.commands.placement.rebalances import ResetPartitions, TriggerRebalance
from ringlog.kernel.commands.placement.tablets import AdvanceTablets, RevertTablets, TabletRevert
from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.groups import group_of, streams_of
from ringlog.kernel.zones.data import goal_of, holders
from ringlog.kernel.zones.resets import is_viable
from ringlog.kernel.zones.salvage import full_replicas, lost_tables, may_lose
from ringlog.operator.views.zone_explanations import explain
from ringlog.protocol.nodes.stream_work import works_for_node
from ringlog.protocol.rebalancer.zone_waits import OPERATION, VOTERS, waits_of
from tests.kernel.entries import entry
from tests.kernel.tablets.clusters import joining
from tests.kernel.zones.states import done, down, ids, letter, partition, reset, shown, tried, trigger
from tests.kernel.zones.zone_keyspaces import (
    TABLE,
    create_table,
    migration,
    node_reports,
    of_coordinator,
    of_rebalancer,
    on,
    run_to_idle,
    stage,
    with_data,
)

HIGH = "high_availability"


def lost(letters: str = "BC", nodes: str = "ABC", outside: str = "", **values: Any) -> ClusterState:
    """Return a zone of one partition with data on these nodes, some of them down."""
    values = {"partitions": 1, "replicas": len(nodes), **values}
    return done(with_data(nodes, outside, **values), *down(letters))


def refusal(state: ClusterState, command: ResetPartitions) -> tuple[str, str]:
    outcome = fold(state, entry(state, command)).outcome
    return outcome.code, outcome.detail


def up(state: ClusterState) -> ClusterState:
    return done(state, *(DeclareUp(one.id, "") for one in state.nodes.values() if one.down))


def waits(state: ClusterState) -> str | None:
    return explain(state, partition(state), waits_of(state, partition(state), node_reports(state)))


def codes(state: ClusterState) -> list[str]:
    return [one.code for one in waits_of(state, partition(state), node_reports(state))]


def steps(state: ClusterState, count: int) -> ClusterState:
    """Apply the next ``count`` proposed commands."""
    for _ in range(count):
        for command in (*of_coordinator(state), *of_rebalancer(state)):
            after, code = tried(state, command)
            if not code:
                state = after
                break
    return state


# Effects of a reset


def test_a_highly_available_zone_continues_with_the_live_nodes() -> None:
    state = with_data("ABC", partitions=1, replicas=3, mode=HIGH)
    state, asked = run_to_idle(done(state, *down("BC")))
    assert asked == ["ResetPartitions", *["AdvanceTablets"] * 3, "SwitchStable", "TriggerRebalance"]
    assert (shown(partition(state).stable), on(state), waits(state)) == ("A", "A", None)
    assert [len(link.nodes) for link in partition(state).chain] == [3, 1]
    state, _ = run_to_idle(done(state, DeclareUp(ids("C")[0], "")))
    assert (shown(partition(state).stable), on(state)) == ("AC", "AC")
    state, _ = run_to_idle(up(state))
    assert (shown(partition(state).stable), on(state), waits(state)) == ("ABC", "ABC", None)


def test_the_survivor_is_read_after_the_merge_of_live_rows() -> None:
    """Two of five replicas are alive. Each may have writes that the other lacks."""
    state = lost("BCE", "ABCDE", quorum=3)
    code, detail = refusal(state, reset(state, {"A": 3, "D": 7}))
    assert (code, "registers whose last write only B, C, E have" in detail) == ("may_lose_data", True), detail
    state = done(state, reset(state, {"A": 3, "D": 7}, admits_loss=True))
    tablet = state.tablets[TABLE].tablet(0)
    (survivor, other) = ids("DA")
    assert [one.node for one in tablet.transition.next] == [survivor]  # type: ignore[union-attr]
    assert streams_of(tablet, state.nodes, anywhere=True) == ((other, survivor),)
    assert {one.source for work in works_for_node(state, survivor).values() for one in work.sources} == {other}
    assert [one.node for one in group_of(tablet).read] == [one.node for one in tablet.replicas], "no new node is read"
    assert works_for_node(state, other) == {}, "only the survivor reports"
    state = steps(state, 1)
    group = group_of(state.tablets[TABLE].tablet(0))
    assert ([one.node for one in group.read], len(group.write)) == ([survivor], 5)
    assert group.changed == state.epoch, "an earlier answer does not count"
    state = steps(state, 1)
    group = group_of(state.tablets[TABLE].tablet(0))
    assert [one.node for one in group.read] == [one.node for one in group.write] == [survivor]
    state, _ = run_to_idle(state)
    assert (shown(partition(state).stable), on(state)) == ("AD", "AD"), "all live nodes are replicas"


def without_two_voters() -> tuple[ClusterState, str, str]:
    """Return a state of five replicas with two of three voters down, these two, and the others."""
    state = with_data("ABCDE", partitions=1, replicas=5, quorum=2)
    voters = shown(partition(state).stable).split("/")[0][:2]
    return done(state, *down(voters)), voters, "".join(sorted(set("ABCDE") - set(voters)))


def test_a_node_that_returns_before_the_step_is_merged() -> None:
    """Another node dies after the reset and returns after the survivor's report."""
    state, _, left = without_two_voters()
    state = done(state, reset(state, dict.fromkeys(left, 1), admits_loss=True))
    (survivor,) = [one.node for one in state.tablets[TABLE].tablet(0).transition.next]  # type: ignore[union-attr]
    gone, stays = (node for node in ids(left) if node != survivor)
    state = done(state, DeclareDown(gone, ""))
    step = next(one for one in of_coordinator(state) if isinstance(one, AdvanceTablets))
    assert tried(state, step)[1] == ""
    (early,) = works_for_node(state, survivor)
    state = done(state, DeclareUp(gone, ""))
    assert tried(state, step)[1] in ("bad_field", "gate_not_met"), "the report is without the returned node"
    ((late, work),) = works_for_node(state, survivor).items()
    assert late != early
    assert {one.source for one in work.sources} == {gone, stays}
    state, _ = run_to_idle(state)
    assert codes(state) == ["misplaced"], "the dead nodes are data nodes"
    assert {*ids(left)} <= {*ids(on(state))}


def test_a_merged_majority_needs_no_consent_to_data_loss() -> None:
    state, lost_ones, left = without_two_voters()
    state = done(state, reset(state, dict.fromkeys(left, 1)))
    step = next(one for one in of_coordinator(state) if isinstance(one, AdvanceTablets))
    state = done(state, DeclareUp(ids(lost_ones)[0], ""))
    assert tried(state, step)[1] == ""


def test_a_manual_reset_restores_the_replica_count() -> None:
    state = lost("BC", "ABCDE", replicas=3)
    state = done(state, AlterZone("z", replicas=3))
    one = partition(state)
    have = shown(one.stable)
    state = done(up(state), *down(have[1:]))
    state = done(state, reset(state, {have[0]: 1}, admits_loss=True))
    assert [shown(step) for step in partition(state).pending] == [have[0]]
    state, _ = run_to_idle(state)
    assert len(shown(partition(state).stable)) == 3
    assert on(state) == shown(partition(state).stable)
    assert have[0] in on(state)
    assert not set(have[1:]) & set(on(state))


@pytest.mark.parametrize("mode", ["strong", HIGH])
@pytest.mark.parametrize("taken", range(12))
def test_a_lost_majority_in_each_stage_keeps_the_live_rows(taken: int, mode: str) -> None:
    """During a move from ABC to ADE, all nodes are lost except one with all data, or A."""
    state = with_data("ABC", "DE", partitions=1, replicas=3, mode=mode)
    state = done(state, SetDataNodes("z", ids("ADE"), state.epoch))
    state = steps(done(state, trigger(state)), taken)
    have = sorted({chr(int(one.node[:8], 16) + 64) for one in full_replicas(state.tablets[TABLE].tablet(0))})
    others = "".join(sorted(set("ABCDE") - {have[-1]}))
    state = done(state, *down(others))
    if is_viable(state, state.zones["z"], partition(state)):
        return
    if mode == "strong":
        state = done(state, reset(state, {have[-1]: 1}, admits_loss=True))
    state, _ = run_to_idle(state)
    if partition(state).pending or have[-1] not in shown(partition(state).stable):
        assert "which nobody alive" not in str(waits(state))
        assert mode == HIGH, "an automatic reset starts from the reached configuration"
        assert have[-1] not in shown(partition(state).reached)
        return
    assert have[-1] in on(state)
    state, _ = run_to_idle(up(state))
    assert codes(state) in ([], ["misplaced"] if mode == "strong" else [])
    assert on(state) == shown(partition(state).stable)


def test_a_dead_survivor_is_replaced_only_before_it_is_read() -> None:
    state = lost("CDE", "ABCDE", quorum=3, mode=HIGH)
    (command,) = [one for one in of_rebalancer(state) if isinstance(one, ResetPartitions)]
    state = done(state, command)
    assert (stage(state), shown(partition(state).pending[0])) == ("salvage", "A")
    died = done(state, *down("A"))
    state, _ = run_to_idle(died)
    assert (shown(partition(state).stable), on(state)) == ("B", "B"), "rows that only A has are lost"
    state = done(steps(done(lost("CDE", "ABCDE", quorum=3, mode=HIGH), command), 1), *down("A"))
    assert stage(state) == "salvaged", "the others are still written"
    state, _ = run_to_idle(state)
    assert (shown(partition(state).stable), on(state)) == ("B", "B")
    state = done(steps(done(lost("CDE", "ABCDE", quorum=3, mode=HIGH), command), 2), *down("A"))
    assert stage(state) == "end_salvage"
    assert {type(one) for one in of_rebalancer(state)} <= {TriggerRebalance}, "the read node has the rows of the others"
    assert str(waits(state)).startswith("stuck: ")
    state, _ = run_to_idle(done(state, DeclareUp(ids("A")[0], "")))
    assert waits(state) is None


def test_a_second_reset_replaces_the_first() -> None:
    state = lost("CDE", "ABCDE", quorum=3)
    state = done(state, reset(state, {"A": 3, "B": 1}, admits_loss=True))
    state = done(state, reset(state, {"B": 3, "A": 1}, admits_loss=True))
    assert (stage(state), shown(partition(state).pending[0])) == ("salvage", "B")
    state, _ = run_to_idle(state)
    assert on(state) == shown(partition(state).stable) == "AB"


def test_the_read_survivor_is_kept_in_a_second_reset() -> None:
    """A reader that knows only the first reset asks only its survivor. A later writer must include that node.

    If that node was declared down, an operator must accept that it may still answer.
    """
    state = done(with_data("ABCDEFG", partitions=1, replicas=7, quorum=2), *down("AB"))
    assert shown(partition(state).stable) == "ABD/CEFG", "two of three voters"
    first = reset(state, dict.fromkeys("CDEFG", 1))
    fetching = done(state, first)
    assert shown(partition(fetching).pending[0]) == "C"
    again = {"D": 9, "E": 1, "F": 1, "G": 1}
    state = done(fetching, *down("C"))
    state, code = tried(state, reset(state, again))
    assert (code, shown(partition(state).pending[0])) == ("", "D"), "the survivor is not read yet"
    state = steps(fetching, 1)
    assert stage(state) == "salvaged"
    state, code = tried(state, reset(state, again))
    assert (code, stage(state), shown(partition(state).pending[0])) == ("", "salvage", "C"), "a plan with other nodes"
    state = done(steps(fetching, 1), *down("C"))
    assert refusal(state, reset(state, again)) == (
        "may_lose_data",
        "partitions: z/0: the reset may lose the order of reads that C, the only read replica, still answers; "
        "start the nodes, or admit the loss",
    )
    state = done(state, reset(state, again, admits_loss=True))
    assert shown(partition(state).pending[0]) == "D"


def test_live_voters_without_a_majority_of_the_data() -> None:
    """Three of four replicas vote. A voter and the learner are lost."""
    state, _ = run_to_idle(with_data("ABCD", partitions=1, replicas=4, mode=HIGH))
    voters, learner = shown(partition(state).stable).split("/")
    state = done(state, *down(voters[0] + learner))
    assert [one.code for one in waits_of(state, partition(state), node_reports(state))] == [VOTERS]
    assert "for a majority of the nodes with its data" in str(waits(state))
    state, asked = run_to_idle(state)
    assert asked[0] == "ResetPartitions"
    assert (waits(state), set(on(state))) == (None, set(voters[1:]))


def test_only_a_manual_reset_abandons_lost_data() -> None:
    """The table was created while A was down, so only B and C have it."""
    state = done(with_data("ABC", partitions=1, replicas=3, mode=HIGH), *down("A"))
    state = done(state, create_table("u", 2))
    state = done(state, *down("BC"), DeclareUp(ids("A")[0], ""))
    assert lost_tables(state, partition(state)) == ("ks.u",)
    assert refusal(state, reset(state, {"A": 1}, "automatic"))[0] == "nothing_survives"
    assert [one for one in of_rebalancer(state) if isinstance(one, ResetPartitions)] == []
    told_ = str(waits(state))
    assert told_.startswith("stuck: for a quorum of its voters: B, C are down")
    assert "ringlog zone reset --admit-loss, which may lose all of ks.u in the partition" in told_
    state, _ = run_to_idle(done(state, reset(state, {"A": 1}, admits_loss=True)))
    assert (on(state), on(state, table="ks.u")) == ("A", "A")


def test_a_manual_reset_starts_empty_without_live_data() -> None:
    state = lost("ABC", "ABC", "DE", mode=HIGH)
    state = done(state, SetDataNodes("z", ids("DE"), state.epoch))
    assert refusal(state, reset(state, {}, "automatic"))[0] == "nothing_survives"
    assert "all of ks.t in the partition" in refusal(state, reset(state, {}))[1]
    state, _ = run_to_idle(done(state, reset(state, {}, admits_loss=True)))
    assert on(state) == shown(partition(state).stable) == "DE"


def test_the_survivor_has_most_tables_then_the_longest_log() -> None:
    """The table was created while A was down. Of five nodes, A and B remain."""
    state = done(with_data("ABCDE", partitions=1, replicas=5, quorum=3), *down("A"))
    state = done(state, create_table("u", 2), DeclareUp(ids("A")[0], ""), *down("CDE"))
    state = done(state, reset(state, {"A": 9, "B": 1}, admits_loss=True))
    assert shown(partition(state).pending[0]) == "B"
    state, _ = run_to_idle(state)
    assert (on(state), on(state, table="ks.u")) == ("AB", "AB")


# Rejections


def test_an_invalid_reset_is_rejected() -> None:
    state = with_data("ABC", partitions=1, replicas=3)
    assert refusal(state, reset(state, {"A": 1}, admits_loss=True))[0] == "partition_healthy"
    one_down = done(state, *down("C"))
    assert refusal(one_down, reset(one_down, {"A": 1}, admits_loss=True))[0] == "partition_healthy"
    dead = done(state, *down("BC"))
    assert refusal(dead, reset(dead, {"A": 1}, "automatic"))[0] == "not_high_availability"
    assert refusal(dead, reset(dead, {"A": 1}))[0] == "may_lose_data"
    assert refusal(dead, reset(dead, {"A": 1}, partitions=()))[0] == "may_lose_data", "also without named partitions"
    old = reset(dead, {"A": 1}, admits_loss=True, cause=1)
    assert refusal(done(dead, reset(dead, {"A": 1}, admits_loss=True)), old)[0] == "outdated_cause"


def test_a_node_that_has_not_joined_cannot_survive() -> None:
    state = done(with_data("ABC", partitions=1, replicas=3), letter("F"), *down("BC"))
    state = done(state, reset(state, {"F": 9}, admits_loss=True))
    assert shown(partition(state).pending[0]) == "A"
    dead = done(with_data("ABC", partitions=1, replicas=3), letter("F"), *down("ABC"))
    assert refusal(dead, reset(dead, {"F": 9}, admits_loss=True))[0] == "nothing_survives"


def voters_lost(nodes: str = "ABCDE") -> tuple[ClusterState, str, str]:
    """Return a state without two of three voters but with a majority of the data, the lost voters, and the live
    nodes.
    """
    state = with_data(nodes, partitions=1, replicas=len(nodes), quorum=2)
    voters, _ = shown(partition(state).stable).split("/")
    left = "".join(sorted(set(nodes) - set(voters[:2])))
    return done(state, *down(voters[:2])), voters[:2], left


def test_a_data_majority_needs_no_consent() -> None:
    state, _, left = voters_lost()
    assert may_lose(state, partition(state)) == ""
    assert "are down; ringlog zone reset; " in str(waits(state))
    state, _ = run_to_idle(done(state, reset(state, dict.fromkeys(left, 1))))
    assert codes(state) == ["misplaced"]
    assert set(on(state)) >= set(left)


def test_a_survivor_waits_for_consent_to_later_losses() -> None:
    """The survivor waits for a live majority, or for an operator's consent to the data loss."""
    state, lost_, left = voters_lost()
    state = done(state, reset(state, dict.fromkeys(left, 1)))
    others = left.replace(shown(partition(state).pending[0]), "")
    for dead in (others[0], others):
        stuck, asked = run_to_idle(done(state, *down(dead)))
        assert (asked, stage(stuck)) == ([], "salvage")
        gone = ", ".join(sorted(lost_ + dead))
        assert str(waits(stuck)).startswith("stuck: ")
        assert f"for rows of its tablets that only {gone} have: start them again, or " in str(waits(stuck))
        assert "ringlog zone reset --admit-loss, which may lose registers whose last write only" in str(waits(stuck))
        (forced,) = of_coordinator(state)
        assert isinstance(forced, AdvanceTablets)
        assert tried(state, forced)[1] == ""
        assert tried(stuck, forced)[1] == "gate_not_met", "also for a node that has reported before"
        assert refusal(stuck, reset(stuck, dict.fromkeys(left, 1)))[0] == "may_lose_data"
        back, _ = run_to_idle(done(stuck, DeclareUp(ids(others[0])[0], "")))
        assert (stage(back) == "") == (len(dead) == 1), "depending on a returned majority"
        admitted, _ = run_to_idle(done(stuck, reset(stuck, dict.fromkeys(left, 1), admits_loss=True)))
        assert set(on(admitted)) >= set(left) - set(dead)
        whole, _ = run_to_idle(up(stuck))
        assert codes(whole) == ["misplaced"]


def test_consent_and_mode_are_stored_with_the_reset() -> None:
    for mode, values in (("strong", {"admits_loss": True}), (HIGH, {})):
        state, _, left = voters_lost()
        if mode == HIGH:
            state = done(state, AlterZone("z", mode=HIGH))
        state = done(state, reset(state, dict.fromkeys(left, 1), **values))
        survivor = shown(partition(state).pending[0])
        state, _ = run_to_idle(done(state, *down(left.replace(survivor, ""))))
        assert survivor in on(state), mode


def test_a_departed_node_is_ignored() -> None:
    """No node that may return has more rows than the live nodes."""
    state, lost_, left = voters_lost()
    state = done(state, reset(state, dict.fromkeys(left, 1)))
    others = left.replace(shown(partition(state).pending[0]), "")
    state = done(state, *down(others[0]))
    assert run_to_idle(state)[1] == []
    state = done(state, *(Assassinate(node) for node in ids(lost_ + others[0])))
    state, _ = run_to_idle(state)
    assert codes(state) == ["misplaced"], "a step to a departed node was cancelled"


def test_a_partition_recovery_cannot_be_requested_or_reverted() -> None:
    state = with_data("ABC", partitions=1, replicas=3)
    assert tried(state, migration(state, "A", "B", kind="salvage"))[1] == "bad_field"
    state = done(state, *down("BC"))
    state = done(state, reset(state, {"A": 1}, admits_loss=True))
    assert tried(state, RevertTablets((TabletRevert(TABLE, 0, "no"),)))[1] == "past_point_of_no_return"


def test_a_reset_waits_for_operations() -> None:
    """No tablet moves during an operation."""
    state = joining(run_to_idle(with_data("ABC", partitions=1, replicas=3, mode=HIGH))[0], 7)
    (operation,) = in_flight(state)
    state = done(state, *down("BC"))
    assert refusal(state, reset(state, {"A": 1}, admits_loss=True))[0] == "operations_in_flight"
    assert [one.code for one in waits_of(state, partition(state), node_reports(state))] == [VOTERS, OPERATION]
    assert operation.id in str(waits(state))


# Random histories


@pytest.mark.parametrize("seed", range(16))
def test_random_histories_with_resets_end_with_data_in_place(seed: int) -> None:
    """Nodes die and return, data nodes change, and resets come at any time. Each state is valid.

    At the end each tablet is on the nodes of its partition. No automatic reset abandoned a tablet that a live node has.
    """
    random = Random(seed)
    state = done(with_data("ABCDE", "F", partitions=2, replicas=3, mode=HIGH), create_table("u", 2))
    for _ in range(60):
        dice = random.random()
        if dice < 0.2:
            wanted = list(down(random.choice("ABCDEF")))
        elif dice < 0.35:
            wanted = [DeclareUp(one.id, "") for one in state.nodes.values() if one.down][: random.choice([1, 9])]
        elif dice < 0.42:
            nodes = ids("".join(sorted(random.sample("ABCDEF", random.choice([2, 4])))))
            wanted = [SetDataNodes("z", nodes, state.epoch)]
        elif dice < 0.47:
            logs = {name: random.randrange(9) for name in random.sample("ABCDEF", 3)}
            wanted = [reset(state, logs, admits_loss=True)]
        else:
            wanted = [*of_coordinator(state), *of_rebalancer(state)]
            random.shuffle(wanted)
        for command in wanted[: random.choice([1, 2, 9])]:
            before = state
            state, code = tried(state, command)
            if not code and isinstance(command, ResetPartitions) and command.mode == "automatic":
                assert [lost_tables(before, partition(before, number)) for number in command.partitions] == [()] * len(
                    command.partitions
                )
    state = done(state, SetDataNodes("z", ids("ABCDE"), state.epoch))
    state, _ = run_to_idle(up(state))
    for number in range(2):
        one = partition(state, number)
        assert waits_of(state, one, node_reports(state)) == ()
        for tablets in state.tablets.values():
            assert tablets.tablet(number).transition is None
            assert holders(tablets.tablet(number)) == goal_of(one).must
