"""Each blocked partition has a remedy, even if the dead nodes never return."""

from __future__ import annotations

from random import Random

import pytest

from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    ResetPartitions,
    RestartReplicas,
    TriggerRebalance,
    default_copies,
)
from ringlog.kernel.commands.placement.zones import AlterZone, SetDataNodes
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import EVERY_NODE, HIGH_AVAILABILITY, MODES
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import Command
from ringlog.kernel.zones.distribution import is_alive
from ringlog.operator.views.zone_explanations import explain
from ringlog.protocol.rebalancer.zone_waits import COPIES, VOTERS, waits_of
from tests.kernel.zones.states import cancel, done, down, ids, partition, reset, shown, switch, to, tried, trigger
from tests.kernel.zones.zone_keyspaces import (
    alive,
    node_reports,
    of_coordinator,
    of_rebalancer,
    on,
    run_to_idle,
    stage,
    with_data,
    zone_only,
)


def waits(state: ClusterState, number: int = 0) -> str:
    one = partition(state, number)
    return explain(state, one, waits_of(state, one, node_reports(state))) or ""


def advance_until(state: ClusterState, letters: str) -> ClusterState:
    """Apply commands until the tablet is idle on these nodes."""
    while on(state) != letters or stage(state):
        state = done(state, next(iter((*of_coordinator(state), *of_rebalancer(state)))))
    return state


def test_a_cancel_ignores_departed_nodes() -> None:
    """The move is from ABCD to EFGH. C and A die after E and F have got their tablets.

    Two of the four old nodes have the tablet. The cancel waits for a node that is down, but not for a departed one.
    """
    state = to(with_data("ABCD", "EFGH", partitions=1, replicas=4), "EFGH")
    state = advance_until(done(state, *down("C")), "ABDE")
    state = advance_until(done(state, *down("A")), "BDEF")
    state, asked = run_to_idle(done(state, cancel(state)))
    assert asked == []
    assert waits(state).endswith("; A, C cannot get tablets now: start them again, or ringlog node remove")
    state, _ = run_to_idle(done(state, *(Assassinate(node) for node in ids("AC"))))
    assert (shown(partition(state).stable), on(state), waits(state)) == ("EGH/F", "EFGH", "")


def test_a_highly_available_partition_avoids_dead_nodes() -> None:
    """ABC is becoming BCD when B and C die. The planned steps are A, then D.

    In between ``stable`` is still ABC, and the death of another node causes a new placement.
    """
    state = to(with_data("ABC", "DEF", partitions=1, replicas=3, mode=HIGH_AVAILABILITY), "BCD")
    state = advance_until(done(state, *down("BC")), "A")
    state = done(state, switch(state))
    one = partition(state)
    assert (shown(one.stable), shown(one.reached), [shown(step) for step in one.pending]) == ("ABC", "A", ["D"])
    state, _ = run_to_idle(done(state, *down("F")))
    assert (shown(partition(state).stable), on(state), waits(state)) == ("D", "D", "")
    state, _ = run_to_idle(done(state, DeclareUp(ids("B")[0], "")))
    assert on(state) == "BD"


def test_a_restarted_replica_avoids_dead_nodes() -> None:
    state = zone_only("ABC", partitions=1, replicas=3, mode=HIGH_AVAILABILITY)
    state = done(state, trigger(state))
    state = done(state, RestartReplicas("z", 0, ids("B"), state.epoch), *down("B"))
    state, _ = run_to_idle(state)
    assert (shown(partition(state).stable), waits(state)) == ("AC", "")
    state, _ = run_to_idle(done(state, DeclareUp(ids("B")[0], "")))
    assert shown(partition(state).stable) == "ABC"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_dead_survivor_is_replaced_after_the_others_return(mode: str, taken: int) -> None:
    """A cancel has no configuration to return to. The returned voters are a majority, so a reset was rejected."""
    state = done(with_data("ABC", partitions=1, replicas=3, mode=mode), *down("BC"))
    state = done(state, reset(state, {"A": 1}, admits_loss=True))
    for _ in range(taken):
        state = done(state, next(iter(of_coordinator(state))))
    state = done(state, *(DeclareUp(node, "") for node in ids("BC")), *down("A"))
    assert tried(state, cancel(state))[1] == "nothing_to_return_to"
    state = done(state, Assassinate(ids("A")[0]))
    if run_to_idle(state)[0].zone_partitions is state.zone_partitions:
        assert waits(state).startswith("stuck: ")
        assert "ringlog zone reset" in waits(state)
        state = done(state, reset(state, {"B": 1, "C": 1}, admits_loss=True))
    state, _ = run_to_idle(state)
    assert (shown(partition(state).stable), on(state), waits(state)) == ("BC", "BC", "")


