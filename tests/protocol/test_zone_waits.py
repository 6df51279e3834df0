"""Waits of a partition: each code of the table, the awaited nodes, stuck partitions, and idle zones."""

from __future__ import annotations

from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import HIGH_AVAILABILITY
from ringlog.operator.views.zones import full_view
from ringlog.protocol.rebalancer.core import RebalancerView, idle_zones, rejections
from ringlog.protocol.rebalancer.idle_zones import NO_IDLE_ZONES
from ringlog.protocol.rebalancer.zone_tablets import migrations
from ringlog.protocol.rebalancer.zone_waits import ZoneWait, waits_of
from tests.kernel.zones.states import cancel, done, down, ids, partition, reset, shown, to
from tests.kernel.zones.zone_keyspaces import node_reports, of_coordinator, run_to_idle, with_data, zone_only


def found(state: ClusterState, silent: str = "") -> dict[str, bool]:
    """Return each code with whether it is stuck."""
    return {one.code: one.is_stuck for one in waits_of(state, partition(state), node_reports(state, ids(silent)))}


def waiting_for(state: ClusterState) -> tuple[str, bool]:
    row = full_view(state, state.zones["z"], node_reports(state))["partitions"][0]
    return row["waits"], row["stuck"]


def test_a_partition_at_rest_waits_for_nothing() -> None:
    state = run_to_idle(zone_only("ABC", replicas=3))[0]
    assert found(state) == {}
    rest = idle_zones(RebalancerView(state, {}))
    assert list(rest.zones) == ["z"]
    changed = done(state, AlterZone("z", replicas=2))
    assert found(changed) == {"trigger": False}
    assert not idle_zones(RebalancerView(changed, {}, (), rest)).zones
    assert idle_zones(RebalancerView(state, {}, (), rest)).zones == rest.zones
    assert idle_zones(RebalancerView(done(state, *down("A")), {}, (), rest)).under != rest.under


def test_a_zone_without_possible_nodes_reports_that_it_is_stuck() -> None:
    state = run_to_idle(zone_only("ABC", replicas=3))[0]
    nobody = done(state, SetDataNodes("z", (), state.epoch))
    assert found(nobody) == {"place": True}
    way = "start nodes, or change the filter of the zone (ringlog zone alter)"
    assert waiting_for(nobody) == (f"stuck: for a suitable node: its zone has no data nodes; {way}", True)
    known = RebalancerView(nobody, {}, (), idle_zones(RebalancerView(nobody, {})))
    assert {(one.kind, one.detail) for one in rejections(known)} == {
        ("TriggerRebalance", "waits for place: ringlog zone show z")
    }
    mode = run_to_idle(zone_only("ABC", "D", replicas=1, partitions=1, mode=HIGH_AVAILABILITY))[0]
    dead = done(mode, SetDataNodes("z", ids("D"), mode.epoch), *down("D"))
    assert found(dead) == {"place": True}
    assert "none of its data nodes (D) can have it" in waiting_for(dead)[0]
    assert found(done(dead, DeclareUp(ids("D")[0], ""))) == {"trigger": False}
    assert found(to(nobody, "AB")) == {"step": False}


def test_a_partition_waits_for_reports_and_then_for_the_rebalancer() -> None:
    state = to(run_to_idle(zone_only("ABC", "D", partitions=1, replicas=3))[0], "ABD")
    assert found(state, "D") == {"answers": False}
    assert found(state) == {"step": False}
    assert waiting_for(state) == ("for its group to have A, B, D; for the rebalancer: all nodes have answered", False)
    assert found(done(state, *down("D"))) == {"answers": True}
    assert found(done(state, *down("C"))) == {"step": False}, "the leaving node is not needed"
    back = done(state, cancel(state))
    assert found(back, "ABC") == {"answers": False}
    assert found(done(back, *down("BC"))) == {"voters": True, "answers": True}


def test_a_lost_majority_is_reset_automatically_or_stuck() -> None:
    for mode, stuck in (("strong", True), (HIGH_AVAILABILITY, False)):
        state = run_to_idle(zone_only("ABC", partitions=1, replicas=3, mode=mode))[0]
        assert found(done(state, *down("A"))) == {}
        assert found(done(state, *down("AB"))) == {"voters": stuck}
        assert found(done(state, *down("ABC"))) == {"voters": True}, "no replica survives"
        forced = done(done(state, *down("AB")), reset(done(state, *down("AB")), {"C": 1}))
        assert found(forced) == {"step": False}
        assert found(done(forced, *down("C"))) == {"voters": True, "answers": True}


def test_data_waits_are_in_transit_or_stuck() -> None:
    state = to(run_to_idle(with_data("ABC", "D", partitions=1, replicas=3))[0], "ABD")
    assert found(state) == {"begin": False}
    dead = done(state, *down("D"))
    assert found(dead) == {"answers": True, "room": True}
    (one,) = rejections(RebalancerView(dead, node_reports(dead)))
    assert (one.subject, one.kind, one.code) == ("z/0", "SwitchStable", "gate_not_met")
    assert one.detail == "waits for answers, room (D): ringlog zone show z"
    moves = migrations(state)
    assert moves is not None
    state = done(state, moves)
    assert found(state) == {"tablets": False}
    state = done(state, next(of_coordinator(state)))
    assert found(done(state, *down("B"))) == {"tablets": False}
    lost = done(state, *down("AB"))
    assert found(lost) == {"voters": True, "answers": True, "tablets": True}
    assert "which need A, B (ringlog tablet explain)" in waiting_for(lost)[0]


def test_rows_without_another_replica_are_stuck() -> None:
    state = run_to_idle(with_data("A", "B", partitions=1, replicas=1))[0]
    state = to(done(state, *down("A")), "B")
    assert found(state) == {"voters": True, "answers": True, "rows": True}
    assert "for rows of its tablets that only A have: start them again" in waiting_for(state)[0]
    assert found(done(state, DeclareUp(ids("A")[0], ""))) == {"begin": False}


def test_a_revert_to_a_node_that_left_is_stuck() -> None:
    state = run_to_idle(with_data("ABC", "D", partitions=1, replicas=3))[0]
    state = to(done(state, *down("C"), Assassinate(ids("C")[0])), "ABD")
    state = run_to_idle(done(state, cancel(state)))[0]
    assert shown(partition(state).stable) == "ABC"
    assert waits_of(state, partition(state), {}) == (ZoneWait("gone", ids("C"), is_stuck=True),)
    assert [one.kind for one in rejections(RebalancerView(state, {}))] == ["TriggerRebalance"]
    assert not idle_zones(RebalancerView(state, {})).zones, "operators see the code as long as it applies"


def test_a_returning_node_rechecks_all_zones() -> None:
    state = done(run_to_idle(with_data("ABC", partitions=1, replicas=3))[0], *down("C"))
    rest = idle_zones(RebalancerView(state, {}, (), NO_IDLE_ZONES))
    assert list(rest.zones) == ["z"]
    back = done(state, DeclareUp(ids("C")[0], ""))
    assert idle_zones(RebalancerView(back, {}, (), rest)).under[0] is back.nodes
