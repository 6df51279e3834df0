"""The balancer's advice: planner, table sizes and admission rules together."""

from __future__ import annotations

import pytest
from immutables import Map

from ringlog.kernel.balance.advice import advise, as_migration, make_plan, report_basis
from ringlog.kernel.balance.ledger import Ledger
from ringlog.kernel.balance.model import MeasuredLoads
from ringlog.kernel.balance.source import collect_input
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets, admissible
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import ClusterState, Operation, Plan, StageMark
from ringlog.kernel.model.tablet_map import (
    TabletMap,
    TabletReplica,
    Transition,
    new_map,
    uniform_ends,
    with_transitions,
)
from ringlog.kernel.tablets.stages import ASKED, KINDS, STREAMING
from ringlog.kernel.tablets.streaming import Streams
from ringlog.kernel.values import TabletOptions, replace
from tests.kernel.balance.tables import GIB, table_of
from tests.kernel.balance.test_source import node, state_of

THREE = state_of(node("n1"), node("n2"), node("n3"))
"""One replica, one rack, two shards each."""


def on(name: str, shard: int = 0) -> TabletReplica:
    return TabletReplica(name, shard, 1)


def with_map(state: ClusterState, tablets: TabletMap, options: TabletOptions | None = None) -> ClusterState:
    """Return the state with one table. The minimum of tablets for each shard is one."""
    table = table_of(tablets.table, options or TabletOptions())
    return replace(
        state,
        epoch=9,
        tables=Map({tablets.table: table}),
        tablets=Map({tablets.table: tablets}),
        settings=Map({"balance_tablets_per_shard_min": 1}),
    )


def sizes(table: str, nodes: dict[str, dict[int, int]], capacity: int = 100 * GIB) -> dict[str, MeasuredLoads]:
    return {name: MeasuredLoads(capacity, {"bytes": {table: found}}) for name, found in nodes.items()}


PILED = with_map(THREE, new_map("ks.t", uniform_ends(8), [[on("n1")]] * 8, 1))


def test_advised_commands_are_accepted() -> None:
    advice = advise(PILED, {})
    assert {move.to.node for move in advice.moves if move.to} <= {"n1", "n2", "n3"}
    (command,) = advice.commands
    assert isinstance(command, MigrateTablets)
    assert isinstance(decide(PILED, command, EntryContext(10, "s", 1)), Accepted)
    assert advise(PILED, {}).commands == advice.commands


def test_plan_and_admission_have_the_same_limits() -> None:
    tight = replace(PILED, settings=PILED.settings.set("tablet_stream_reads_per_shard_max", 1))
    advice = advise(tight, {})
    assert len([move for move in advice.moves if move.kind == "migration"]) == 1
    assert not advice.refused


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", [*ASKED, "salvage"])
def test_planner_and_admission_count_streams_alike(kind: str, limit: int) -> None:
    """A table of the balancer has one more moving tablet. A table in a zone has a tablet of the kind on a dead node."""
    up = replace(PILED, nodes=PILED.nodes.set("n2", replace(PILED.nodes["n2"], down=True)))
    end = (on("n1", 1),) if kind in ("repair", "intranode_migration") else (on("n3"), on("n1", 1))
    settled = [on("n2"), on("n1", 1)]
    zoned = new_map("zone.t", uniform_ends(1), [settled], 1)
    zoned = with_transitions(zoned, {0: Transition(0, kind, KINDS[kind].stages[0], 2, 2, end)})
    mine = with_transitions(PILED.tablets["ks.t"], {0: Transition(0, "repair", "repair", 2, 2, (on("n1"),))})
    names = ("reads_per_shard", "writes_per_shard", "reads_per_node", "writes_per_node")
    settings = PILED.settings.update({f"tablet_stream_{name}_max": limit for name in names})
    state = replace(up, tablets=Map({"ks.t": mine, "zone.t": zoned}), settings=settings)
    maps = [mine]
    ledger, streams = Ledger(collect_input(state, maps, {})), Streams(state)
    assert {place: shard.reads for place, shard in ledger.at.items() if shard.reads} == dict(streams.reads)
    assert {place: shard.writes for place, shard in ledger.at.items() if shard.writes} == dict(streams.writes)
    assert {name: host.reads for name, host in ledger.nodes.items() if host.reads} == dict(streams.node_reads)
    assert {name: host.writes for name, host in ledger.nodes.items() if host.writes} == dict(streams.node_writes)
    assert ledger.streams == streams.all
    planned = make_plan(collect_input(state, maps, {})).migrations
    assert admissible(state, [as_migration(row) for row in planned])[1] == ()


def test_a_waiting_node_operation_blocks_all_moves() -> None:
    marks = (StageMark("requested", 5, 1),)
    waiting = Operation("op", "join", "n9", (), b"", "requested", 5, Plan(), (), None, marks, (), "")
    advice = advise(replace(PILED, operations=Map({"op": waiting})), {})
    assert not advice.moves
    assert advice.stop == "node_request"


def test_only_named_tables_move() -> None:
    assert advise(PILED, {}, {"ks.t"}).moves
    assert not advise(PILED, {}, {"ks.other"}).moves


def test_running_moves_count_as_finished() -> None:
    (first, *_) = [move for move in advise(PILED, {}).moves if move.kind == "migration"]
    assert first.to is not None
    step = Transition(first.tablet, "migration", STREAMING, 2, 2, (TabletReplica(first.to.node, first.to.shard, 0),))
    moving = replace(PILED, tablets=Map({"ks.t": with_transitions(PILED.tablets["ks.t"], {first.tablet: step})}))
    assert first.tablet not in [move.tablet for move in advise(moving, {}).moves]


def test_a_table_splits_only_with_all_sizes_known() -> None:
    large = dict.fromkeys(range(8), 12 * GIB)
    (found,) = advise(PILED, sizes("ks.t", {"n1": large, "n2": {}, "n3": {}})).resizes
    assert found == DecideResize("ks.t", "split", 1)
    some = dict.fromkeys(range(7), 12 * GIB)
    assert not advise(PILED, sizes("ks.t", {"n1": some})).resizes


def test_hints_of_the_table_bound_its_tablets() -> None:
    large = sizes("ks.t", {"n1": dict.fromkeys(range(8), 12 * GIB)})
    bounded = with_map(THREE, PILED.tablets["ks.t"], TabletOptions(max_count=8))
    assert not advise(bounded, large).resizes


def test_the_least_for_each_shard_comes_from_the_settings() -> None:
    least = replace(PILED, settings=Map({"balance_tablets_per_shard_min": 10}))
    assert advise(least, {}).resizes == (DecideResize("ks.t", "split", 1),)


def test_co_located_tables_move_once() -> None:
    other = table_of("ks.u", TabletOptions(base="t"))
    shared = replace(PILED, tables=PILED.tables.set("ks.u", other))
    advice = advise(shared, {})
    assert {move.table for move in advice.moves} == {"ks.t"}
    ids = [shared.tables[name].id for name in ("ks.t", "ks.u")]
    assert report_basis(shared).tables == {ids[0]: ("ks.t", 8), ids[1]: ("ks.u", 8)}


def test_reports_of_departed_nodes_are_ignored() -> None:
    left = replace(THREE.nodes["n3"], state="left")
    known = report_basis(replace(PILED, nodes=PILED.nodes.set("n3", left)))
    assert (known.nodes, known.left) == ({"n1", "n2"}, {"n3"})