def test_an_automatic_reset_names_silent_nodes() -> None:
    """Three of five nodes are declared down. A fourth node is dead but not declared down."""
    state, _ = run_to_idle(with_data("ABCDE", partitions=1, replicas=5, mode=HIGH_AVAILABILITY))
    state = done(state, *down("CDE"))
    words = node_reports(state, silent=ids("B"))
    assert not [*of_rebalancer(state, silent=ids("B"))]
    found = waits_of(state, partition(state), words)
    assert [(one.code, one.nodes) for one in found] == [(VOTERS, ids("CDE")), (COPIES, ids("B"))]
    assert "; for B to report their data; declare lost nodes down (ringlog node down)" in str(
        explain(state, partition(state), found)
    )
    state, asked = run_to_idle(done(state, *down("B")))
    assert asked[0] == "ResetPartitions"


# Random histories


class Life:
    """A zone with random events, and an operator at the end."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        made = with_data if self.draw.random() < 0.8 else zone_only
        self.count, mode = self.draw.choice([1, 2]), self.draw.choice([*MODES])
        self.state = made("ABCDE", "FG", partitions=self.count, replicas=self.draw.randint(1, 5), mode=mode)

    def ask(self, *commands: Command) -> bool:
        """Return True if one of the commands changed the partitions or their tablets."""
        before = self.state
        for command in commands:
            self.state, _ = tried(self.state, command)
        return any(getattr(self.state, part) is not getattr(before, part) for part in ("zone_partitions", "tablets"))

    def random_event(self) -> None:
        draw, state, number = self.draw, self.state, self.draw.randrange(self.count)
        some = "".join(sorted(draw.sample("ABCDEFG", draw.randint(1, 3))))
        match draw.choice(
            ["dies"] * 3 + ["back", "nodes", "nodes", "alter", "cancel", "reset", "anew"] + ["leads"] * 9
        ):
            case "dies":
                self.ask(*down(some))
            case "back":
                self.ask(*(DeclareUp(one.id, "") for one in state.nodes.values() if one.down))
            case "nodes":
                self.ask(SetDataNodes("z", ids(some), state.epoch))
            case "alter":
                self.ask(AlterZone("z", replicas=draw.randint(1, 5)), AlterZone("z", mode=draw.choice([*MODES])))
            case "cancel":
                self.ask(CancelRebalance("z", number, partition(state, number).revisions.pending))
            case "reset":
                self.ask(reset(state, dict.fromkeys(some, 1), admits_loss=draw.random() < 0.5))
            case "anew":
                self.ask(RestartReplicas("z", number, ids(some), state.epoch))
            case _:
                commands = [*of_coordinator(state), *of_rebalancer(state)]
                self.ask(*draw.sample(commands, len(commands))[: draw.choice([1, 4])])

    def moves(self) -> list[int]:
        """Return the partitions that are not idle at their target."""
        found = range(self.count)
        return [one for one in found if partition(self.state, one).pending or waits(self.state, one)]

    def advance_by_operator(self, number: int) -> bool:
        """Return True if one of the operator's commands changed a partition. The command with the greatest loss is
        last.
        """
        state, one = self.state, partition(self.state, number)
        copies = default_copies(state, [one])
        for admits in (False, True):
            if self.ask(ResetPartitions("z", (number,), "manual", state.epoch, copies, admits)):
                return True
        if one.pending and one.cancel is None:
            return self.ask(CancelRebalance("z", number, one.revisions.pending))
        return not one.pending and self.ask(TriggerRebalance("z", state.epoch, (number,)))

    def ends(self) -> None:
        """Move the zone to the live nodes, because no dead node returns."""
        nodes = tuple(sorted(alive(self.state)))
        count = min(len(nodes), self.state.zones["z"].replicas)
        self.ask(AlterZone("z", replicas=count, filter=EVERY_NODE, nodes=nodes))
        for _ in range(30):
            self.state, _ = run_to_idle(self.state)
            moving = self.moves()
            if not moving:
                return
            if any([self.advance_by_operator(number) for number in moving]):  # noqa: C419  each of them
                continue
            dead = [node for node in sorted(self.state.nodes) if self.state.nodes[node].down]
            dead = [node for node in dead if self.state.nodes[node].state != "left"]
            assert dead, [waits(self.state, number) for number in moving]
            self.ask(Assassinate(dead[0]))
        raise AssertionError([waits(self.state, number) for number in self.moves()])


@pytest.mark.parametrize("seed", range(24))
def test_random_histories_end_without_the_dead_nodes(seed: int) -> None:
    """Resets, cancels and triggers end the history, or the removal of dead nodes if these change nothing."""
    life = Life(seed)
    for _ in range(life.draw.randint(5, 60)):
        life.random_event()
    if not alive(life.state):
        life.ask(DeclareUp(ids("A")[0], ""))
    life.ends()
    assert not [*transitions(life.state)]
    for number in range(life.count):
        stable = partition(life.state, number).stable
        assert stable is not None
        assert all(is_alive(life.state, node) for node in stable.nodes)
