"""What the balancer would ask for in a state, and why: the planner, the sizes of tables and the rules of admission
joined.

A pure function of the state and of what nodes reported, so a stand-by asks for the same. Each migration of a plan is
tried with the rule that the fold will apply: what it refuses is left out and shown, so one tablet that cannot move
holds up no other. Replicas that a replication asks for, or no more, come before all other plans (``copies``).

A table's bytes are those of one replica of each tablet: the most that any node reports of it, for nodes that catch up
report less than there is. They are known when every tablet was reported by somebody. Where a replication names no
datacenters, its replicas in a datacenter are counted.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Load balancing", and ``service/tablet_allocator.cc``
(make_plan, make_resize_plan).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from ringlog.kernel.balance.copies import balanced, copies
from ringlog.kernel.balance.model import BYTES, NOWHERE, BalancePicture, BalancePlan, MeasuredLoads, Migration
from ringlog.kernel.balance.plan import make_plan
from ringlog.kernel.balance.reports import ReportBasis
from ringlog.kernel.balance.sizing import Hints, Resizing, Sized, decide_resizes
from ringlog.kernel.balance.source import limits_of, picture_of
from ringlog.kernel.commands.pauses import pause_of
from ringlog.kernel.commands.resizes import DecideResize
from ringlog.kernel.commands.tablets import TABLETS_MAX, MigrateTablets, Shard, TabletMigration, admissible
from ringlog.kernel.modes import BALANCING, SPLITS
from ringlog.kernel.outcome import Rejected
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, in_order
from ringlog.kernel.tablets.map import TabletMap
from ringlog.kernel.tablets.resize import NONE
from ringlog.kernel.tablets.track import may_begin
from ringlog.kernel.values import Command, NodeId

STREAMING_LIMIT: Final = "streaming_limit"
NODE_REQUEST: Final = "node_request"
"""Why nothing starts while a node operation waits or runs."""


@dataclass(frozen=True, slots=True)
class RefusedMigration:
    """A migration of the plan that the state would refuse."""

    migration: TabletMigration
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Advice:
    """``picture`` and ``plan``: the planner's question and answer; ``moves``: what of it may begin now; ``refused``:
    what may not; ``resizes``: decisions to split, to merge or to stop it, with the number that each would have.
    ``is_paused``: everything is.
    """

    picture: BalancePicture
    plan: BalancePlan
    moves: tuple[TabletMigration, ...] = ()
    refused: tuple[RefusedMigration, ...] = ()
    resizes: tuple[DecideResize, ...] = ()
    is_paused: bool = False

    @property
    def commands(self) -> tuple[Command, ...]:
        """What to ask for, in this order: decisions first, since siblings then move for a merge."""
        return (*self.resizes, *([MigrateTablets(self.moves)] if self.moves else []))

    @property
    def stop(self) -> str:
        """Why nothing moves: the first reason of a datacenter or of the cluster; empty if something does."""
        if self.plan.migrations:
            return self.refused[0].code if self.refused and not self.moves else ""
        if self.is_paused:
            return "paused"
        if self.plan.obstacles:
            return self.plan.obstacles[0].code
        places = {host.datacenter for host in self.picture.hosts} | {"cluster"}
        codes = [stop.code for stop in self.plan.stops if stop.what in places]
        return next((code for code in codes if code not in ("balanced", "nothing_to_do")), "balanced")


def advise(
    state: ClusterState, measured: Mapping[NodeId, MeasuredLoads], tables: Collection[str] | None = None
) -> Advice:
    """What may be asked for now. ``tables``: only tablets of these move; None: of all."""
    picture = picture_in(state, measured)
    is_paused = pause_of(state, BALANCING) is not None
    wanted = (row for row in copies(state) if tables is None or row.table in tables)
    changes, begun, against = ([], (), ()) if picture.busy else _first_that_begin(state, wanted)
    if begun:
        chosen = {(one.table, one.tablet) for one in begun}
        plan = BalancePlan(tuple(row for row in changes if (row.table, row.tablet) in chosen))
        return Advice(picture, plan, begun, (), tuple(_decisions(state, picture)), is_paused)
    if tables is not None:
        kept = [one if one.table in tables else replace(one, paused=True) for one in picture.tables]
        picture = replace(picture, tables=kept)
    plan = make_plan(picture)
    never = [(one, rejected) for one, rejected in against if rejected.code != STREAMING_LIMIT]
    moves, refused = admissible(state, [asked(row) for row in plan.migrations if row.table in state.tablets])
    told = tuple(RefusedMigration(one, rejected.code, rejected.detail) for one, rejected in (*never, *refused))
    return Advice(picture, plan, moves, told, tuple(_decisions(state, picture)), is_paused)


def _first_that_begin(
    state: ClusterState, wanted: Iterator[Migration]
) -> tuple[list[Migration], tuple[TabletMigration, ...], tuple[tuple[TabletMigration, Rejected], ...]]:
    """Of what is wanted the first ``TABLETS_MAX`` of which some may begin, or might if less streamed; those that may;
    what speaks against the others. Where none may: the first ones, so that what is refused for good is shown.
    """
    first: tuple[tuple[TabletMigration, Rejected], ...] = ()
    while changes := list(islice(wanted, TABLETS_MAX)):
        begun, against = admissible(state, map(asked, changes))
        if begun or any(rejected.code == STREAMING_LIMIT for _, rejected in against):
            return changes, begun, (*first, *against)
        first = first or against
    return [], (), first


def picture_in(state: ClusterState, measured: Mapping[NodeId, MeasuredLoads]) -> BalancePicture:
    """The planner's input: all tables in tablets, with those that share them; what zones place is theirs."""
    busy = NODE_REQUEST if may_begin(state) is not None else ""
    return picture_of(state, [tablets for _, tablets in balanced(state)], measured, sharing(state), busy)


