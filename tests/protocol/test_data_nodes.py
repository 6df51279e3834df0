"""Data nodes and their timers: every instance computes the same times, and the log contains past data nodes."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, UpdateNode
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import NEVER
from ringlog.kernel.values import SECOND_US
from ringlog.protocol.rebalancer.data_nodes import (
    Timers,
    matching_nodes,
    new_data_nodes,
    running_timers,
    updated_timers,
)
from ringlog.wire.ids import time_of
from tests.kernel.entries import applied
from tests.kernel.zones.states import done, ids, joined, left, with_zone
from tests.kernel.zones.zone_keyspaces import with_data

FIVE = {"scale_up": 5, "scale_down": 5}


class Looks:
    """One instance of the rebalancer that reads its clock: seconds since the last entry of the state."""

    def __init__(self, state: ClusterState) -> None:
        self.timers = Timers()
        self.state = state
        self.see(state)

    def see(self, state: ClusterState) -> None:
        self.state = state
        self.timers = updated_timers(self.timers, state)

    def at(self, seconds: float) -> str:
        """Return the letters of the next data nodes at that time; empty if nothing changes."""
        now = time_of(self.state.state_id) + int(seconds * SECOND_US)
        found = new_data_nodes(self.timers, self.state, now)
        assert len(found) <= 1
        if not found:
            return ""
        done(self.state, found[0])
        return "".join(sorted(self.state.nodes[node].name for node in found[0].nodes))


def test_a_new_node_counts_after_its_wait() -> None:
    look = Looks(joined(with_zone("AB", **FIVE), "C"))
    assert look.at(4.9) == ""
    assert look.at(5.0) == "ABC"


def test_a_second_new_node_restarts_the_wait_of_both() -> None:
    look = Looks(joined(with_zone("AB", **FIVE), "C"))
    look.see(joined(look.state, "D"))
    first = time_of(look.state.history.tail[-2].state_id)
    assert new_data_nodes(look.timers, look.state, first + 5 * SECOND_US) == () or look.at(0) == ""
    assert look.at(4.9) == ""
    assert look.at(5.0) == "ABCD"


@pytest.mark.parametrize(("wait", "seen"), [(0, "ABC"), (NEVER, ""), (100, "")])
def test_another_value_of_the_wait_counts_at_once(wait: int, seen: str) -> None:
    look = Looks(joined(with_zone("AB", scale_up=100), "C"))
    assert look.at(10) == ""
    if wait != 100:
        look.see(done(look.state, AlterZone("z", scale_up=wait)))
    assert look.at(10) == seen


def test_a_lost_node_is_removed_after_its_wait_unless_it_returns() -> None:
    look = Looks(applied(with_zone("ABC", **FIVE), DeclareDown(ids("C")[0], "burnt")))
    assert look.at(4.9) == ""
    assert look.at(5.0) == "AB"
    look.see(applied(look.state, DeclareUp(ids("C")[0], "mended")))
    assert look.at(1_000) == ""
    look.see(applied(look.state, DeclareDown(ids("C")[0], "burnt")))
    assert look.at(4.9) == "", "its timer restarts"


def test_by_default_a_down_node_stays_and_a_left_node_is_removed_at_once() -> None:
    state = applied(with_zone("ABC"), DeclareDown(ids("C")[0], "burnt"))
    assert Looks(state).at(1_000) == ""
    gone = left(with_zone("ABC"), "C")
    assert gone.nodes[ids("C")[0]].state == "left"
    assert Looks(gone).at(0) == "AB"


def test_a_take_over_loses_no_timer() -> None:
    """The new instance sees the difference for the first time and counts from the last entry that changed a node."""
    state = joined(with_zone("AB", **FIVE), "C")
    before, after = Looks(state), Looks(state)
    assert [look.at(4.9) for look in (before, after)] == ["", ""]
    assert [look.at(5.0) for look in (before, after)] == ["ABC", "ABC"]


def test_a_timer_fires_exactly_at_its_reported_time() -> None:
    """A timer fires at its reported time; immediate and disabled timers report that."""
    waits = {"scale_up": 5, "scale_down": 7}
    look = Looks(applied(joined(with_zone("AB", **waits), "C"), DeclareDown(ids("B")[0], "burnt")))
    for timer, after in zip(running_timers(look.timers, look.state), ("ABC", "A"), strict=True):
        assert timer.fires is not None
        look.see(done(look.state, AlterZone("z", **{name: NEVER for name in waits if name != timer.name})))
        assert new_data_nodes(look.timers, look.state, timer.fires - 1) == ()
        (command,) = new_data_nodes(look.timers, look.state, timer.fires)
        assert command.nodes == ids(after)
        look.see(done(look.state, AlterZone("z", **waits)))
    look.see(done(look.state, AlterZone("z", scale_up=NEVER, scale_down=0)))
    up, down = running_timers(look.timers, look.state)
    assert (up.fires, down.fires) == (None, down.since)
    assert [command.nodes for command in new_data_nodes(look.timers, look.state, 0)] == [ids("A")]


def test_the_timer_of_all_leaving_nodes_runs_and_is_shown() -> None:
    """No other node has the data: the nodes leave at the time of nodes that are down, not earlier."""
    state = with_data("AB", "C", replicas=1, scale_up=NEVER, scale_down=7)
    look = Looks(done(state, Leave(ids("B")[0]), Leave(ids("A")[0])))
    up, down = running_timers(look.timers, look.state)
    assert (up.fires, down.nodes) == (None, ids("AB"))
    assert down.fires is not None
    assert new_data_nodes(look.timers, look.state, down.fires - 1) == ()
    (command,) = new_data_nodes(look.timers, look.state, down.fires)
    assert command.nodes == ()


def test_a_repeated_request_is_applied_once() -> None:
    look = Looks(joined(with_zone("AB", scale_up=0), "C"))
    assert look.at(0) == "ABC"
    (command,) = new_data_nodes(look.timers, look.state, 0)
    look.see(done(look.state, command))
    assert look.at(0) == ""
    assert done(look.state, command).zones is look.state.zones, "the same nodes change nothing"


def test_other_values_of_a_node_count_too() -> None:
    state = applied(with_zone("AB", filter='$[?(@.datacenter == "dc1")]', **FIVE))
    moved = applied(state, UpdateNode(ids("B")[0], address="b:1"))
    assert Looks(moved).at(1_000) == "", "a value that no filter uses"
    assert matching_nodes(moved, '$[?(@.address == "b:1")]', ()) == ids("B")


def test_the_log_contains_past_data_nodes() -> None:
    """The log is the history: the state of an epoch contains its data nodes."""
    state = with_zone("ABC")
    states = [state]
    for letters in ("AB", "A", "ABC"):
        states.append(done(states[-1], SetDataNodes("z", ids(letters), states[-1].epoch)))
    assert [one.zones["z"].nodes for one in states] == [ids("ABC"), ids("AB"), ids("A"), ids("ABC")]


def test_another_filter_ends_both_timers() -> None:
    """The new filter applies at once to the nodes that match now."""
    slow = {"scale_up": 100, "scale_down": 100}
    look = Looks(applied(joined(with_zone("AB", **slow), "C"), DeclareDown(ids("B")[0], "burnt")))
    assert len(look.timers.since) == 2
    text = '$[?(@.name != "D")]'
    look.see(done(look.state, AlterZone("z", filter=text, nodes=matching_nodes(look.state, text, ()))))
    assert look.state.zones["z"].nodes == ids("AC")
    assert (len(look.timers.since), look.at(1_000)) == (0, "")
