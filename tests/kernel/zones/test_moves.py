"""Zones on a log: triggers, switches, cancels and resets as entries, and their rejections."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement import zones
from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, DropZone, SetDataNodes
from ringlog.kernel.commands.topology.nodes import DeclareUp, UnregisterNode
from ringlog.kernel.encoding.encoder import digest, encoded_parts
from ringlog.kernel.model.state import advance
from ringlog.kernel.model.zones import ZonePartition, ZoneRevisions
from ringlog.kernel.values import Command, replace
from ringlog.kernel.zones.rebalance import switched, triggered
from ringlog.kernel.zones.resets import members
from ringlog.protocol.rebalancer.core import RebalancerView, rejections
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from tests.kernel.entries import applied, founded, uuid
from tests.kernel.zones.states import (
    answer,
    cancel,
    done,
    down,
    ids,
    joined,
    letter,
    moved,
    partition,
    reset,
    restart,
    settled,
    shown,
    step,
    switch,
    tried,
    trigger,
    with_zone,
)


def test_a_cluster_without_zones_keeps_its_digest() -> None:
    state = joined(founded(), "A")
    assert not {"zones", "zone_partitions"} & encoded_parts(state).keys()
    after = done(state, CreateZone("z", ids("A"), 1), DropZone("z"))
    assert not {"zones", "zone_partitions"} & encoded_parts(after).keys()
    assert digest(after) != digest(state), "the change revisions stay"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (CreateZone("z", ids("AB"), replicas=3), "too_few_data_nodes"),
        (CreateZone("z", ()), "no_data_nodes"),
        (CreateZone("z", ids("AB"), filter="rack == 1"), "bad_filter"),
        (CreateZone("z", ids("AB"), filter="$[?(@.rack ==]"), "bad_filter"),
        (CreateZone("z", ids("AB"), filter=""), "bad_filter"),
        (CreateZone("z", ids("ABC"), replicas=3, quorum=0), "bad_field"),
        (CreateZone("z", ids("ABC"), replicas=3, quorum=1), "bad_field"),
        (CreateZone("z", ids("ABC"), replicas=3, quorum=3), "bad_field"),
        (CreateZone("z", ids("AB"), scale_up=-1), "bad_field"),
        (CreateZone("z", ids("AB"), scale_down=2**31), "bad_field"),
        (CreateZone("z", ids("AB"), partitions=0), "bad_field"),
        (CreateZone("z", ids("AB"), partitions=65_001), "bad_field"),
        (CreateZone("z", ids("AB"), partitions=65_000, replicas=2), "too_large"),
        (CreateZone("z", tuple(map(uuid, range(154))), partitions=65_000), "too_large"),
        (CreateZone("z", ids("AB"), mode="weak"), "bad_field"),
        (CreateZone("z", ids("AA")), "bad_field"),
        (CreateZone("z", ids("Z")), "unknown_node"),
        (CreateZone("z", ids("AB"), profiles=("ssd",)), "profile_missing"),
        (CreateZone("z", ids("AB"), profiles=("a b",)), "bad_field"),
        (CreateZone("y", ids("AB")), "zone_exists"),
        (CreateZone("no name", ids("AB")), "bad_field"),
        (AlterZone("y"), "bad_field"),
        (AlterZone("z", replicas=2), "unknown_zone"),
        (AlterZone("y", replicas=4), "too_few_data_nodes"),
        (AlterZone("y", replicas=0), "bad_field"),
        (AlterZone("y", filter="$..*"), "bad_field"),
        (AlterZone("y", filter="$.x", nodes=()), "no_data_nodes"),
        (AlterZone("y", nodes=ids("A")), "bad_field"),
        (DropZone("z"), "unknown_zone"),
        (SetDataNodes("z", (), 1), "unknown_zone"),
        (SetDataNodes("y", (), 0), "bad_field"),
        (SetDataNodes("y", (), 99), "bad_field"),
        (TriggerRebalance("y", 0), "bad_field"),
        (TriggerRebalance("y", 1, (7,)), "unknown_zone_partition"),
        (TriggerRebalance("y", 1, (0, 0)), "bad_field"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(command: Command, code: str) -> None:
    state = applied(joined(founded(), "ABC"), CreateZone("y", ids("ABC"), 2, 2))
    assert tried(state, command)[1] == code


def test_only_nodes_that_have_joined_are_data_nodes() -> None:
    """A node that is only registered may never run. As a voter it would block its partitions."""
    state = applied(joined(founded(), "AB"), letter("C"), CreateZone("y", ids("AB"), 2))
    for command in (CreateZone("z", ids("ABC")), SetDataNodes("y", ids("ABC"), state.epoch)):
        assert tried(state, command)[1] == "wrong_node_state"
    assert tried(state, AlterZone("y", filter="$.*", nodes=ids("AC")))[1] == "wrong_node_state"
    assert Timers() != updated_timers(Timers(), joined(state, "D"))
    assert not list(new_data_nodes(updated_timers(Timers(), state), state, 10**17)), (
        "the rebalancer does not propose it"
    )


@pytest.mark.parametrize("has", ["data node", "partition"])
def test_a_node_of_a_zone_cannot_be_unregistered(has: str) -> None:
    """No rule leads to this state, but a recovery may."""
    state = with_zone("AB", replicas=2)
    node = state.nodes[ids("A")[0]]
    state = advance(state, state.epoch, nodes=state.nodes.set(node.id, replace(node, state="none")))
    if has == "partition":
        state = done(state, SetDataNodes("z", ids("B"), state.epoch))
    assert tried(state, UnregisterNode(node.id))[1] == "node_in_zone"


def test_partitions_times_data_nodes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica of the log scores all pairs when it applies the entry."""
    state = applied(joined(founded(), "ABC"), CreateZone("y", ids("AB"), 2))
    monkeypatch.setattr(zones, "PLACEMENTS_MAX", 5)
    assert tried(state, SetDataNodes("y", ids("ABC"), state.epoch))[1] == "too_large"
    assert tried(state, AlterZone("y", partitions=3))[1] == "too_large"
    (told,) = rejections(RebalancerView(state, {}, (SetDataNodes("y", ids("ABC"), state.epoch),)))
    assert (told.subject, told.kind, told.code) == ("y", "SetDataNodes", "too_large")


