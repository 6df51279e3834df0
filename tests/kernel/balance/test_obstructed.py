"""Plans despite obstacles: moves that the state rejects, altered replications, missing reports."""

from __future__ import annotations

from collections import Counter

import pytest

from ringlog.kernel.balance.advice import advise, input_of, sizing_table
from ringlog.kernel.balance.ledger import Ledger
from ringlog.kernel.balance.model import FEWER, GIB, MORE, REBUILDS, BalanceInput, MeasuredLoads
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove
from ringlog.kernel.commands.topology.nodes import DeclareDown, UpdateNode
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.modes import BALANCING
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.model.tablet_map import TabletReplica, new_map, uniform_ends
from ringlog.kernel.tablets.mutual_exclusion import tables_on
from ringlog.kernel.tablets.resize import separated_pair
from ringlog.kernel.values import DatacenterReplication, Replication, TabletOptions, replace
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views.tablets import explained, explanation, resizes_view, resizing
from ringlog.protocol.balancer.balancer import REPORTED_MAX, complaints
from ringlog.protocol.balancer.load_book import ReceivedLoad, measured, take
from ringlog.protocol.balancer.load_reports import load_of, own_tablets
from ringlog.protocol.coordinator.core import CoordinatorView, rejections
from tests.kernel.balance.test_convergence import arrived, finished, loads
from tests.kernel.balance.world import host
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import (
    TABLE,
    cluster,
    create_table,
    factor,
    node_id,
    places,
    racks,
    register,
    settled,
    started,
    tablet,
    with_table,
)

ROUNDS_MAX = 60


def balanced(state: ClusterState) -> ClusterState:
    """Apply the balancer's moves until there are none."""
    for _ in range(ROUNDS_MAX):
        if not (moves := advise(state, {}).moves):
            return state
        state = applied(state, MigrateTablets(moves))
        for one in moves:
            state = settled(state, one.tablet, one.table)
    raise AssertionError("it does not end")


def with_tablet_groups(state: ClusterState, table: str, *groups: tuple[int, ...]) -> ClusterState:
    """Return the state with one tablet for each group, on shard 0 of the nodes with these numbers."""
    replicas = [[TabletReplica(node_id(number), 0, 1) for number in group] for group in groups]
    made = new_map(table, uniform_ends(len(groups)), replicas, state.epoch)
    return advance(state, state.epoch + 1, tablets=state.tablets.set(table, made))


def with_at_most_one_tablet(state: ClusterState) -> ClusterState:
    """Limit the table to one tablet, so that the balancer keeps a merge decision."""
    table = state.tables[TABLE]
    assert table.tablets is not None
    smaller = replace(table, tablets=replace(table.tablets, max_count=1))
    return advance(state, state.epoch + 1, tables=state.tables.set(TABLE, smaller))


def test_lost_tablets_do_not_block_other_tablets() -> None:
    """Node 1 has the only replica of its datacenter for many tablets, and one of three for another table."""
    nodes = [register(number, "r1", "dc1" if number < 5 else "dc2") for number in range(1, 8)]
    local = tuple(DatacenterReplication(name, count, ()) for name, count in (("dc1", 1), ("dc2", 1)))
    state = with_table(cluster(*nodes), Replication("tablets", 2, local), 8)
    state = with_tablet_groups(state, TABLE, *[(1, 5)] * 8)
    three = Replication("tablets", 3, (DatacenterReplication("dc1", 3, ()),))
    other = replace(create_table("t", TabletOptions(4), number=2), keyspace="zz")
    state = applied(state, CreateKeyspace("zz", three), other)
    state = with_tablet_groups(state, "zz.t", *[(1, 2, 3)] * 4)
    state = balanced(applied(state, DeclareDown(node_id(1), "burnt"), Remove(node_id(1))))
    assert tables_on(state, node_id(1)) == (TABLE,)
    codes = {(row.table, row.code) for row in advise(state, {}).plan.obstacles}
    assert codes == {(TABLE, "too_few_replicas")}


def test_a_rejected_move_is_excluded_from_the_next_plan() -> None:
    """Two of three replicas are dead, so the third node, which leaves, cannot move its tablets."""
    state = with_table(cluster(*map(register, range(1, 8))), factor(3), 6)
    state = with_tablet_groups(state, TABLE, *[(1, 2, 3)] * 5, (3, 4, 5))
    state = applied(state, DeclareDown(node_id(1), "burnt"), DeclareDown(node_id(2), "burnt"), Leave(node_id(3)))
    advice = advise(state, {})
    assert [one.tablet for one in advice.moves] == [5]
    assert {row.code for row in advice.plan.obstacles} == {"too_few_replicas"}
    assert len([*complaints(state, advice, Reports())]) <= 2 * REPORTED_MAX + 2


