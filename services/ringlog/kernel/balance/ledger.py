"""The working state of one plan: all tablets and loads, as if all running and planned migrations had finished.

A *unit* is one tablet of a group of co-located tables; it counts once in the limits, however many tables the group has.
Two units that are to be merged and are on the same shard move together from there (``Ledger.bundle``), so siblings that
have met do not part. Limits that allow only one stream keep them there, unless they must go.

Loads are integers. Cross multiplication with capacities, never a quotient, decides which host is more loaded.
``LedgerHost.key`` is a rounded quotient, accurate enough to order the hosts to try.

Invariants: a unit has at most one migration in a plan. The streams of a shard, a node and the cluster stay within the
limits, or are one migration only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from operator import attrgetter
from typing import Final

from ringlog.kernel.balance.measures import by_size
from ringlog.kernel.balance.model import (
    INTRANODE,
    BalancedHost,
    BalanceInput,
    Migration,
    Place,
    TabletGroup,
)
from ringlog.kernel.balance.rows import ReplicaRows
from ringlog.kernel.tablets.stages import KINDS
from ringlog.kernel.tablets.streaming import StreamUse, exceeds, stream_use
from ringlog.kernel.values import NodeId

SCALE: Final = 1 << 40
MILLION: Final = 1_000_000
WEIGHT_MAX: Final = 1 << 16


class LedgerShard:
    """One shard with its units and their loads. The units are looked up on first use. ``least``: the smallest load of a
    unit.
    """

    __slots__ = ("_items", "_ledger", "index", "least", "load", "node", "number", "place", "reads", "writes")

    def __init__(self, ledger: Ledger, node: LedgerHost, number: int, index: int) -> None:
        self._ledger = ledger
        self._items: dict[int, int] | None = None
        self.node = node
        self.number = number
        self.index = index
        self.place: Place = (node.host.id, number)
        self.load = 0
        self.least = 0
        self.reads = 0
        self.writes = 0

    @property
    def items(self) -> dict[int, int]:
        """The load of each unit."""
        if self._items is None:
            self._items = self._ledger.rows.at_shard(self.index)
        return self._items


class LedgerHost:
    """One host: its shards, its load, and the number of its tablets in each group.

    ``incomplete``: the missing size; empty if all are known. ``rank``: the order among equals. ``weight``: the capacity
    relative to the greatest one.
    """

    __slots__ = (
        "capacity", "counts", "host", "incomplete", "key", "load", "rank", "reads", "shards", "weight", "writes",
    )  # fmt: skip

    def __init__(self, host: BalancedHost, rank: int) -> None:
        self.host = host
        self.rank = rank
        self.capacity = 1
        self.weight = 1
        self.shards: list[LedgerShard] = []
        self.counts: list[int] = []
        self.load = 0
        self.key = 0
        self.reads = 0
        self.writes = 0
        self.incomplete = ""

    @property
    def movable(self) -> bool:
        """Whether balancing may take from it or give to it."""
        return self.host.serving and not self.incomplete

    @property
    def present(self) -> list[LedgerShard]:
        """The shards that the host really has."""
        return self.shards[: self.host.shards]

    def weigh(self) -> None:
        """Compute the key from the present load."""
        self.key = self.load * SCALE // self.capacity


class Ledger:
    """All units, places and loads, and the migrations planned so far. ``busy``: units that cannot move now, and why."""

    def __init__(self, inputs: BalanceInput) -> None:
        self.inputs = inputs
        self.limits = inputs.limits
        self.tables = sorted(inputs.tables, key=lambda one: one.table)
        self.by_size = by_size(inputs)
        self.streams = 0
        self.planned: list[Migration] = []
        ranks = _ranks(inputs)
        hosts = sorted(inputs.hosts, key=lambda host: host.id)
        self.rows = ReplicaRows(inputs, self.tables, hosts, self.by_size)
        self.first, self.group, self.number = self.rows.first, self.rows.group, self.rows.number
        self.nodes = {host.id: LedgerHost(host, ranks[host.id]) for host in hosts}
        self.at: dict[Place, LedgerShard] = {}
        self.in_datacenter: dict[str, list[LedgerHost]] = {}
        self._places: dict[int, tuple[Place, ...]] = {}
        self.busy: dict[int, str] = {}
        self._enter_nodes()
        for group, tablets in enumerate(self.tables):
            self._enter_busy(self.first[group], tablets)
        for use in inputs.streams:
            self._charge(use)

    # ---------------------------------------------------------------------------------------------- building

    def _enter_nodes(self) -> None:
        """Fill in the shards of all hosts with their loads, and the capacities."""
        rows = self.rows
        for number, node in enumerate(self.nodes.values()):
            base, shards = rows.bases[number], rows.widths[number]
            node.shards = [LedgerShard(self, node, shard, base + shard) for shard in range(shards)]
            for shard in node.shards:
                shard.load, shard.least = rows.loads[shard.index], rows.leasts[shard.index]
                self.at[shard.place] = shard
            node.load = sum([shard.load for shard in node.shards])
            node.counts = rows.counts[number]
            node.incomplete = rows.incomplete.get(number, "")
            self.in_datacenter.setdefault(node.host.datacenter, []).append(node)
        assert len(self.at) == rows.bases[-1], "each shard has one place"
        for name, members in self.in_datacenter.items():
            capacities = self._capacities([node.host for node in members] if name in self.by_size else [])
            for node in members:
                node.capacity = capacities.get(node.host.id, node.host.capacity)
                node.weigh()
            greatest = max(node.capacity for node in members)
            for node in members:
                node.weight = max(1, node.capacity * WEIGHT_MAX // greatest)

    def _capacities(self, hosts: list[BalancedHost]) -> dict[NodeId, int]:
        """Return capacities in bytes, times the weights, if some of these hosts measure theirs. Empty if none does.

        A shard of any other host counts as the mean of the measured ones.
        """
        measured = self.inputs.measured
        known = {host.id: found for host in hosts if host.id in measured and (found := measured[host.id].capacity)}
        shards = sum(host.shards for host in hosts if host.id in known)
        total = sum(known.values())
        return {
            host.id: max(1, known.get(host.id, host.shards * total // shards)) * host.weight for host in hosts if known
        }

    def _enter_busy(self, first: int, tablets: TabletGroup) -> None:
        if tablets.paused:
            self.busy.update(dict.fromkeys(range(first, first + tablets.count), "paused"))
        for table, number in self.inputs.refused:
            if table == tablets.table:
                self.busy[first + number] = "refused"
        self.busy.update(dict.fromkeys([first + number for number in sorted(tablets.moving)], "in_transition"))

    def _charge(self, use: StreamUse) -> None:
        for place in use.reads:
            if (shard := self.at.get(place)) is not None:
                shard.reads += use.weight
            if (node := self.nodes.get(place[0])) is not None:
                node.reads += use.weight
        for place in use.writes:
            if (shard := self.at.get(place)) is not None:
                shard.writes += use.weight
            if (node := self.nodes.get(place[0])) is not None:
                node.writes += use.weight
        self.streams += use.weight

    # ------------------------------------------------------------------------------------------------- limits

    def cluster_full(self, count: int = 1) -> bool:
        """Return whether ``count`` more units would exceed the cluster's limit. Each planned migration weighs 1."""
        return exceeds(self.streams, 1, self.limits.per_cluster, count)

    def may_read(self, shard: LedgerShard, count: int = 1) -> bool:
        """Return whether ``count`` more units may be read from the shard."""
        is_full = exceeds(shard.node.reads, 1, self.limits.reads_per_node, count)
        return not is_full and not exceeds(shard.reads, 1, self.limits.reads_per_shard, count)

    def may_write(self, shard: LedgerShard, count: int = 1) -> bool:
        """Return whether ``count`` more units may be written to the shard."""
        is_full = exceeds(shard.node.writes, 1, self.limits.writes_per_node, count)
        return not is_full and not exceeds(shard.writes, 1, self.limits.writes_per_shard, count)

    def may_move(self, source: LedgerShard, target: LedgerShard, count: int) -> bool:
        """Return whether ``count`` more units may stream from one shard to the other."""
        may = self.may_read(source, count) and self.may_write(target, count)
        return may and not self.cluster_full(count)

    def target_shard(self, node: LedgerHost, count: int = 1) -> LedgerShard | None:
        """Return the least loaded shard of the node that can take ``count`` more units."""
        return min((one for one in node.present if self.may_write(one, count)), key=_lightest, default=None)

    def best_shard(self, place: LedgerShard, group: int, count: int) -> LedgerShard:
        """Return a shard with the fewest tablets of the group among the writable shards that are as light as
        ``place``.
        """
        alike = [one for one in place.node.present if one.load == place.load and self.may_write(one, count)]
        assert place in alike, "the target itself is writable"
        return min(alike, key=lambda one: (self.count_at(one, group), one.number))

    def count_at(self, shard: LedgerShard, group: int) -> int:
        """Return how many tablets of the group the shard has."""
        group_of = self.group
        return sum([group_of[unit] == group for unit in shard.items])

    # ------------------------------------------------------------------------------------------------ changes

    def bundle(self, unit: int, shard: LedgerShard, must_go: bool = False) -> tuple[int, ...] | None:
        """Return the units that move together, including ``unit``. None if it cannot move now, or its sibling leads.

        ``must_go``: the shard must become empty, so siblings part if limits never let both move at once.
        """
        if unit in self.busy:
            return None
        if must_go and not self._pairs_may_move():
            return (unit,)
        pair = self.pair(unit, shard)
        return pair if unit == pair[0] and pair[-1] not in self.busy else None

    def _pairs_may_move(self) -> bool:
        """Return whether the limits let two units stream together when nothing else streams."""
        limits = self.limits
        of_all = (limits.reads_per_shard, limits.writes_per_shard, limits.reads_per_node, limits.writes_per_node)
        return not any(exceeds(0, 1, most, 2) for most in (*of_all, limits.per_cluster))

    def pair(self, unit: int, shard: LedgerShard) -> tuple[int, ...]:
        """Return the unit and its sibling, the even one first, if both are on this shard; else the unit alone."""
        tablets, number = self.tables[self.group[unit]], self.number[unit]
        if not tablets.merging or number ^ 1 >= tablets.count:
            return (unit,)
        sibling = self.first[self.group[unit]] + (number ^ 1)
        assert self.group[sibling] == self.group[unit], "siblings belong to the same table"
        return (min(unit, sibling), max(unit, sibling)) if sibling in shard.items else (unit,)

    def move(
        self,
        units: tuple[int, ...],
        source: LedgerShard,
        target: LedgerShard,
        kind: str,
        why: str,
        with_loads: bool = False,
    ) -> None:
        """Plan a move of the units. Loads, places and limits count it as finished."""
        giver, getter = source.node, target.node
        assert source is not target, "a move changes the shard"
        assert (kind == INTRANODE) == (giver is getter), "only a move to another host has the kind of such moves"
        assert not self.cluster_full(len(units)), "the streams of the cluster stay within the limit"
        assert self.may_write(target, len(units)), "the streams to a shard stay within the limits"
        before = (_millionths(giver), _millionths(getter)) if with_loads else ()
        for unit in units:
            assert unit not in self.busy, "a tablet moves once in a plan"
            self.busy[unit] = "in_transition"
            places = self.places(unit)
            alive = [at for at in places if at in self.at and self.nodes[at[0]].host.alive]
            self._charge(stream_use(KINDS[kind], alive, source.place, target.place))
            size = source.items.pop(unit)
            target.items[unit] = size
            source.load -= size
            target.load += size
            self._places[unit] = tuple([target.place if at == source.place else at for at in places])
            if giver is not getter:
                group = self.group[unit]
                giver.load -= size
                getter.load += size
                giver.counts[group] -= 1
                getter.counts[group] += 1
                assert giver.counts[group] >= 0, "a host has the tablets that it gives away"
        if giver is not getter:
            giver.weigh()
            getter.weigh()
        loads = (*before, _millionths(giver), _millionths(getter)) if with_loads else None
        for unit in units:
            for table in self.tables[self.group[unit]].tables:
                row = Migration(table, self.number[unit], source.place, target.place, kind, why, loads)
                self.planned.append(row)

    # ------------------------------------------------------------------------------------------------- looks

    def places(self, unit: int) -> tuple[Place, ...]:
        """Return the present or planned places of the unit."""
        found = self._places.get(unit)
        if found is None:
            found = self._places[unit] = self.rows.places(unit)
        return found

    def shards_of(self, unit: int) -> Iterator[LedgerShard]:
        """Yield the shards that have the unit."""
        for place in self.places(unit):
            if (shard := self.at.get(place)) is not None:
                yield shard

    def name(self, unit: int) -> str:
        """Return ``keyspace.table/number``."""
        return f"{self.tables[self.group[unit]].table}/{self.number[unit]}"

    def racks(self, unit: int, datacenter: str) -> dict[str, int]:
        """Return how many replicas of the unit each rack of the datacenter has."""
        counted: dict[str, int] = {}
        for shard in self.shards_of(unit):
            host = shard.node.host
            if host.datacenter == datacenter:
                counted[host.rack] = counted.get(host.rack, 0) + 1
        return counted


def heavier_after(giver: LedgerHost, getter: LedgerHost, size: int) -> bool:
    """Return whether the giver stays at least as loaded as the getter after ``size`` has moved.

    Otherwise plans would move it back.
    """
    return (giver.load - size) * getter.capacity >= (getter.load + size) * giver.capacity


by_key: Final = attrgetter("key", "rank")
"""Sorts hosts by load."""


def heaviest_first(shard: LedgerShard) -> tuple[int, int]:
    """Return a sort key for the shards of a host, the most loaded shard first."""
    return -shard.load, shard.number


def _lightest(shard: LedgerShard) -> tuple[int, int]:
    return shard.load, shard.number


def _millionths(node: LedgerHost) -> int:
    return node.load * MILLION // node.capacity


def _ranks(inputs: BalanceInput) -> Mapping[NodeId, int]:
    """Return an order of the hosts that depends on the seed, so that ties do not always favor the same hosts."""
    drawn = {host.id: sha256(f"{inputs.seed}/{host.id}".encode()).digest() for host in inputs.hosts}
    return {node: rank for rank, node in enumerate(sorted(drawn, key=lambda node: (drawn[node], node)))}
