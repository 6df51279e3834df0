"""The balancer's advice: the next migrations and resizes in a state, and the reasons.

A pure function of the state and of the nodes' reports, so a stand-by computes the same. Each migration of a plan is
checked with the rule that the fold will apply. A rejected one is shown, and the next plan is made without it, so a
tablet that cannot move takes no room from others. Replicas that a replication adds or removes come before all other
plans (``copies``).

A plan has drains, then hosts of each datacenter, then shards of each host, then tables above their shares, then
siblings that are to merge. Each kind of step lowers its own measure and raises none of the earlier ones (``spread`` has
the argument). So repeated plans end with an empty one, and equal inputs give equal plans.

A table's bytes are those of one replica of each tablet. The greatest report counts, because nodes that catch up report
less than there is. They are known when some node has reported each tablet. If a replication names no datacenters, its
replicas in a datacenter are counted.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Load balancing", and ``service/tablet_allocator.cc``
(make_plan, make_resize_plan).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from ringlog.kernel.balance.copies import balanced, copies
from ringlog.kernel.balance.drain import drain
from ringlog.kernel.balance.ledger import Ledger
from ringlog.kernel.balance.model import (
    BYTES,
    NOWHERE,
    BalanceInput,
    BalancePlan,
    BalanceStop,
    MeasuredLoads,
    Migration,
    Obstacle,
)
from ringlog.kernel.balance.reports import ReportBasis
from ringlog.kernel.balance.rules import OpenRacks, TableLimits
from ringlog.kernel.balance.shards import even_out
from ringlog.kernel.balance.siblings import bring_together
from ringlog.kernel.balance.sizing import Demand, Sized, SizeOptions, changed_decisions, decide_resizes, demands
from ringlog.kernel.balance.source import collect_input, limits_of
from ringlog.kernel.balance.spread import Spread, stop_of
from ringlog.kernel.commands.control.pauses import pause_of
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import TABLETS_MAX, MigrateTablets, Shard, TabletMigration, admissible
from ringlog.kernel.model.modes import BALANCING, SPLITS
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.tablets.mutual_exclusion import may_begin
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT
from ringlog.kernel.values import Command, NodeId, Value, field, replace


def make_plan(inputs: BalanceInput) -> BalancePlan:
    """Return the next migrations. ``stops`` says why other tablets stay."""
    if inputs.busy:
        return BalancePlan(stops=(BalanceStop("cluster", inputs.busy),))
    ledger = Ledger(inputs)
    table_limits, racks = TableLimits(ledger), OpenRacks(ledger)
    stops: list[BalanceStop] = []
    obstacles: list[Obstacle] = []
    spreads: list[Spread] = []
    draining = False
    for datacenter, members in ledger.in_datacenter.items():
        stops += [_skipped(node.host.id, node.host.alive, node.incomplete) for node in members if not node.movable]
        why, blocked, is_open = drain(ledger, table_limits, datacenter)
        stops += why
        obstacles += blocked
        draining |= is_open
        if is_open:
            stops.append(BalanceStop(datacenter, "drain_first"))
            continue
        spread = Spread(ledger, table_limits, racks, datacenter)
        spread.run()
        spreads.append(spread)
        stops.append(stop_of(datacenter, spread.stops))
        if stops[-1].code != "limits":
            for node in members:
                if node.movable:
                    even_out(ledger, node, datacenter in ledger.by_size)
    if not ledger.planned:
        for spread in spreads:
            spread.relieve()
    if not ledger.planned and not draining:
        stops += bring_together(ledger)
    assert len({(row.table, row.tablet) for row in ledger.planned}) == len(ledger.planned), "a tablet moves once"
    return BalancePlan(tuple(ledger.planned), tuple(stops), tuple(obstacles))


def _skipped(node: str, alive: bool, incomplete: str) -> BalanceStop:
    if not alive:
        return BalanceStop(node, "dead")
    return BalanceStop(node, "statistics_missing", incomplete) if incomplete else BalanceStop(node, "draining")


STREAMING_LIMIT: Final = "streaming_limit"
PLANS_MAX: Final = 16
"""The most plans for one answer. Each leaves out the refused moves of the plan before."""
NODE_REQUEST: Final = "node_request"
"""The reason why nothing starts while a node operation waits or runs."""


class RefusedMigration(Value):
    """A migration of the plan that the state would refuse."""

    migration: TabletMigration
    code: str
    detail: str


class Advice(Value):
    """The balancer's advice for one state.

    ``inputs`` and ``plan``: the planner's input and answer. ``moves``: the migrations of the plan that may start now.
    ``refused``: the others. ``resizes``: decisions to split, to merge or to revoke either, each with its sequence
    number. ``demands``: the decision about each table and its reason. ``is_paused``: all balancing is paused.
    """

    inputs: BalanceInput
    plan: BalancePlan
    moves: tuple[TabletMigration, ...] = ()
    refused: tuple[RefusedMigration, ...] = ()
    resizes: tuple[DecideResize, ...] = ()
    is_paused: bool = False
    demands: Mapping[str, Demand] = field(default_factory=dict)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands to request, in order: decisions first, since siblings then move for a merge."""
        return (*self.resizes, *([MigrateTablets(self.moves)] if self.moves else []))

    @property
    def stop(self) -> str:
        """The reason why nothing moves: the first one of a datacenter or of the cluster; empty if something moves."""
        if self.plan.migrations:
            return self.refused[0].code if self.refused and not self.moves else ""
        if self.is_paused:
            return "paused"
        if self.plan.obstacles:
            return self.plan.obstacles[0].code
        places = {host.datacenter for host in self.inputs.hosts} | {"cluster"}
        codes = [stop.code for stop in self.plan.stops if stop.what in places]
        return next((code for code in codes if code not in ("balanced", "nothing_to_do")), "balanced")


