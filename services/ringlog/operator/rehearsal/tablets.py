"""Tablets in a rehearsal: placement, load reports and the balancer's plans.

``place`` sets tablets directly, without a command of the log; only a rehearsal can do that. Reports are validated as by
the running balancer. The size of a moved tablet moves with it, as if the nodes had reported again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ringlog.kernel.balance.advice import Advice, advise, report_basis, table_groups
from ringlog.kernel.balance.model import BYTES
from ringlog.kernel.balance.reports import (
    UNREGISTERED,
    LoadReport,
    Reports,
    fold_report,
    ignored_within_window,
)
from ringlog.kernel.commands.placement.tablets import MigrateTablets, TabletMigration
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import TabletReplica, new_map, uniform_ends
from ringlog.kernel.values import Command, Micros, NodeId, replace
from ringlog.operator.views.tablets import map_named, plan_view, tablets_view
from ringlog.protocol.balancer.load_book import measured

Json = dict[str, Any]
PLANS_MAX = 10_000
_NO_REPORT = "the whole report is ignored"


class BadField(Exception):
    """A field of a line with an invalid value."""


def shown_tablets(state: ClusterState, table: str) -> Json | Rejected:
    """Answer ``show tablets``."""
    tablets = map_named(state, table)
    return _without(state, table) if tablets is None else tablets_view(state, tablets)


def placed(state: ClusterState, table: str, replicas: Any) -> ClusterState | Rejected:
    """Return the state after ``do place``.

    ``replicas``: for each tablet a list of ``[node, shard]``. Raises BadField.
    """
    if table not in state.tablets:
        return _without(state, table)
    if not isinstance(replicas, list) or not replicas:
        raise BadField("replicas: expected a list of tablets")
    groups: list[list[TabletReplica]] = []
    for number, group in enumerate(replicas):
        if not isinstance(group, list) or not group:
            raise BadField(f"replicas: tablet {number}: expected a list of [node, shard]")
        made: list[TabletReplica] = []
        for place in group:
            one = _replica(state, number, place)
            if isinstance(one, Rejected):
                return one
            if one.node in [other.node for other in made]:
                return Rejected("holds_replica", f"replicas: tablet {number}: {place[0]} is named twice")
            made.append(one)
        groups.append(made)
    tablets = new_map(table, uniform_ends(len(groups)), groups, state.epoch)
    return replace(state, tablets=state.tablets.set(table, replace(tablets, sequence=state.tablets[table].sequence)))


def _replica(state: ClusterState, number: int, place: Any) -> TabletReplica | Rejected:
    if not isinstance(place, list) or len(place) != 2 or not isinstance(place[0], str) or type(place[1]) is not int:
        raise BadField(f"replicas: tablet {number}: expected [node, shard]")
    node = state.node_names.get(place[0], place[0])
    if node not in state.nodes:
        return Rejected("unknown_node", f"replicas: the node {place[0]} does not exist")
    if not 0 <= place[1] < state.nodes[node].shards:
        return Rejected("unknown_shard", f"replicas: {place[0]} has no shard {place[1]}")
    return TabletReplica(node, place[1], state.epoch)


def reported(state: ClusterState, reports: Reports, value: Mapping[str, Any], now: Micros) -> Reports | Rejected:
    """Return the reports after ``do report``, or Rejected if the new report is ignored. Raises BadField."""
    sizes = value.get("sizes", {})
    if not isinstance(value["node"], str) or not isinstance(sizes, Mapping):
        raise BadField('node: expected text; sizes: expected {"keyspace.table": [[tablet, bytes], ...]}')
    found: dict[str, dict[int, object]] = {}
    counts: dict[str, int] = {}
    for name, rows in sizes.items():
        if not isinstance(rows, list) or not all(_is_size(row) for row in rows):
            raise BadField(f"sizes: {name}: expected [[tablet, bytes], ...]")
        tablets = map_named(state, name)
        table = state.tables[name].id if name in state.tables else name
        found[table], counts[table] = dict(rows), 1 if tablets is None else tablets.count
    node = state.node_names.get(value["node"], value["node"])
    report = LoadReport(node, now, value["capacity"], {BYTES: found}, counts)
    present = report_basis(state)
    after = fold_report(reports, report, now, present)
    wrong = dict(ignored_within_window(after, now, present)).get(node if node in present.nodes else UNREGISTERED)
    return after if wrong is None else Rejected(wrong, f"{value['node']}: {_NO_REPORT}")


def _is_size(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and type(row[0]) is int


def planned(state: ClusterState, reports: Reports) -> Json:
    """Answer ``do plan``: one plan, which is not applied."""
    return plan_view(state, advise(state, measured(reports, state)))


def balanced(
    state: Callable[[], ClusterState],
    reports: Reports,
    tables: frozenset[str] | None,
    apply: Callable[[Command], bool],
    settle: Callable[[], None],
) -> tuple[Json, Reports]:
    """Run plans until one is empty (``do balance``). Return (answer, reports after the moves)."""
    plans = migrations = 0
    advice = _advice(state(), reports, tables)
    while plans < PLANS_MAX and (after := _executed(state, reports, advice, apply, settle)) is not None:
        plans, migrations = plans + 1, migrations + len(advice.moves)
        reports = after
        advice = _advice(state(), reports, tables)
    return {"done": "balance", "plans": plans, "migrations": migrations, "stop": advice.stop or None}, reports


def moved_on(
    state: Callable[[], ClusterState], reports: Reports, apply: Callable[[Command], bool], settle: Callable[[], None]
) -> Reports | None:
    """Run one plan. Return the reports after the moves, or None if the plan is empty or refused."""
    return _executed(state, reports, _advice(state(), reports, None), apply, settle)


def _executed(
    state: Callable[[], ClusterState],
    reports: Reports,
    advice: Advice,
    apply: Callable[[Command], bool],
    settle: Callable[[], None],
) -> Reports | None:
    before = state()
    if not advice.moves or not apply(MigrateTablets(advice.moves)):
        return None
    settle()
    return _followed(before, reports, advice.moves)


def resized(
    state: Callable[[], ClusterState], reports: Reports, apply: Callable[[Command], bool], settle: Callable[[], None]
) -> Json:
    """Run the balancer's resizes once (``do resize``). A merge is carried out only if siblings share their shards."""
    decisions = []
    for command in advise(state(), measured(reports, state())).resizes:
        before = state().tablets[command.table].count
        if apply(command):
            settle()
            now = state().tablets[command.table].count
            decisions.append({"table": command.table, "decision": command.decision, "from": before, "to": now})
    return {"done": "resize", "decisions": decisions}


