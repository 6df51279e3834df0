"""Repair of a whole table in rounds within the limits on streaming."""

from __future__ import annotations

from ringlog.kernel.commands.placement.tablets import RevertTablets, TabletRevert
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import with_transitions
from ringlog.kernel.values import Command, replace
from ringlog.operator.intents.intents import InvalidCommand, resolved
from ringlog.operator.intents.tablets import repair_tablets
from ringlog.operator.tablet_repairs import TabletRepairs, repairs_of
from ringlog.runtime.draw import SeededDraw
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import TABLE

COUNT = 32


def command(state: ClusterState, numbers: tuple[int, ...]) -> Command:
    found = resolved(repair_tablets(TABLE, numbers), state, SeededDraw(b"x"))
    assert not isinstance(found, InvalidCommand)
    return found


def after(work: TabletRepairs, state: ClusterState, *commands: Command) -> ClusterState:
    for one in commands:
        before, state = state, applied(state, one)
        work.folded(before, state)
    return state


def test_all_tablets_of_a_table_are_repaired_in_rounds() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), COUNT)
    assert clusters.refused(state, command(state, ())) == "streaming_limit", "they exceed one entry"
    work = repairs_of(state, state.tablets[TABLE])
    rounds = 0
    while work.left():
        chosen, refused = work.next_round(state)
        assert chosen, refused
        state = after(work, state, command(state, chosen))
        assert work.next_round(state) == ((), None), "the next round waits"
        for number in chosen:
            while clusters.tablet(state, number).transition is not None:
                state = after(work, state, clusters.step(state, number))
        rounds += 1
    assert (work.repaired, work.failed) == (set(range(COUNT)), {})
    assert 1 < rounds < COUNT


def test_a_failed_repair_is_not_counted() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 4)
    work = repairs_of(state, state.tablets[TABLE], (2, 2))
    assert work.wanted == (2,)
    state = after(work, state, command(state, (2,)), RevertTablets((TabletRevert(TABLE, 2, "its disk is full"),)))
    while clusters.tablet(state, 2).transition is not None:
        state = after(work, state, clusters.step(state, 2))
    assert (work.left(), work.repaired, work.failed) == ((), set(), {2: "its disk is full"})
    assert work.command(work.failed) == f"ringlog tablet repair {TABLE} 2"


def test_an_earlier_repair_does_not_count() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 4)
    state = applied(state, command(state, (2,)))
    work = repairs_of(state, state.tablets[TABLE], (2,))
    while clusters.tablet(state, 2).transition is not None:
        state = after(work, state, clusters.step(state, 2))
    assert work.left() == (2,)


def test_a_tablet_that_cannot_be_repaired_is_named_after_the_others() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 8)
    first = {node for node, _ in clusters.places(clusters.tablet(state))}
    other = next(
        number for number in range(8) if {node for node, _ in clusters.places(clusters.tablet(state, number))} != first
    )
    for node in sorted(first)[:2]:
        state = applied(state, DeclareDown(node, "disk"))
    work = repairs_of(state, state.tablets[TABLE], (0, other))
    chosen, refused = work.next_round(state)
    if chosen:
        assert (chosen, refused) == ((other,), None)
        work.repaired.add(other)
    chosen, refused = work.next_round(state)
    assert chosen == ()
    assert refused is not None
    assert refused.code == "too_few_replicas"


def test_a_split_ends_the_rounds() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 4)
    work = repairs_of(state, state.tablets[TABLE])
    tablets = replace(with_transitions(state.tablets[TABLE], {}), made=state.epoch + 1)
    work.folded(state, replace(state, tablets=state.tablets.set(TABLE, tablets)))
    assert work.resized