def test_replica_changes_end_at_the_target() -> None:
    state = with_zone("ABC")
    for replicas in (2, 3, 2):
        state = done(state, AlterZone("z", replicas=replicas))
        state = done(state, trigger(state))
    one = partition(state)
    assert (len(one.pending), one.planned) == (1, None), "the planned step is no longer wanted"
    state, seen = settled(state)
    assert [len(step) for step in seen] == [2]
    one = partition(state)
    assert (one.pending, one.planned, state.zones["z"].moving) == ((), None, 0)


def test_the_last_replica_count_applies_to_each_partition() -> None:
    state = with_zone("ABC", partitions=4)
    for replicas in (2, 3):
        state = done(state, AlterZone("z", replicas=replicas))
        state = done(state, trigger(state))
    for number in range(4):
        state, _ = settled(state, number)
        one = partition(state, number)
        assert (shown(one.stable), one.pending, one.planned) == ("ABC", (), None)


@pytest.mark.parametrize(
    ("have", "goal", "steps"), [("AB", "AC", 1), ("AB/C", "ABC", 2), ("AB/C", "AC/B", 3), ("AB/CD", "ACE/BF", 3)]
)
def test_a_queue_has_a_pending_event_for_each_step(have: str, goal: str, steps: int) -> None:
    old, new = (step(*each.split("/")) for each in (have, goal))
    one = triggered(ZonePartition("z", 0, old, old), new, 5, 5)
    pending, stable = [], []
    for epoch in range(6, 20):
        assert one is not None
        pending.append(one.revisions.pending)
        stable.append(one.revisions.stable)
        if not one.pending:
            break
        one = switched(one, None, epoch)
    assert (len(set(pending)), len(set(stable) - {0})) == (steps + 1, 1)
    assert shown(one.stable if one else None) == goal


def test_a_returning_node_stays_a_member() -> None:
    """Its replica is neither stopped nor started: each state between the two moves contains it."""
    state = moved(with_zone("ABC", replicas=3), "AB")
    assert shown(partition(state).pending[-1]) == "AB"
    state = done(state, SetDataNodes("z", ids("ABC"), state.epoch))
    state = done(state, trigger(state))
    while partition(state).pending:
        assert ids("C")[0] in members(partition(state))
        state = done(state, switch(state))
    assert shown(partition(state).stable) == "ABC"


def test_a_repeated_event_applies_once() -> None:
    state = with_zone("ABC")
    state = done(state, AlterZone("z", replicas=3))
    first = trigger(state)
    state, code = tried(state, first)
    assert code == ""
    for _ in range(3):
        state, code = tried(state, first)
        assert code == "outdated_cause"
    assert tried(state, trigger(state, 3))[1] == "outdated_cause"
    assert partition(state).planned is None


