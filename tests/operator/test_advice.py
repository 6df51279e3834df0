"""The fold accepts every printed remedy in its state, in the printed order."""

from __future__ import annotations

from random import Random

import pytest

from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import replace
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views.waiting import WaitingFor, tablet_waiting, waiting
from tests.kernel.entries import applied as folded
from tests.kernel.entries import entry
from tests.kernel.movements.clusters import network, placed, simple
from tests.kernel.operations.driver import SEED, admitted, applied, decided, driven, stepped
from tests.kernel.tablets import clusters
from tests.kernel.tablets.test_random_histories import drawn
from tests.operator.printed_commands import commands_of, state_after
from tests.operator.test_waiting import KINDS, REQUESTS, all_acks

PLACES = {f"n{number}": (f"dc1/r{number % 2}", [100 * number]) for number in range(1, 6)} | {"x": ("dc1/r1", [])}


def ring_life(random: Random) -> tuple[ClusterState, set[str]]:
    """Return a ring with an operation in some stage, and the dead nodes; some are declared down."""
    settings = random.sample([simple(1), simple(2), simple(3), network(dc1=2), network(dc1=3)], random.choice([1, 2]))
    state = replace(placed(PLACES, *settings), cluster_id="c")
    dead = set(random.sample(["n1", "n2", "n3", "n4", "x"], random.choice([0, 1, 1, 2])))
    kind = random.choice(KINDS)
    early = {"n3"} if kind == "remove" else {node for node in sorted(dead) if random.random() < 0.3}
    state = declared(state, early | ({"n3"} if kind == "replace" and random.random() < 0.5 else set()))
    if isinstance(decided(state, REQUESTS[kind]), Rejected):
        return state, dead
    state, operation = admitted(state, REQUESTS[kind])
    for _ in range(random.randrange(6)):
        if in_flight(state):
            state = stepped(state, operation)
    return declared(state, {node for node in sorted(dead) if random.random() < 0.5}), dead


def declared(state: ClusterState, nodes: set[str]) -> ClusterState:
    for node in sorted(nodes):
        command = DeclareDown(node, "burnt")
        state = state if isinstance(decided(state, command), Rejected) else applied(state, command)
    return state


def ways_of(state: ClusterState, dead: set[str]) -> list[WaitingFor]:
    """Return the waits of all operations and tablets in flight while the dead nodes are silent."""
    said = {node: ack for node, ack in acknowledgements(state, 0).items() if node not in dead}
    found = [waiting(state, one, said) for one in in_flight(state)]
    moving = [(tablets, tablets.tablet(one.tablet)) for tablets, one in transitions(state)]
    return found + [tablet_waiting(state, *one, said) for one in moving]


@pytest.mark.parametrize("seed", range(120))
def test_advice_for_operations_is_accepted(seed: int) -> None:
    state, dead = ring_life(Random(seed))
    for found in ways_of(state, dead):
        for way in found.ways_out:
            state_after(state, way)


@pytest.mark.parametrize("seed", range(12))
def test_advice_for_tablets_is_accepted(seed: int) -> None:
    random = Random(seed)
    state = clusters.with_table(folded(clusters.three_racks(), clusters.register(8)), clusters.factor(1 + seed % 3), 4)
    for step in range(120):
        for command in drawn(state, random):
            state = fold(state, entry(state, command)).state
        if step % 6 == 0:
            dead = set(random.sample(sorted(state.nodes), random.choice([1, 2])))
            for found in ways_of(state, dead):
                for way in found.ways_out:
                    state_after(state, way)


def test_the_histories_contain_every_kind_of_advice() -> None:
    seen = set()
    for seed in range(120):
        state, dead = ring_life(Random(seed))
        for found in ways_of(state, dead):
            seen |= {" ".join(words.split()[:2]) for way in found.ways_out for words in commands_of(way)}
    assert seen >= {
        *("operation cancel", "operation retry", "node down"),
        *("node remove", "node replace", "node assassinate", "node unregister"),
    }


def test_with_one_replica_the_last_resort_is_named_with_its_loss() -> None:
    state, operation = admitted(replace(placed(PLACES, simple(1)), cluster_id="c"), Join("x", (150,), SEED))
    state = driven(state, operation, "prepared")
    acks = {node: ack for node, ack in all_acks(state).items() if node != "n2"}
    found = waiting(state, state.operations[operation], acks)
    assert found.ways_out[0] == f"if n2 has stopped, start it again: {operation} then continues"
    assert found.ways_out[1] == f"cancel it: ringlog operation cancel {operation} --reason …"
    (last,) = found.ways_out[2:]
    assert "node replace" not in last
    assert "node remove" not in last
    assert last.startswith(
        f"if n2 is permanently lost, as a last resort: ringlog operation cancel {operation} --reason …"
    )
    assert "rows of 1 ranges may be lost" in last
    after = state_after(state, last)
    assert after.nodes["n2"].state == "left"


def test_a_node_that_died_in_its_join_is_restarted_or_unregistered() -> None:
    state, operation = admitted(replace(placed(PLACES, simple(3)), cluster_id="c"), Join("x", (150,), SEED))
    state = driven(state, operation, "write_both_read_old")
    acks = {node: replace(ack, reports=()) for node, ack in all_acks(state).items() if node != "x"}
    found = waiting(state, state.operations[operation], acks)
    assert found.nodes == ("x",)
    assert found.ways_out[0].startswith("if x has stopped, start it again")
    after = state_after(state, found.ways_out[-1])
    assert commands_of(found.ways_out[-1])[-1] == "node unregister x"
    assert not any(one.name == "x" and one.state == "none" for one in after.nodes.values())
