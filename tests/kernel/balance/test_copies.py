"""A replication that is altered is carried out, replica by replica, and what the assassinated had is made anew; then
nothing is left to do.
"""

from __future__ import annotations

from collections import Counter

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.model import FEWER, MORE, REBUILDS
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.modes import BALANCING
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import DatacenterReplication, Replication
from ringlog.operator.views.tablets import explained, explanation
from tests.kernel.entries import applied
from tests.kernel.tablets import lives
from tests.kernel.tablets.lives import TABLE, begun, factor, places, racks, register, settled, tablet

COUNT = 8
ROUNDS_MAX = 40


@pytest.fixture(scope="module")
def start() -> ClusterState:
    """Two replicas of each tablet on six nodes in three racks."""
    state = lives.with_table(lives.three_racks(), factor(2), COUNT)
    return applied(state, ChangeSettings((("balance_tablets_per_shard_min", 1),)))


def altered(state: ClusterState, replication: Replication) -> tuple[ClusterState, Counter[str]]:
    """As ``at_rest``, when the keyspace has another replication."""
    return at_rest(applied(state, AlterKeyspace("ks", replication)))


def at_rest(state: ClusterState, is_whole: bool = True) -> tuple[ClusterState, Counter[str]]:
    """Plans are carried out until one is empty; why replicas moved. ``is_whole``: nothing is refused then."""
    why = Counter[str]()
    for _ in range(ROUNDS_MAX):
        advice = advise(state, {})
        assert advice.commands == advise(state, {}).commands
        if not advice.moves:
            assert not (is_whole and advice.refused)
            assert violations(state) == ()
            return state, why
        begun = {(one.table, one.tablet) for one in advice.moves}
        why.update(row.why for row in advice.plan.migrations if (row.table, row.tablet) in begun)
        state = applied(state, MigrateTablets(advice.moves))
        for one in advice.moves:
            state = settled(state, one.tablet)
    raise AssertionError(f"not at an end: {why}")


def racks_of(state: ClusterState, index: int) -> list[str]:
    return sorted(state.nodes[node].rack for node, _ in places(tablet(state, index)))


def test_replicas_come_and_go_as_the_factor_says(start: ClusterState) -> None:
    state = start
    for wanted in (3, 5, 2, 1):
        before = len(places(tablet(state)))
        state, why = altered(state, factor(wanted))
        assert {len(places(tablet(state, index))) for index in range(COUNT)} == {wanted}
        assert why[MORE] == COUNT * max(0, wanted - before)
        assert why[FEWER] == COUNT * max(0, before - wanted)
        held = Counter(node for index in range(COUNT) for node, _ in places(tablet(state, index)))
        assert max(held.values()) - min(held.get(node, 0) for node in state.nodes) <= 1, held
        if wanted == 3:
            assert all(racks_of(state, index) == ["r1", "r2", "r3"] for index in range(COUNT))


def test_racks_that_are_named_get_one_each(start: ClusterState) -> None:
    state, _ = altered(start, racks("r1", "r2", "r3"))
    assert all(racks_of(state, index) == ["r1", "r2", "r3"] for index in range(COUNT))
    state, why = altered(state, racks("r2", "r3"))
    assert all(racks_of(state, index) == ["r2", "r3"] for index in range(COUNT))
    assert why[FEWER] == COUNT
    state, _ = altered(state, racks("r1", "r3"))
    assert all(racks_of(state, index) == ["r1", "r3"] for index in range(COUNT))


def test_a_datacenter_is_filled_before_the_other_is_left() -> None:
    nodes = [register(number, "r1", f"dc{1 + number % 2}") for number in range(1, 7)]
    state = lives.with_table(lives.cluster(*nodes), two("dc1", 2), COUNT)
    moved, why = altered(applied(state, AlterKeyspace("ks", two("dc1", 2, "dc2", 1))), two("dc1", 1, "dc2", 2))
    for index in range(COUNT):
        there = Counter(moved.nodes[node].datacenter for node, _ in places(tablet(moved, index)))
        assert there == {"dc1": 1, "dc2": 2}
    assert (why[MORE], why[FEWER]) == (2 * COUNT, COUNT)