def test_voters_and_learners_follow_replicas_and_quorum() -> None:
    state = with_zone("ABCD", replicas=2)
    counts = []
    for replicas in (3, 4):
        state = done(state, AlterZone("z", replicas=replicas))
        state, _ = settled(done(state, trigger(state)))
        stable = partition(state).stable
        assert stable is not None
        counts.append((len(stable.peers), len(stable.learners)))
    assert counts == [(3, 0), (3, 1)]


def test_a_learner_replaces_a_departed_voter() -> None:
    state = with_zone("ABCD", replicas=4)
    stable = partition(state).stable
    assert stable is not None
    gone = shown(stable)[0]
    state = moved(state, "ABCD".replace(gone, ""))
    assert len(partition(state).pending) == 2
    before = partition(state).revisions.stable
    state = done(state, switch(state))
    assert partition(state).revisions.stable == before, "an intermediate step is not stable"
    state = done(state, switch(state))
    assert shown(partition(state).stable) == "ABCD".replace(gone, "")


def test_a_switch_names_its_revisions_and_step() -> None:
    state = moved(with_zone("AB", replicas=2), "A")
    late = switch(state)
    state = done(state, SetDataNodes("z", ids("AB"), state.epoch))
    state = done(state, trigger(state))
    assert tried(state, late)[1] == "outdated_revision"
    assert tried(state, switch(state, applied=ids("AB")))[1] == "not_pending"
    assert tried(state, switch(state, learners=ids("A")))[1] == "bad_field"
    recorded = switch(state)
    state = done(state, recorded)
    assert partition(state).status == "planned"
    assert tried(state, recorded)[1] == "outdated_revision"
    state = done(state, switch(state))
    again = done(state, switch(state, revisions=ZoneRevisions()))
    assert again.zone_partitions is state.zone_partitions, "a repeated report is confirmed"
    assert tried(state, switch(state, applied=ids("A")))[1] == "nothing_pending"


@pytest.mark.parametrize(("result", "stable"), [("rolled_back", "AB"), ("already_old", "AB"), ("already_new", "BC")])
def test_the_three_cases_of_a_cancel(result: str, stable: str) -> None:
    state = moved(with_zone("AB", replicas=2), "BC")
    revision = partition(state).revisions.pending
    assert tried(state, cancel(state, revision - 1))[1] == "outdated_revision"
    state = done(state, cancel(state))
    assert done(state, cancel(state)).zone_partitions is state.zone_partitions, "requested twice"
    finish = answer(state, result)
    assert tried(state, replace(finish, pending_revision=revision - 1))[1] == "no_cancel"
    assert tried(state, replace(finish, result="done"))[1] == "bad_field"
    state = done(state, finish)
    one = partition(state)
    assert (shown(one.stable), one.pending, one.cancel) == (stable, (), None)
    assert one.revisions.stable == state.epoch, "stable is written, so that its watchers are notified"
    assert tried(state, finish)[1] == "no_cancel"
    assert tried(state, cancel(state, revision))[1] == "nothing_pending"


def test_a_cancelled_target_can_start_again() -> None:
    state = moved(with_zone("AB", replicas=2), "BC")
    state = done(state, cancel(state))
    state = done(state, trigger(state))
    assert shown(partition(state).planned) == "BC"
    state = done(state, answer(state, "rolled_back"))
    assert [shown(one) for one in partition(state).pending] == ["BC"]


def test_a_step_after_its_cancel_is_a_new_step() -> None:
    """Nodes have reported the revert of the cancelled step, but not of this one."""
    state = moved(with_zone("AB", replicas=2), "BC")
    first = partition(state).revisions.pending
    state = done(state, cancel(state), SetDataNodes("z", ids("AC"), state.epoch))
    state = done(state, trigger(state), SetDataNodes("z", ids("BC"), state.epoch))
    state = done(state, trigger(state))
    state = done(state, answer(state, "rolled_back"))
    one = partition(state)
    assert ([shown(step) for step in one.pending], one.revisions.pending) == (["BC"], state.epoch)
    state = done(state, cancel(state))
    assert tried(state, replace(answer(state, "rolled_back"), pending_revision=first))[1] == "no_cancel"


def test_a_switch_before_the_end_of_a_cancel_counts() -> None:
    state = moved(with_zone("AB", replicas=2), "BC")
    state = done(state, cancel(state))
    state = done(state, switch(state))
    assert (shown(partition(state).stable), partition(state).cancel) == ("BC", None)


def test_a_cancelled_queue_reverts_to_the_reached_step() -> None:
    state = with_zone("ABCD", replicas=4)
    stable = partition(state).stable
    assert stable is not None
    state = moved(state, "ABCD".replace(shown(stable)[0], ""))
    state = done(state, switch(state))
    reached = partition(state).reached
    state = done(state, cancel(state))
    state = done(state, answer(state, "rolled_back"))
    assert partition(state).stable == reached != stable