RACKS = ["r1", "r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("even", "odd"), [((1, 2), (3, 4)), ((1, 3), (2, 4)), ((1, 4), (1, 3)), ((3, 4), (1, 2)), ((2, 1), (1, 4))]
)
@pytest.mark.parametrize("datacenters", [("dc1",) * 4, ("dc1", "dc1", "dc2", "dc2"), ("dc1", "dc2", "dc3", "dc3")])
def test_siblings_of_a_merge_meet(even: tuple[int, int], odd: tuple[int, int], datacenters: tuple[str, ...]) -> None:
    """The siblings may be in any racks and datacenters, if the replication names none."""
    nodes = [register(number, *where) for number, where in enumerate(zip(RACKS, datacenters, strict=True), start=1)]
    state = with_tablet_groups(with_table(cluster(*nodes), factor(2), 2), TABLE, even, odd)
    state = with_at_most_one_tablet(state)
    state = balanced(applied(state, DecideResize(TABLE, "merge", 1)))
    assert separated_pair(state.tablets[TABLE]) is None


def test_siblings_that_cannot_meet_are_reported() -> None:
    state = with_tablet_groups(with_table(cluster(*map(register, range(1, 5))), factor(1), 2), TABLE, (1,), (2,))
    state = with_at_most_one_tablet(state)
    state = applied(state, DecideResize(TABLE, "merge", 1), DeclareDown(node_id(2), "burnt"))
    told = [(one.subject, one.code) for one in complaints(state, advise(state, {}), Reports())]
    assert (TABLE, "cannot_meet") in told


def test_the_only_node_of_a_datacenter_is_drained() -> None:
    nodes = [register(1), register(2), register(3, "r1", "dc2")]
    state = with_tablet_groups(with_table(cluster(*nodes), factor(1), 4), TABLE, (1,), (2,), (3,), (3,))
    state = balanced(applied(state, Leave(node_id(3))))
    assert tables_on(state, node_id(3)) == ()
    assert {node for number in range(4) for node, _ in places(tablet(state, number))} == {node_id(1), node_id(2)}


def test_a_resize_that_waits_for_a_dead_node_is_reported() -> None:
    state = with_table(cluster(*map(register, range(1, 5))), factor(3), 4)
    state = applied(state, DecideResize(TABLE, "split", 1))
    acks = acknowledgements(state, 0)
    assert not rejections(CoordinatorView(state, acks, state.epoch, 0))
    node = places(tablet(state))[0][0]
    state = applied(state, DeclareDown(node, "burnt"))
    acks = {other: ack for other, ack in acknowledgements(state, 0).items() if other != node}
    (told,) = rejections(CoordinatorView(state, acks, state.epoch, 0))
    assert (told.subject, told.kind, told.code) == (TABLE, "FinishResize", "gate_not_met")
    (line,) = resizing(resizes_view(state, acks))
    name = state.nodes[node].name
    assert line.startswith(f"split 1 of {TABLE} waits for witnesses: {name} must acknowledge")


COUNT = 8
ROUNDS = 40


@pytest.fixture(scope="module")
def start() -> ClusterState:
    """Return a state with two replicas of each tablet on six nodes in three racks."""
    state = clusters.with_table(clusters.three_racks(), factor(2), COUNT)
    return applied(state, ChangeSettings((("balance_tablets_per_shard_min", 1),)))


def altered(state: ClusterState, replication: Replication) -> tuple[ClusterState, Counter[str]]:
    """Alter the replication and apply plans as ``balanced_with_reasons`` does."""
    return balanced_with_reasons(applied(state, AlterKeyspace("ks", replication)))


def balanced_with_reasons(state: ClusterState, is_whole: bool = True) -> tuple[ClusterState, Counter[str]]:
    """Apply plans until one is empty. Return the state and the reasons of the moves.

    With ``is_whole``, the state must accept each move.
    """
    why = Counter[str]()
    for _ in range(ROUNDS):
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


def test_replicas_follow_the_replication_factor(start: ClusterState) -> None:
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