def advise(
    state: ClusterState, measured: Mapping[NodeId, MeasuredLoads], tables: Collection[str] | None = None
) -> Advice:
    """Return the advice for now. ``tables``: move only tablets of these tables; None: of all."""
    inputs = input_of(state, measured)
    sized = [sizing_table(state, inputs, tablets) for _, tablets in balanced(state)]
    demanded = demands(sized, inputs.hosts, inputs.limits)
    decisions = tuple(
        DecideResize(row.table, row.decision, state.tablets[row.table].sequence + 1)
        for row in changed_decisions(sized, demanded, inputs.limits)
    )
    # Siblings do not move for a merge that this plan revokes: the next plan would move them back.
    changing = {one.table for one in decisions}
    tables_now = tuple([replace(one, merging=one.merging and one.table not in changing) for one in inputs.tables])
    inputs = replace(inputs, tables=tables_now)
    is_paused = pause_of(state, BALANCING) is not None
    wanted = (row for row in copies(state) if tables is None or row.table in tables)
    changes, begun, against = ([], (), ()) if inputs.busy else _first_that_begin(state, wanted)
    if begun:
        chosen = {(one.table, one.tablet) for one in begun}
        plan = BalancePlan(tuple(row for row in changes if (row.table, row.tablet) in chosen))
        return Advice(inputs, plan, begun, (), decisions, is_paused, demanded)
    if tables is not None:
        kept = [one if one.table in tables else replace(one, paused=True) for one in inputs.tables]
        inputs = replace(inputs, tables=kept)
    never = [(one, rejected) for one, rejected in against if rejected.code != STREAMING_LIMIT]
    for _ in range(PLANS_MAX):
        plan = make_plan(inputs)
        moves, refused = admissible(state, [as_migration(row) for row in plan.migrations if row.table in state.tablets])
        final = [(one, rejected) for one, rejected in refused if rejected.code != STREAMING_LIMIT]
        never += final
        if not final:
            break
        left = {(one.table, one.tablet): (rejected.code, rejected.detail) for one, rejected in final}
        assert left.keys().isdisjoint(inputs.refused), "a refused tablet is not planned again"
        inputs = replace(inputs, refused={**inputs.refused, **left})
    limited = [row for row in refused if row[1].code == STREAMING_LIMIT]
    told = tuple(RefusedMigration(one, rejected.code, rejected.detail) for one, rejected in (*never, *limited))
    return Advice(inputs, plan, moves, told, decisions, is_paused, demanded)


def _first_that_begin(
    state: ClusterState, wanted: Iterator[Migration]
) -> tuple[list[Migration], tuple[TabletMigration, ...], tuple[tuple[TabletMigration, Rejected], ...]]:
    """Return the first group of up to ``TABLETS_MAX`` wanted changes that may start, the moves that may start, and the
    refused ones.

    A group also counts if only a streaming limit stops it. If no group may start, the refused moves of the first group
    are returned, so that permanent refusals are shown.
    """
    first: tuple[tuple[TabletMigration, Rejected], ...] = ()
    while changes := list(islice(wanted, TABLETS_MAX)):
        begun, against = admissible(state, map(as_migration, changes))
        if begun or any(rejected.code == STREAMING_LIMIT for _, rejected in against):
            return changes, begun, (*first, *against)
        first = first or against
    return [], (), first


def input_of(state: ClusterState, measured: Mapping[NodeId, MeasuredLoads]) -> BalanceInput:
    """Return the planner's input: all tables in tablets, with their co-located tables, without those that
    zones place.
    """
    busy = NODE_REQUEST if may_begin(state) is not None else ""
    return collect_input(state, [tablets for _, tablets in balanced(state)], measured, table_groups(state), busy)


def as_migration(row: Migration) -> TabletMigration:
    """Return a row of a plan as a migration of the command."""
    source, target = (None if place == NOWHERE else Shard(*place) for place in (row.source, row.target))
    return TabletMigration(row.table, row.tablet, row.kind, source, target)