def test_new_partitions_get_their_first_nodes() -> None:
    state = with_zone("AB", replicas=2)
    state = done(state, SetDataNodes("z", (), state.epoch))
    assert tried(state, trigger(state))[1] == "no_data_nodes"
    state = done(state, SetDataNodes("z", ids("AB"), state.epoch), AlterZone("z", partitions=3))
    assert partition(state, 2).stable is None
    state = done(state, trigger(state))
    assert (partition(state, 0).pending, state.zones["z"].moving) == ((), 2)
    assert tried(state, replace(cancel(state), partition=2, pending_revision=state.epoch))[1] == "nothing_to_return_to"
    state, seen = settled(state, 2)
    assert seen == ["AB"]
    state = done(state, AlterZone("z", partitions=1))
    assert (set(state.zone_partitions), state.zones["z"].moving) == ({"z/0"}, 0)


def test_a_removed_data_node_returns() -> None:
    state = with_zone("AB", replicas=2)
    state = joined(state, "C")
    for letters in ("BC", "AB"):
        state, _ = settled(moved(state, letters))
        assert shown(partition(state).stable) == letters


def test_a_repeated_trigger_starts_the_remaining_moves() -> None:
    state = with_zone("AB", replicas=1, partitions=40)
    state = applied(state, ChangeSettings((("zone_moves_max", 3),)))
    state = done(state, AlterZone("z", replicas=2))
    first = trigger(state)
    rounds = 0
    while rounds < 20:
        state, code = tried(state, first)
        if code:
            break
        rounds += 1
        assert state.zones["z"].moving <= 3
        assert tried(state, first)[1] in ("moves_limit", "outdated_cause")
        for number in range(40):
            if partition(state, number).pending:
                state = done(state, switch(state, number))
    assert (code, rounds) == ("outdated_cause", 14)
    assert {len(partition(state, number).stable.nodes) for number in range(40)} == {2}  # type: ignore[union-attr]


# Restart


def test_a_replica_restarts_without_stopping_the_others() -> None:
    state = done(with_zone("ABC", replicas=3), restart(with_zone("ABC", replicas=3), "C"))
    one = partition(state)
    assert ([shown(step) for step in one.pending], one.reduce, one.status) == (["AB"], ids("C"), "restart")
    assert tried(state, restart(state, "C"))[1] == "already_pending"
    state, seen = settled(state)
    one = partition(state)
    assert (seen, one.reduce, one.append, one.status) == (["AB", "ABC"], (), (), "idle")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"nodes": ()}, "bad_field"),
        ({"nodes": ids("D")}, "bad_field"),
        ({"nodes": ids("AA")}, "bad_field"),
        ({"nodes": ids("AB")}, "quorum_needed"),
        ({"cause": 0}, "bad_field"),
        ({"cause": 99}, "bad_field"),
        ({"partition": 7}, "unknown_zone_partition"),
        ({"zone": "y"}, "unknown_zone"),
    ],
)
def test_a_rejected_restart_changes_nothing(change: dict[str, Any], code: str) -> None:
    state = with_zone("ABCD", replicas=3, quorum=2, filter='$[?(@.name != "D")]')
    state, _ = settled(moved(state, "ABC"))
    assert tried(state, replace(restart(state, "A"), **change))[1] == code


def test_a_highly_available_zone_needs_one_live_voter() -> None:
    for mode, most in (("strong", 1), ("high_availability", 2)):
        state = with_zone("ABC", replicas=3, mode=mode)
        for letters in ("A", "AB", "ABC"):
            assert tried(state, restart(state, letters))[1] == ("" if len(letters) <= most else "quorum_needed")
        assert tried(applied(state, *down("B")), restart(state, "A"))[1] == ("quorum_needed" if most == 1 else "")


def test_a_restart_ends_with_a_cancel_or_reset() -> None:
    state = with_zone("ABC", replicas=3, partitions=2)
    state = done(applied(state, ChangeSettings((("zone_moves_max", 1),))), restart(state, "C"))
    assert tried(state, replace(restart(state, "C"), partition=1))[1] == "moves_limit"
    back = done(done(state, cancel(state)), answer(done(state, cancel(state)), "rolled_back"))
    assert (shown(partition(back).stable), partition(back).reduce, partition(back).pending) == ("ABC", (), ())
    lost = applied(state, *down("AB"))
    assert partition(done(lost, reset(lost, {"C": 1}))).reduce == ()