def two(*pairs: str | int) -> Replication:
    named = [DatacenterReplication(str(name), int(count)) for name, count in zip(pairs[::2], pairs[1::2], strict=True)]
    return Replication("tablets", sum(one.factor for one in named), tuple(named))


def test_the_replica_of_a_dead_node_goes_first(start: ClusterState) -> None:
    state, _ = altered(start, factor(3))
    dead = places(tablet(state))[0][0]
    state = applied(state, DeclareDown(dead, "burnt"), AlterKeyspace("ks", factor(2)))
    row = next(one for one in advise(state, {}).plan.migrations if one.tablet == 0)
    assert (row.source[0], row.why) == (dead, FEWER)


def test_what_comes_and_goes_is_explained(start: ClusterState) -> None:
    state = applied(start, AlterKeyspace("ks", factor(3)))
    told = list(explained(explanation(state, advise(state, {}), state.tablets[TABLE], 0, {})))
    assert told[1].startswith("it would move from nobody to n")
    assert told[1].endswith("the replication asks for one replica more")


def test_a_pause_and_the_choice_of_tables_hold_for_replicas_too(start: ClusterState) -> None:
    state = applied(start, AlterKeyspace("ks", factor(3)))
    assert not advise(state, {}, {"ks.other"}).moves
    paused = applied(state, PauseChanges((BALANCING,), TABLE, ""))
    assert not advise(paused, {}).moves


def test_no_more_streams_than_may_be(start: ClusterState) -> None:
    state = applied(start, ChangeSettings((("tablet_streams_max", 3),)), AlterKeyspace("ks", factor(3)))
    advice = advise(state, {})
    assert len(advice.moves) == 3
    state = applied(state, MigrateTablets(advice.moves))
    assert not advise(state, {}).moves
    assert not advise(state, {}).refused, "they wait, which is no complaint"


def test_what_is_on_its_way_counts_where_it_will_be() -> None:
    """Each copy begins when the one before has streamed and has not arrived: they are spread as if it had."""
    state = lives.with_table(lives.cluster(*[register(number) for number in (1, 2, 3)]), factor(1), 6)
    state = applied(state, AlterKeyspace("ks", factor(2)))
    for _ in range(6):
        state = begun(state, advise(state, {}).moves[0], "write_both_read_new")
    comes = Counter(one.next[-1].node for one in state.tablets[TABLE].transitions.values())
    assert [comes[node] for node in state.nodes] == [2, 2, 2]


def test_what_cannot_begin_holds_up_none_of_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only replica of the first tablet is dead; one entry has room for one tablet."""
    monkeypatch.setattr("ringlog.kernel.balance.advice.TABLETS_MAX", 1)
    state = lives.with_table(lives.cluster(*[register(number) for number in (1, 2, 3)]), factor(1), 6)
    dead = places(tablet(state))[0][0]
    state = applied(state, AlterKeyspace("ks", factor(2)), DeclareDown(dead, "burnt"))
    lost = {index for index in range(6) if places(tablet(state, index))[0][0] == dead}
    assert 0 in lost
    assert [one.tablet for one in advise(state, {}).moves] == [min(set(range(6)) - lost)]
    state, _ = at_rest(state, is_whole=False)
    assert {index for index in range(6) if len(places(tablet(state, index))) == 1} == lost
    assert {one.code for one in advise(state, {}).refused} == {"too_few_replicas"}


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_the_assassinated_had_is_made_anew_from_all_who_are_left(lost: int) -> None:
    """Of three replicas; as long as one that knows more may come back, it is waited for."""
    state = lives.with_table(lives.three_racks(), factor(3), COUNT)
    gone = [node for node, _ in places(tablet(state))][:lost]
    state = applied(state, *(DeclareDown(node, "burnt") for node in gone), Assassinate(gone[0]))
    obstacles = {(row.tablet, row.code) for row in advise(state, {}).plan.obstacles}
    assert ((0, "too_few_replicas") in obstacles) is (lost > 1)
    state, why = at_rest(applied(state, *(Assassinate(node) for node in gone[1:])))
    assert why[REBUILDS] >= lost
    for index in range(COUNT):
        assert len(places(tablet(state, index))) == 3
        assert not {node for node, _ in places(tablet(state, index))}.intersection(gone)