def _advice(state: ClusterState, reports: Reports, tables: frozenset[str] | None) -> Advice:
    return advise(state, measured(reports, state), tables)


def _followed(state: ClusterState, reports: Reports, moves: tuple[TabletMigration, ...]) -> Reports:
    """Return the reports after moves that started in ``state``, with sizes moved along."""
    measured_now = measured(reports, state)
    loads: dict[NodeId, Loads] = {
        node: {table: dict(sizes) for table, sizes in one.loads.get(BYTES, {}).items()}
        for node, one in measured_now.items()
    }
    for move in moves:
        for table in (move.table, *table_groups(state).get(move.table, ())):
            there = [replica.node for replica in state.tablets[move.table].replicas(move.tablet)]
            # The size is read before the source is removed, because the source may be the only node that reported it.
            present = [loads[node][table][move.tablet] for node in there if _has(loads, node, table, move.tablet)]
            if move.from_ is not None:
                loads.get(move.from_.node, {}).get(table, {}).pop(move.tablet, None)
            if move.to is not None and move.to.node in loads and present:
                loads[move.to.node].setdefault(table, {})[move.tablet] = max(present)
    newest = reports.newest
    names = {name: table for table, (name, _) in report_basis(state).tables.items()}
    for node, tables in loads.items():
        sizes = {names[name]: found for name, found in tables.items()}
        counts = {names[name]: report_basis(state).tables[names[name]][1] for name in tables}
        report = replace(newest[node].report, loads={BYTES: sizes}, counts=counts)
        newest = newest.set(node, replace(newest[node], report=report))
    return replace(reports, newest=newest)


Loads = dict[str, dict[int, int]]


def _has(loads: Mapping[NodeId, Loads], node: NodeId, table: str, number: int) -> bool:
    return number in loads.get(node, {}).get(table, {})


def _without(state: ClusterState, table: str) -> Rejected:
    if table not in state.tables:
        return Rejected("unknown_table", f"the table {table} does not exist")
    return Rejected("no_tablets", f"{table} has no tablets of its own")