def asked(row: Migration) -> TabletMigration:
    """A row of a plan as the command has it."""
    source, target = (None if place == NOWHERE else Shard(*place) for place in (row.source, row.target))
    return TabletMigration(row.table, row.tablet, row.kind, source, target)


def sharing(state: ClusterState) -> dict[str, tuple[str, ...]]:
    """Table to those that share its tablets, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for name, table in in_order(state.tables):
        if table.tablets is not None and table.tablets.base:
            base = f"{table.keyspace}.{table.tablets.base}"
            found[base] = (*found.get(base, ()), name)
    return found


def known_in(state: ClusterState) -> ReportBasis:
    """What reports are held against."""
    shared = sharing(state)
    counts = {name: tablets.count for base, tablets in state.tablets.items() for name in (base, *shared.get(base, ()))}
    nodes = {name for name, node in state.nodes.items() if node.state != "left"}
    return ReportBasis(nodes, counts, set(state.table_ids.values()) - counts.keys())


# ------------------------------------------------------------------------------------------------------- sizing


def resizings(state: ClusterState, picture: BalancePicture) -> tuple[Resizing, ...]:
    """Tables whose number of tablets should become another."""
    sized = [_sized(state, picture, tablets) for _, tablets in balanced(state)]
    return decide_resizes(sized, picture.hosts, limits_of(state))


def _decisions(state: ClusterState, picture: BalancePicture) -> Iterator[DecideResize]:
    most = setting(state, "tablets_per_table_max")
    for row in resizings(state, picture):
        if pause_of(state, SPLITS, row.table) is not None:
            continue
        tablets = state.tablets[row.table]
        if row.decision == NONE or 2 * tablets.count <= most or row.target < tablets.count:
            yield DecideResize(row.table, row.decision, tablets.sequence + 1)


def _sized(state: ClusterState, picture: BalancePicture, tablets: TabletMap) -> Sized:
    name = tablets.table
    together = next(one.tables for one in picture.tables if one.table == name)
    replication = state.keyspaces[state.tables[name].keyspace].replication
    factors = {local.datacenter: local.factor for local in replication.datacenters} or _spread(state, tablets)
    racks = {local.datacenter: frozenset(local.racks) for local in replication.datacenters if local.racks}
    options = state.tables[name].tablets
    hints = Hints()
    if options is not None:
        hints = Hints(0, options.min_count or 0, options.max_count or 0, options.expected_bytes or 0)
    decision = tablets.resize.decision if tablets.resize is not None else NONE
    total = [_bytes_of(table, tablets.count, picture.measured) for table in together]
    known = None if None in total else sum(one for one in total if one is not None)
    return Sized(name, tablets.count, factors, racks, known, hints, decision, len(together))


def _spread(state: ClusterState, tablets: TabletMap) -> dict[str, int]:
    """Replicas of a tablet in each datacenter that has some, rounded up."""
    held: dict[str, int] = {}
    for node, count in zip(tablets.nodes, tablets.held, strict=True):
        where = state.nodes[node].datacenter
        held[where] = held.get(where, 0) + count
    return {where: -(-count // tablets.count) for where, count in sorted(held.items()) if count}


def _bytes_of(table: str, count: int, measured: Mapping[NodeId, MeasuredLoads]) -> int | None:
    """The bytes of one replica of each tablet; None if somebody's size is not known."""
    most: dict[int, int] = {}
    for report in measured.values():
        for number, amount in report.loads.get(BYTES, {}).get(table, {}).items():
            most[number] = max(amount, most.get(number, 0))
    return sum(most.values()) if len(most) == count else None
