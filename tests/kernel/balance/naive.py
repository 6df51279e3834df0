"""A reference model of one call of the planner. It follows the plan move by move and lists the moves that the plan left
out.

The model gets the input of that call (measured loads, silent nodes, limits, drains). It applies the rules exactly, with
fractions, sets and all pairs of hosts, and shares no code with the planner.

The simulator's model (``ringlog_sim.checks.placement.balancer``) checks entries of a log, which do not contain the
planner's input. It accepts a move that is correct by bytes or by counts. Both models are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from ringlog.kernel.balance.model import BalancedHost, BalancePlan, Migration, Place
from tests.kernel.balance.world import World

Unit = tuple[str, int]
WEIGHTS = {"migration": 1, "intranode_migration": 1, "rebuild": 1}


class Naive:
    """A world with running moves counted as finished."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at: dict[Unit, set[Place]] = {
            (name, tablet): set(world.next_places(name, tablet))
            for name, table in world.tables.items()
            for tablet in range(len(table.places))
        }
        self.busy = set(world.running) | {
            (name, tablet)
            for name, table in world.tables.items()
            if table.paused
            for tablet in range(len(table.places))
        }
        self.reads: Counter[Place] = Counter()
        self.writes: Counter[Place] = Counter()
        self.streams = 0
        self._capacities: dict[str, int] = {}
        self._kept: tuple[Counter[Place], Counter[tuple[str, str]], dict[tuple[str, str], int]] | None = None
        for unit, run in world.running.items():
            if run.streams:
                self._stream(unit, run.source, run.target, run.kind)

    def _stream(self, unit: Unit, source: Place, target: Place, kind: str) -> None:
        weight = WEIGHTS[kind]
        settled = set(self.world.tables[unit[0]].places[unit[1]])
        for place in settled - {source} if kind == "rebuild" else {source}:
            if kind != "rebuild" or self.host(place).alive:
                self.reads[place] += weight
        self.writes[target] += weight
        self.streams += weight

    def host(self, place: Place) -> BalancedHost:
        return self.world.hosts[place[0]]

    # Loads

    def size(self, unit: Unit, node: str) -> int:
        table = self.world.tables[unit[0]]
        tables = 1 + len(table.together)
        datacenter = self.world.hosts[node].datacenter
        if not self.sized(datacenter):
            return tables
        return tables * max(table.sizes[unit[1]], self.world.limits.least_bytes)

    def sized(self, datacenter: str) -> bool:
        world = self.world
        return world.by_size and any(
            one.datacenter == datacenter and one.alive and one.id not in world.silent for one in world.hosts.values()
        )

    def load(self, node: str) -> Fraction:
        held = sum(load for place, load in self._tally()[0].items() if place[0] == node)
        return Fraction(held, self.capacity(node))

    def capacity(self, node: str) -> int:
        """Return the measured capacity. A shard of a silent host counts as the mean shard of its datacenter."""
        if node not in self._capacities:
            one = self.world.hosts[node]
            peers = [other for other in self.world.hosts.values() if other.datacenter == one.datacenter]
            told = [other for other in peers if other.id not in self.world.silent]
            mean = sum(other.capacity for other in told), max(1, sum(other.shards for other in told))
            is_told = one in told or not self.sized(one.datacenter)
            self._capacities[node] = one.capacity if is_told else one.shards * mean[0] // mean[1]
        return self._capacities[node]

    def shard_load(self, place: Place) -> int:
        return self._tally()[0][place]

    def _tally(self) -> tuple[Counter[Place], Counter[tuple[str, str]], dict[tuple[str, str], int]]:
        """Return the loads of shards and table counts of hosts, cached until the next move, and the cache of shares."""
        if self._kept is None:
            self._kept = Counter(), Counter(), {}
            for unit, places in self.at.items():
                for place in places:
                    self._kept[0][place] += self.size(unit, place[0])
                    self._kept[1][unit[0], place[0]] += 1
        return self._kept

    def movable(self, node: str) -> bool:
        one = self.world.hosts[node]
        if not one.alive or one.draining:
            return False
        return not self.sized(one.datacenter) or not self._lacks_sizes(node)

    def _lacks_sizes(self, node: str) -> bool:
        world = self.world
        if node in world.silent:
            return True
        return any(
            node == gone
            and (table, tablet) not in world.running
            and any(at[0] == node for at in self.at[table, tablet])
            for gone, table, tablet in world.unreported
        )

    # Placement

    def racks(self, unit: Unit, datacenter: str) -> Counter[str]:
        hosts = [self.host(place) for place in self.at[unit]]
        return Counter(one.rack for one in hosts if one.datacenter == datacenter)

    def allowed(self, unit: Unit, source: Place, target: str, strict: bool = True) -> bool:
        here, there = self.host(source), self.world.hosts[target]
        if here.datacenter != there.datacenter or any(place[0] == target for place in self.at[unit]):
            return False
        if here.rack == there.rack:
            return True
        if self.world.tables[unit[0]].racks.get(here.datacenter):
            return False
        racks = self.racks(unit, here.datacenter)
        return not strict or racks[there.rack] < racks[here.rack]

    def bundle(self, unit: Unit, place: Place) -> set[Unit] | None:
        """Return the units that move together with the unit, or None if they cannot move now."""
        table, tablet = unit
        sibling = (table, tablet ^ 1)
        units = {unit}
        if self.world.tables[table].merging and place in self.at.get(sibling, ()):
            units.add(sibling)
        return None if units & self.busy else units

    def share(self, table: str, node: str) -> int:
        """Return the maximum number of tablets of a table on the host."""
        kept = self._tally()[2]
        if (table, node) not in kept:
            kept[table, node] = self._share(table, node)
        return kept[table, node]

    def _share(self, table: str, node: str) -> int:
        one = self.world.hosts[node]
        peers = [other for other in self.world.hosts.values() if other.datacenter == one.datacenter]
        serving = [other for other in peers if other.alive and not other.draining]
        count = len(self.world.tables[table].places)
        replicas = sum(
            self.world.hosts[place[0]].datacenter == one.datacenter
            for unit, places in self.at.items()
            for place in places
            if unit[0] == table
        )
        of_racks: Counter[str] = Counter()
        for other in serving:
            of_racks[other.rack] += self.capacity(other.id)
        if not of_racks[one.rack]:
            return 0
        if self.world.tables[table].racks.get(one.datacenter):
            wanted = sum(self.count(table, other.id) for other in peers if other.rack == one.rack)
        else:
            each = Fraction(replicas, count * len(of_racks))
            per_unit = self._per_unit([*of_racks.values()], replicas, ceil(each) * count)
            wanted = max(int(each) * count, min(ceil(each) * count, ceil(per_unit * of_racks[one.rack])))
        here = [self.capacity(other.id) for other in serving if other.rack == one.rack]
        slack = Fraction(100 + self.world.limits.table_slack_percent, 100)
        return ceil(self._per_unit(here, wanted, count) * self.capacity(one.id) * slack) + 1

    def _per_unit(self, capacities: list[int], replicas: int, most: int) -> Fraction:
        """Return the replicas for each unit of capacity if no host gets more than ``most``."""
        level = Fraction(replicas, sum(capacities))
        while len(capacities) > 1 and level * max(capacities) > most:
            capacities = sorted(capacities)[:-1]
            replicas = max(0, replicas - most)
            level = Fraction(replicas, sum(capacities))
        return level

    def count(self, table: str, node: str) -> int:
        return self._tally()[1][table, node]

    # A plan

    def follow(self, plan: BalancePlan) -> None:
        """Check each move of the plan in turn, and apply it."""
        rows = list(plan.migrations)
        while rows:
            first = rows[0]
            base = self.world.base(first.table)
            tables = 1 + len(self.world.tables[base].together)
            same, rows = rows[:tables], rows[tables:]
            assert {row.table for row in same} == {base, *self.world.tables[base].together}
            assert len({(row.tablet, row.source, row.target, row.kind, row.why) for row in same}) == 1
            unit = (base, first.tablet)
            pair = {unit}
            sibling = (base, first.tablet ^ 1)
            next_to = rows[0] if rows else first
            follows = (next_to.table, next_to.tablet) == sibling
            follows = follows and (next_to.source, next_to.target) == (first.source, first.target)
            if follows and self.bundle(unit, first.source) == {unit, sibling}:
                pair, rows = {unit, sibling}, rows[tables:]
            self._step(first, pair)

    def _step(self, row: Migration, units: set[Unit]) -> None:
        source, target = row.source, row.target
        giver, getter = self.host(source), self.host(target)
        for unit in units:
            assert unit not in self.busy, "one transition at a time"
            assert source in self.at[unit]
        self._within_limits(units, row)
        assert 0 <= target[1] < getter.shards
        assert getter.alive
        assert not getter.draining
        assert not self.world.busy
        if row.why == "co_locate":
            ((table, tablet),) = units
            assert target in self.at[table, tablet ^ 1]
        else:
            pair = self.bundle(min(units), source)
            gone = source[1] >= giver.shards or row.why in ("drain", "rebuild_lost")
            both = units | {(table, tablet ^ 1) for table, tablet in units}
            divided = gone and (not self._may_stream(both) or (pair is not None and not self._has_place(pair, source)))
            assert units == pair or divided, "siblings on one shard move together"
        if row.kind == "intranode_migration":
            assert giver.id == getter.id
            assert row.why != "balance_shards" or self._evens_shards(units, source, target)
        else:
            strict = row.why in ("balance", "table_limit")
            assert row.why == "co_locate" or all(self.allowed(unit, source, target[0], strict) for unit in units)
        if row.why == "balance":
            self._converges(units, source, target)
        assert (row.why in ("drain", "rebuild_lost")) == giver.draining
        assert (row.kind == "rebuild") == (not giver.alive)
        for unit in units:
            self.at[unit] = (self.at[unit] - {source}) | {target}
            self.busy.add(unit)
        self._kept = None

    def _has_place(self, units: set[Unit], source: Place) -> bool:
        """Return True if a host may hold all units. Stranded units have no such host."""
        if self.stranded() & {(source[0], *unit) for unit in units}:
            return False
        nodes = [one.id for one in self.world.hosts.values() if one.alive and not one.draining]
        return any(all(self.allowed(unit, source, node, strict=False) for unit in units) for node in nodes)

    def _may_stream(self, units: set[Unit]) -> bool:
        """Return True if the limits ever allow all units to stream at once."""
        limits = self.world.limits
        most = (limits.reads_per_shard, limits.writes_per_shard, limits.reads_per_node, limits.writes_per_node)
        return len(units) == 1 or all(not at or len(units) <= at for at in (*most, limits.per_cluster))

    def _evens_shards(self, units: set[Unit], source: Place, target: Place) -> bool:
        size = sum(self.size(unit, source[0]) for unit in units)
        return self.shard_load(source) - size >= self.shard_load(target) + size

    def _converges(self, units: set[Unit], source: Place, target: Place) -> None:
        size = sum(self.size(unit, source[0]) for unit in units)
        before = self.load(source[0]), self.load(target[0])
        assert before[0] > before[1]
        after = (
            before[0] - Fraction(size, self.capacity(source[0])),
            before[1] + Fraction(size, self.capacity(target[0])),
        )
        assert after[0] >= after[1], "the source stays at least as loaded as the target"
        table = min(units)[0]
        assert self.count(table, target[0]) + len(units) <= self.share(table, target[0])

    def _within_limits(self, units: set[Unit], row: Migration) -> None:
        """Assert that no limit is exceeded, except by a stream without others."""
        limits, alone = self.world.limits, WEIGHTS[row.kind]
        reads, writes = Counter(self.reads), Counter(self.writes)
        for unit in units:
            self._stream(unit, row.source, row.target, row.kind)
        for now, then, per_shard, per_node in (
            (self.reads, reads, limits.reads_per_shard, limits.reads_per_node),
            (self.writes, writes, limits.writes_per_shard, limits.writes_per_node),
        ):
            for place in now:
                if now[place] > then[place]:
                    assert now[place] <= max(per_shard, alone), (place, now[place])
                    of_node = sum(count for at, count in now.items() if at[0] == place[0])
                    assert not per_node or of_node <= max(per_node, alone), place
        assert self.streams <= max(limits.per_cluster, alone)

    # Remaining moves

    def measure(self) -> tuple[int, int, int, Fraction, int]:
        """Return the measure that decreases with each step, in lexicographic order."""
        hosts = self.world.hosts.values()
        drained = sum(self.host(place).draining for places in self.at.values() for place in places)
        apart = sum(
            len(self.at[name, tablet] - self.at[name, tablet - 1])
            for name, table in self.world.tables.items()
            if table.merging
            for tablet in range(1, len(table.places), 2)
        )
        excess = sum(
            max(0, self.count(name, one.id) - self.share(name, one.id))
            for name in self.world.tables
            for one in hosts
            if self.movable(one.id)
        )
        squares = sum((self.load(one.id) ** 2 * self.capacity(one.id) for one in hosts), Fraction(0))
        inside = sum(self.shard_load((one.id, shard)) ** 2 for one in hosts for shard in range(one.shards))
        return drained, apart, excess, squares, inside

    def possible(self) -> Iterator[str]:
        """Yield each move that the rules allow, that reduces the measure, and that the limits ever allow."""
        nodes = [node for node in self.world.hosts if self.movable(node)]
        for (table, tablet), places in self.at.items():
            for place in places:
                units = self.bundle((table, tablet), place)
                if units is None or place[0] not in nodes or not self._may_stream(units):
                    continue
                for node in nodes:
                    if all(self.allowed(unit, place, node) for unit in units):
                        yield from self._between(units, place, node)
                yield from self._within(units, place)

    def _between(self, units: set[Unit], source: Place, node: str) -> Iterator[str]:
        table = min(units)[0]
        if self.count(table, node) + len(units) > self.share(table, node):
            return
        if self.count(table, source[0]) > self.share(table, source[0]):
            yield f"table_limit: {min(units)} from {source} to {node}"
        more, less = self.load(source[0]), self.load(node)
        size = sum(self.size(unit, source[0]) for unit in units)
        if more <= less or (
            self.sized(self.host(source).datacenter)
            and (more - less) * 1000 < more * self.world.limits.threshold_permille
        ):
            return
        if more - Fraction(size, self.capacity(source[0])) >= less + Fraction(size, self.capacity(node)):
            yield f"balance: {min(units)} from {source} to {node}"

    def _within(self, units: set[Unit], source: Place) -> Iterator[str]:
        size = sum(self.size(unit, source[0]) for unit in units)
        mine = self.shard_load(source)
        for shard in range(self.host(source).shards):
            theirs = self.shard_load((source[0], shard))
            sized = self.sized(self.host(source).datacenter)
            far = not sized or (mine - theirs) * 1000 >= mine * self.world.limits.threshold_permille
            if far and mine - size >= theirs + size:
                yield f"balance_shards: {min(units)} from {source} to {shard}"

    def stranded(self) -> set[tuple[str, str, int]]:
        """Return (node, table, tablet) of the draining hosts that no sequence of moves can empty."""
        found = set()
        for unit, places in self.at.items():
            for place in places:
                here = self.host(place)
                if not here.draining:
                    continue
                parts: dict[str, list[bool]] = {}
                for other in places:
                    parts.setdefault(self.host(other).datacenter, []).append(self.host(other).alive)
                few = any(2 * sum(alive) < len(alive) for alive in parts.values())
                area = [one for one in self.world.hosts.values() if one.datacenter == here.datacenter]
                if self.world.tables[unit[0]].racks.get(here.datacenter):
                    area = [one for one in area if one.rack == here.rack]
                held = {other[0] for other in places}
                free = [one for one in area if one.alive and not one.draining and one.id not in held]
                asked = [one for one in area if one.draining and one.id in held]
                if len(free) < len(asked) or (not here.alive and few):
                    found.add((here.id, *unit))
        return found