def test_named_racks_get_one_replica_each(start: ClusterState) -> None:
    state, _ = altered(start, racks("r1", "r2", "r3"))
    assert all(racks_of(state, index) == ["r1", "r2", "r3"] for index in range(COUNT))
    state, why = altered(state, racks("r2", "r3"))
    assert all(racks_of(state, index) == ["r2", "r3"] for index in range(COUNT))
    assert why[FEWER] == COUNT
    state, _ = altered(state, racks("r1", "r3"))
    assert all(racks_of(state, index) == ["r1", "r3"] for index in range(COUNT))


def test_a_datacenter_is_filled_before_the_other_is_left() -> None:
    nodes = [register(number, "r1", f"dc{1 + number % 2}") for number in range(1, 7)]
    state = clusters.with_table(clusters.cluster(*nodes), two("dc1", 2), COUNT)
    moved, why = altered(applied(state, AlterKeyspace("ks", two("dc1", 2, "dc2", 1))), two("dc1", 1, "dc2", 2))
    for index in range(COUNT):
        there = Counter(moved.nodes[node].datacenter for node, _ in places(tablet(moved, index)))
        assert there == {"dc1": 1, "dc2": 2}
    assert (why[MORE], why[FEWER]) == (2 * COUNT, COUNT)


def two(*pairs: str | int) -> Replication:
    named = [DatacenterReplication(str(name), int(count)) for name, count in zip(pairs[::2], pairs[1::2], strict=True)]
    return Replication("tablets", sum(one.factor for one in named), tuple(named))


def test_the_replica_of_a_dead_node_is_removed_first(start: ClusterState) -> None:
    state, _ = altered(start, factor(3))
    dead = places(tablet(state))[0][0]
    state = applied(state, DeclareDown(dead, "burnt"), AlterKeyspace("ks", factor(2)))
    row = next(one for one in advise(state, {}).plan.migrations if one.tablet == 0)
    assert (row.source[0], row.why) == (dead, FEWER)


def test_replica_changes_are_explained(start: ClusterState) -> None:
    state = applied(start, AlterKeyspace("ks", factor(3)))
    told = list(explained(explanation(state, advise(state, {}), state.tablets[TABLE], 0, {})))
    assert told[1].startswith("it would move from nobody to n")
    assert told[1].endswith("the replication requires one more replica")


def test_a_pause_and_the_choice_of_tables_hold_for_replicas_too(start: ClusterState) -> None:
    state = applied(start, AlterKeyspace("ks", factor(3)))
    assert not advise(state, {}, {"ks.other"}).moves
    paused = applied(state, PauseChanges((BALANCING,), TABLE, ""))
    assert not advise(paused, {}).moves


def test_replica_changes_respect_stream_limits(start: ClusterState) -> None:
    state = applied(start, ChangeSettings((("tablet_streams_max", 3),)), AlterKeyspace("ks", factor(3)))
    advice = advise(state, {})
    assert len(advice.moves) == 3
    state = applied(state, MigrateTablets(advice.moves))
    assert not advise(state, {}).moves
    assert not advise(state, {}).refused, "waiting moves are not rejections"


def test_migrating_tablets_count_at_their_target() -> None:
    """Each copy starts after the previous one has streamed, but before it has arrived. The planner counts it as
    arrived.
    """
    state = clusters.with_table(clusters.cluster(*[register(number) for number in (1, 2, 3)]), factor(1), 6)
    state = applied(state, AlterKeyspace("ks", factor(2)))
    for _ in range(6):
        state = started(state, advise(state, {}).moves[0], "write_both_read_new")
    comes = Counter(one.next[-1].node for one in state.tablets[TABLE].transitions.values())
    assert [comes[node] for node in state.nodes] == [2, 2, 2]