def table_groups(state: ClusterState) -> dict[str, tuple[str, ...]]:
    """Return for each table the tables that share its tablets, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for name, table in in_order(state.tables):
        if table.tablets is not None and table.tablets.base:
            base = f"{table.keyspace}.{table.tablets.base}"
            found[base] = (*found.get(base, ()), name)
    return found


def report_basis(state: ClusterState) -> ReportBasis:
    """Return the part of the state that reports are checked against."""
    shared = table_groups(state)
    tables = {
        state.tables[name].id: (name, tablets.count)
        for base, tablets in state.tablets.items()
        for name in (base, *shared.get(base, ()))
    }
    left = {name for name, node in state.nodes.items() if node.state == "left"}
    return ReportBasis(set(state.nodes) - left, tables, state.table_ids, left)


# ------------------------------------------------------------------------------------------------------- sizing


def would_be_undone(state: ClusterState, measured: Mapping[NodeId, MeasuredLoads], table: str, decision: str) -> str:
    """Return the decision that the balancer would make to undo an operator's decision; empty if it would not.

    ``NONE`` revokes it while it is in progress, ``SPLIT`` or ``MERGE`` follows it.
    """
    inputs = input_of(state, measured)
    known = {name: sizing_table(state, inputs, tablets) for name, tablets in balanced(state)}
    if table not in known:
        return ""
    limits = replace(limits_of(state), resizes_per_plan=len(known))
    one = known[table]
    count = {SPLIT: 2 * one.count, MERGE: -(-one.count // 2)}.get(decision, one.count)
    for then in (replace(one, decision=decision), replace(one, decision=NONE, count=count)):
        for row in decide_resizes([*({**known, table: then}).values()], inputs.hosts, limits):
            if row.table == table and row.decision != decision:
                return row.decision
    return ""


def sizing_table(state: ClusterState, inputs: BalanceInput, tablets: TabletMap) -> Sized:
    """Return a table as the sizing rules see it."""
    name = tablets.table
    together = next(one.tables for one in inputs.tables if one.table == name)
    replication = state.keyspaces[state.tables[name].keyspace].replication
    factors = {local.datacenter: local.factor for local in replication.datacenters} or _spread(state, tablets)
    racks = {local.datacenter: frozenset(local.racks) for local in replication.datacenters if local.racks}
    options = state.tables[name].tablets
    size_options = SizeOptions()
    if options is not None:
        size_options = SizeOptions(0, options.min_count or 0, options.max_count or 0, options.expected_bytes or 0)
    decision = tablets.resize.decision if tablets.resize is not None else NONE
    known = [_bytes_of(table, tablets.count, inputs.measured) for table in together]
    sizes = [size for size, _ in known if size is not None]
    assert known, "a table is one of those that share its tablets"
    traffic, measured = _traffic(together, tablets.count, inputs)
    return Sized(
        name,
        tablets.count,
        factors,
        racks,
        sum(sizes) if len(sizes) == len(known) else None,
        size_options,
        decision,
        len(together),
        complete=all(complete for _, complete in known),
        paused=pause_of(state, SPLITS, name) is not None,
        traffic=traffic,
        measured=measured,
    )


def _spread(state: ClusterState, tablets: TabletMap) -> dict[str, int]:
    """Return the replicas of a tablet in each datacenter that has some, rounded up."""
    held: dict[str, int] = {}
    for node, count in zip(tablets.nodes, tablets.held, strict=True):
        where = state.nodes[node].datacenter
        held[where] = held.get(where, 0) + count
    factors = {where: -(-count // tablets.count) for where, count in sorted(held.items()) if count}
    assert sum(factors.values()) * tablets.count >= sum(held.values()), "no replica is rounded away"
    return factors


def _bytes_of(table: str, count: int, measured: Mapping[NodeId, MeasuredLoads]) -> tuple[int | None, bool]:
    """Return the bytes of one replica of each tablet, and whether all sizes are known. Missing sizes count as the mean.

    None if no node reports any size.
    """
    most = _greatest(BYTES, table, measured)
    return (sum(most.values()) * count // len(most) if most else None), len(most) == count


def _traffic(tables: Sequence[str], count: int, inputs: BalanceInput) -> tuple[dict[str, int], bool]:
    """Return the traffic of the busiest replicas of the known tablets by kind, and whether all are known."""
    kinds = inputs.limits.traffic_targets
    known = {kind: [_greatest(kind, table, inputs.measured) for table in tables] for kind in kinds}
    sums = {kind: sum(sum(each.values()) for each in found) for kind, found in known.items()}
    return sums, all(len(each) == count for found in known.values() for each in found)


def _greatest(kind: str, table: str, measured: Mapping[NodeId, MeasuredLoads]) -> dict[int, int]:
    """Return the greatest reported amount of each tablet that any node reports."""
    most: dict[int, int] = {}
    for report in measured.values():
        for number, amount in report.of_table(kind, table).items():
            most[number] = max(amount, most.get(number, 0))
    return most
