"""A cluster in plain lists, modified by plans. The planner's tests use it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringlog.kernel.balance.advice import make_plan
from ringlog.kernel.balance.model import (
    BYTES,
    GIB,
    INTRANODE,
    MIGRATION,
    BalancedHost,
    BalanceInput,
    BalancePlan,
    Limits,
    MeasuredLoads,
    Migration,
    Place,
    TabletGroup,
)
from ringlog.kernel.tablets.stages import KINDS
from ringlog.kernel.tablets.streaming import StreamUse, stream_use


@dataclass
class Table:
    """``places`` and ``sizes`` (bytes of one of the ``together + 1`` tables) of each tablet."""

    places: list[tuple[Place, ...]]
    sizes: list[int]
    together: tuple[str, ...] = ()
    racks: dict[str, frozenset[str]] = field(default_factory=dict)
    merging: bool = False
    paused: bool = False


@dataclass
class Running:
    source: Place
    target: Place
    kind: str
    streams: bool = True


@dataclass
class World:
    """A cluster of hosts and tables.

    Attributes:
        unreported: (node, table, tablet) without a known size.
        silent: nodes without reports.
    """

    hosts: dict[str, BalancedHost]
    tables: dict[str, Table]
    limits: Limits = field(default_factory=Limits)
    by_size: bool = False
    running: dict[tuple[str, int], Running] = field(default_factory=dict)
    unreported: set[tuple[str, str, int]] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    seed: int = 0
    busy: str = ""

    def next_places(self, table: str, tablet: int) -> tuple[Place, ...]:
        """Return the places of the tablet after its running move."""
        places, run = self.tables[table].places[tablet], self.running.get((table, tablet))
        return places if run is None else tuple(run.target if place == run.source else place for place in places)

    def measured(self) -> dict[str, MeasuredLoads]:
        if not self.by_size:
            return {}
        found = {}
        for node, host in self.hosts.items():
            sizes: dict[str, dict[int, int]] = {}
            for name, table in self.tables.items():
                held = {
                    tablet: table.sizes[tablet]
                    for tablet, places in enumerate(table.places)
                    if any(place[0] == node for place in places) and (node, name, tablet) not in self.unreported
                }
                sizes.update({one: held for one in (name, *table.together) if held})
            if node not in self.silent:
                found[node] = MeasuredLoads(host.capacity, {BYTES: sizes})
        return found

    def inputs(self, shuffled: random.Random | None = None) -> BalanceInput:
        hosts = list(self.hosts.values())
        tables = [self._tablets(name, table) for name, table in self.tables.items()]
        if shuffled is not None:
            shuffled.shuffle(hosts)
            shuffled.shuffle(tables)
        streams = [self._use(*unit, run) for unit, run in self.running.items() if run.streams]
        return BalanceInput(hosts, tables, self.measured(), self.limits, self.seed, self.busy, streams=streams)

    def _use(self, table: str, tablet: int, run: Running) -> StreamUse:
        alive = [place for place in self.tables[table].places[tablet] if self.hosts[place[0]].alive]
        return stream_use(KINDS[run.kind], alive, run.source, run.target)

    def _tablets(self, name: str, table: Table) -> TabletGroup:
        moving = {tablet: self.next_places(name, tablet) for of, tablet in self.running if of == name}
        return tablets_of(
            name,
            table.places,
            together=table.together,
            racks=table.racks,
            moving=moving,
            merging=table.merging,
            paused=table.paused,
        )

    def base(self, table: str) -> str:
        """Return the first table of a group of co-located tables."""
        return next(name for name, one in self.tables.items() if table in (name, *one.together))

    def start(self, migrations: Iterable[Migration]) -> None:
        for row in migrations:
            self.running[self.base(row.table), row.tablet] = Running(row.source, row.target, row.kind)

    def finish(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in list(keys):
            table, tablet = key
            self.tables[table].places[tablet] = self.next_places(table, tablet)
            del self.running[key]

    def finish_all(self) -> None:
        self.finish(list(self.running))

    def plan(self) -> BalancePlan:
        return make_plan(self.inputs())

    def balance(self) -> list[Migration]:
        """Apply plans until one is empty and return the moves. Fail after 1 + 10 plans for each replica."""
        moved: list[Migration] = []
        for _ in range(1 + 10 * self.replicas()):
            plan = self.plan()
            if not plan.migrations:
                return moved
            moved += plan.migrations
            self.start(plan.migrations)
            self.finish_all()
        raise AssertionError("plans do not end")

    def replicas(self) -> int:
        return sum(len(places) for table in self.tables.values() for places in table.places)

    def on(self, node: str, table: str = "") -> int:
        """Return the replicas on the node, of one table or of all."""
        chosen = [self.tables[table]] if table else list(self.tables.values())
        return sum(place[0] == node for one in chosen for places in one.places for place in places)

    def average(self, node: str) -> int:
        """Return the replicas for each of the node's shards, rounded up."""
        return -(-self.on(node) // self.hosts[node].shards)

    def shard_counts(self, node: str) -> list[int]:
        every = [place for one in self.tables.values() for places in one.places for place in places]
        return [every.count((node, shard)) for shard in range(self.hosts[node].shards)]


def tablets_of(
    table: str,
    places: Sequence[tuple[Place, ...]],
    *,
    together: tuple[str, ...] = (),
    racks: dict[str, frozenset[str]] | None = None,
    moving: dict[int, tuple[Place, ...]] | None = None,
    merging: bool = False,
    paused: bool = False,
) -> TabletGroup:
    """Return the planner's input for a table with these places."""
    nodes = sorted({node for each in places for node, _ in each})
    rows = [(tablet, nodes.index(node), shard) for tablet, each in enumerate(places) for node, shard in each]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return TabletGroup(table, len(places), tuple(nodes), *columns, together, racks or {}, moving or {}, merging, paused)


def host(name: str, shards: int = 1, rack: str = "r1", datacenter: str = "dc1", **more: object) -> BalancedHost:
    """Return a host with room for one tablet of 5 GiB on each shard by default."""
    capacity = more.pop("capacity", 5 * GIB * shards)
    return BalancedHost(name, datacenter, rack, shards, capacity, **more)  # type: ignore[arg-type]


def world_of(*hosts: BalancedHost, **more: object) -> World:
    return World({one.id: one for one in hosts}, {}, **more)  # type: ignore[arg-type]


def kinds_of(moved: Iterable[Migration]) -> dict[str, int]:
    """Count the moves by reason."""
    counted: dict[str, int] = {}
    for row in moved:
        counted[row.why] = counted.get(row.why, 0) + 1
    return counted


__all__ = ["INTRANODE", "MIGRATION", "Running", "Table", "World", "host", "kinds_of", "tablets_of", "world_of"]