def test_a_blocked_tablet_does_not_delay_other_tablets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only replica of the first tablet is dead, and one entry has room for one tablet."""
    monkeypatch.setattr("ringlog.kernel.balance.advice.TABLETS_MAX", 1)
    state = clusters.with_table(clusters.cluster(*[register(number) for number in (1, 2, 3)]), factor(1), 6)
    dead = places(tablet(state))[0][0]
    state = applied(state, AlterKeyspace("ks", factor(2)), DeclareDown(dead, "burnt"))
    lost = {index for index in range(6) if places(tablet(state, index))[0][0] == dead}
    assert 0 in lost
    assert [one.tablet for one in advise(state, {}).moves] == [min(set(range(6)) - lost)]
    state, _ = balanced_with_reasons(state, is_whole=False)
    assert {index for index in range(6) if len(places(tablet(state, index))) == 1} == lost
    assert {one.code for one in advise(state, {}).refused} == {"too_few_replicas"}


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_replicas_of_assassinated_nodes_are_rebuilt(lost: int) -> None:
    """Of three replicas, some are lost. A replica with more rows may return, so the planner waits for it."""
    state = clusters.with_table(clusters.three_racks(), factor(3), COUNT)
    gone = [node for node, _ in places(tablet(state))][:lost]
    state = applied(state, *(DeclareDown(node, "burnt") for node in gone), Assassinate(gone[0]))
    obstacles = {(row.tablet, row.code) for row in advise(state, {}).plan.obstacles}
    assert ((0, "too_few_replicas") in obstacles) is (lost > 1)
    state, why = balanced_with_reasons(applied(state, *(Assassinate(node) for node in gone[1:])))
    assert why[REBUILDS] >= lost
    for index in range(COUNT):
        assert len(places(tablet(state, index))) == 3
        assert not {node for node, _ in places(tablet(state, index))}.intersection(gone)


def test_a_node_of_weight_two_holds_twice_as_many_tablets() -> None:
    """Reports of the reference node, which measure no capacity, do not change the result."""
    state = clusters.cluster(*[clusters.register(number, shards=2) for number in range(1, 5)])
    state = applied(
        state, CreateKeyspace("ks", clusters.factor(1)), clusters.create_table(tablets=TabletOptions(count=100))
    )
    heavy = min(state.nodes)
    state = applied(state, UpdateNode(heavy, capacity=2))
    for measures in (False, True):
        for _ in range(50):
            moves = advise(state, loads(state, {"ks.t": 500 * GIB}) if measures else {}).moves
            state = arrived(applied(state, MigrateTablets(moves))) if moves else state
        held = {node: sum(map(len, own_tablets(state, node).values())) for node in state.nodes}
        assert 38 <= held[heavy] <= 41, held
        assert max(count for node, count in held.items() if node != heavy) <= 21


def test_capacity_in_bytes_scales_with_the_weight() -> None:
    hosts = [host("n1", 2), host("n2", 2, weight=3), host("n3", 4)]
    reports = {"n1": 100, "n2": 100, "n3": None}
    measured = {name: MeasuredLoads(capacity, {}) for name, capacity in reports.items()}
    ledger = Ledger(BalanceInput(hosts, [], measured))
    assert {name: node.capacity for name, node in ledger.nodes.items()} == {"n1": 100, "n2": 300, "n3": 200}


def test_reports_from_before_a_merge_count_for_no_other_table() -> None:
    state = clusters.cluster(*[clusters.register(number, shards=1) for number in (1, 2, 3)])
    tables = [clusters.create_table(name, TabletOptions(count=8), number) for number, name in enumerate("ab", start=1)]
    state = applied(state, CreateKeyspace("ks", clusters.factor(3)), *tables)
    bytes_of = {"ks.a": 800 * GIB, "ks.b": 8 * GIB}
    heard = []
    for node in sorted(state.nodes):
        own = own_tablets(state, node)
        sizes = {table: dict.fromkeys(numbers, bytes_of[table] // 8) for table, numbers in own.items()}
        heard.append(ReceivedLoad(load_of(state, node, own, sizes, 0), 1))
    reports = take(Reports(), heard, state)
    state = finished(decided := applied(state, DecideResize("ks.a", "merge", 1)), decided.tablets["ks.a"])
    inputs = input_of(state, measured(reports, state))
    sizes_of = {
        found.table: found.bytes for found in (sizing_table(state, inputs, each) for each in state.tablets.values())
    }
    assert sizes_of == bytes_of
    for node in Ledger(inputs).nodes.values():
        assert "of ks.a is missing" in node.incomplete
    assert {amount for one in inputs.measured.values() for amount in one.loads["bytes"]["ks.b"].values()} == {GIB}
    assert all("ks.a" not in one.loads["bytes"] for one in inputs.measured.values())


def test_a_node_with_ignored_reports_can_leave() -> None:
    state = clusters.cluster(*[clusters.register(number) for number in (1, 2, 3)])
    state = applied(
        state, CreateKeyspace("ks", clusters.factor(1)), clusters.create_table(tablets=TabletOptions(count=16))
    )
    goes = min(state.nodes)
    state = applied(state, Leave(goes))
    for silent in ({goes}, set(state.nodes) - {goes}):
        left = state
        for _ in range(20):
            told = {node: found for node, found in loads(left, {"ks.t": 16 * GIB}).items() if node not in silent}
            moves = advise(left, told).moves
            left = arrived(applied(left, MigrateTablets(moves))) if moves else left
        assert not own_tablets(left, goes), silent