def test_a_request_during_a_restart_follows_it() -> None:
    state = with_zone("ABC", replicas=3)
    state = moved(done(state, restart(state, "C")), "ABD")
    _, seen = settled(state)
    assert seen == ["AB", "ABD"], "a node outside the target is not added again"


# Reset


def test_a_manual_reset_starts_with_one_survivor() -> None:
    state = with_zone("ABC", replicas=3)
    state = done(joined(state, "DE"), SetDataNodes("z", ids("ABCDE"), 1))
    assert tried(state, reset(state, {"A": 1}))[1] == "partition_healthy"
    state = applied(state, *down("AB"))
    state = done(state, reset(state, {"C": 5}))
    one = partition(state)
    assert [(shown(step), step.forced) for step in one.pending] == [("C", True)]
    assert one.planned is not None
    assert (shown(one.planned), one.planned.from_reset) == ("CDE", True)
    assert tried(state, cancel(state))[1] == "nothing_to_return_to"
    state, seen = settled(state)
    assert seen == ["C", "CDE"]
    stable = partition(state).stable
    assert stable is not None
    assert (stable.forced, stable.from_reset, partition(state).pending) == (False, False, ())


def test_an_automatic_reset_keeps_the_live_replicas() -> None:
    state = with_zone("ABC", replicas=3)
    assert tried(applied(state, *down("AB")), reset(state, {"C": 1}, "automatic"))[1] == "not_high_availability"
    state = done(state, AlterZone("z", mode="high_availability"))
    assert len(partition(state).chain) == 1
    lost = applied(state, *down("ABC"))
    assert tried(lost, reset(lost, {"A": 1}, "automatic"))[1] == "nothing_survives"
    state = applied(state, *down("AB"))
    state, seen = settled(done(state, reset(state, {"C": 1}, "automatic")))
    assert seen == ["C"]
    assert [len(link.nodes) for link in partition(state).chain] == [3, 1]
    state = applied(state, DeclareUp(ids("A")[0], ""))
    state, seen = settled(done(state, trigger(state)))
    assert seen == ["AC"], "nodes return one at a time"


def test_the_last_link_of_a_chain_is_the_configuration() -> None:
    state = moved(with_zone("AB", replicas=2, mode="high_availability"), "BC")
    state, _ = settled(state)
    one = partition(state)
    assert one.stable is not None
    assert (one.chain[-1].nodes, one.chain[-1].epoch) == (one.stable.nodes, one.revisions.stable)


def test_the_replica_with_the_longest_log_survives() -> None:
    state = applied(with_zone("ABCDEFG", replicas=7), *down("ABCD"))
    for logs, survivor in (({"E": 1, "F": 3, "G": 2}, "F"), ({"E": 2, "F": 2, "G": 1}, "E"), ({"A": 9, "G": 1}, "G")):
        after = done(state, reset(state, logs))
        assert shown(partition(after).pending[0]) == survivor
    small = applied(with_zone("ABCDEFG", replicas=7, quorum=2), *down("ABCD"))
    stable = partition(small).stable
    assert stable is not None
    alive = sum(node in ids("EFG") for node in stable.peers)
    assert (tried(small, reset(small, {"E": 1}))[1] == "partition_healthy") is (alive >= 2)


def test_data_of_a_pending_node_survives() -> None:
    state = moved(joined(with_zone("AB", replicas=2), "C"), "BC")
    state = applied(state, *down("AB"))
    state = done(state, reset(state, {"C": 4}))
    assert shown(partition(state).pending[0]) == "C"


def test_a_reset_applies_to_all_named_partitions_or_none() -> None:
    state = applied(with_zone("ABC", replicas=1, partitions=12), *down("A"))
    whole = replace(reset(state, {}), partitions=())
    after = done(state, whole)
    moving = after.zones["z"].moving
    assert 0 < moving < 12
    named = replace(whole, partitions=tuple(range(12)))
    assert tried(state, named)[1] == "partition_healthy"
    assert tried(after, whole)[1] in ("outdated_cause", "partition_healthy")


def test_a_trigger_or_reset_replaces_the_second_phase() -> None:
    state = applied(with_zone("ABC", replicas=3), *down("AB"))
    first = done(state, reset(state, {"C": 1}))
    state = done(joined(first, "D"), SetDataNodes("z", ids("CD"), first.epoch))
    state = done(state, trigger(state))
    planned = partition(state).planned
    assert planned is not None
    assert (shown(planned), planned.from_reset) == ("CD", False)
    again = done(state, reset(state, {"C": 1}))
    assert [step.forced for step in partition(again).pending] == [True]
