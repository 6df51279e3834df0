"""All replicas as rows of arrays: the fast input of a plan for a large cluster, before it reads single tablets.

Rows are sorted by unit; a second order, by shard, gives the units of one shard on request. A tablet in transition has
its future places. Sums are exact 64-bit integers (a shard's load stays far below).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ringlog.kernel.balance.measures import UNKNOWN, Ints, amounts, bounded, kinds_mixed_in, mixed, reported
from ringlog.kernel.balance.model import BYTES, BalancedHost, BalanceInput, Place, TabletGroup


class ReplicaRows:
    """The replicas of all units.

    ``first``: the first unit of each group; ``group``, ``number``: of each unit. ``bases``, ``widths``: the first shard
    of each host in the numbering of all shards, and its number of shards (including shards that only a tablet still
    names). ``loads``, ``leasts``: of each shard. ``counts``: per host and group. ``incomplete``: the missing size, by
    host.
    """

    def __init__(
        self, inputs: BalanceInput, tables: Sequence[TabletGroup], hosts: Sequence[BalancedHost], sized: set[str]
    ) -> None:
        self.hosts = hosts
        self._tables = tables
        self._inputs = inputs
        self._index = {host.id: number for number, host in enumerate(hosts)}
        counts = np.array([one.count for one in tables], np.int64)
        self.first: list[int] = [0, *np.cumsum(counts).tolist()][: len(tables)]
        self.group: list[int] = np.repeat(np.arange(len(tables)), counts).tolist()
        self.number: list[int] = [number for one in tables for number in range(one.count)]
        assert len(self.group) == len(self.number), "columns of groups and numbers have the same length"
        self._unit, self._host, self._shard = self._gathered()
        self._starts = np.searchsorted(self._unit, np.arange(len(self.group) + 1))
        widths = np.array([host.shards for host in hosts], np.int64)
        np.maximum.at(widths, self._host, self._shard + 1)
        bases = np.concatenate(([0], np.cumsum(widths)))
        self.widths: list[int] = widths.tolist()
        self.bases: list[int] = bases.tolist()
        groups = np.array(self.group, np.int64)[self._unit]
        cells = np.bincount(self._host * len(tables) + groups, minlength=len(hosts) * len(tables))
        self.counts: list[list[int]] = cells.reshape(len(hosts), len(tables)).tolist()
        self.incomplete: dict[int, str] = {}
        self._size = self._sized(sized, groups)
        slot = bases[self._host] + self._shard
        self._order = np.argsort(slot, kind="stable")
        self._slots: Ints = np.searchsorted(slot[self._order], np.arange(bases[-1] + 1))
        summed = np.concatenate(([0], np.cumsum(self._size[self._order])))
        self.loads: list[int] = (summed[self._slots[1:]] - summed[self._slots[:-1]]).tolist()
        assert sum(self.loads) == summed[-1], "the loads of the rows sum to those of the shards"
        leasts = np.full(int(bases[-1]), np.iinfo(np.int64).max)
        np.minimum.at(leasts, slot, self._size)
        self.leasts: list[int] = leasts.tolist()

    def _gathered(self) -> tuple[Ints, Ints, Ints]:
        """Return unit, host and shard of each row."""
        parts: list[tuple[Ints, Ints, Ints]] = [(np.empty(0, np.int64),) * 3]
        for first, one in zip(self.first, self._tables, strict=True):
            host = np.array([self._index[node] for node in one.nodes], np.int64)[one.node] if one.nodes else one.node
            tablet, shard = one.tablet, one.shard
            if one.moving:
                kept = ~np.isin(tablet, np.fromiter(one.moving, np.int64))
                came = [(number, *place) for number, places in sorted(one.moving.items()) for place in places]
                tablet = np.concatenate((tablet[kept], [number for number, _, _ in came]))
                host = np.concatenate((host[kept], [self._index[node] for _, node, _ in came]))
                shard = np.concatenate((shard[kept], [at for _, _, at in came]))
                order = np.argsort(tablet, kind="stable")
                tablet, host, shard = tablet[order], host[order], shard[order]
            parts.append((tablet + first, host, shard))
        units = np.concatenate([unit for unit, _, _ in parts])
        held = np.bincount(units, minlength=len(self.group))
        assert len(held) == len(self.group), "every replica belongs to a known tablet"
        assert held.all(), "each tablet has a replica"
        assert (units[1:] >= units[:-1]).all(), "rows are sorted by unit"
        return units, np.concatenate([host for _, host, _ in parts]), np.concatenate([shard for _, _, shard in parts])

    def _sized(self, sized: set[str], groups: Ints) -> Ints:
        """Return the load of each row."""
        tables = np.array([len(one.tables) for one in self._tables], np.int64)
        each: Ints = tables[groups]
        if not sized:
            return each
        limits = self._inputs.limits
        among = {node: found for node, found in self._inputs.measured.items() if node in self._index}
        rows = self._host, self._unit
        found = amounts(among, BYTES, self._tables, self.first, self._index, rows, limits.least_bytes)
        self._mark_missing(found, sized)
        bytes_of = bounded(self._guessed(found, each * limits.target_bytes))
        kinds = kinds_mixed_in(limits)
        if kinds:
            rates = {kind: amounts(among, kind, self._tables, self.first, self._index, rows) for kind in kinds}
            bytes_of = mixed(bytes_of, rates, limits)
        by_size = np.array([host.datacenter in sized for host in self.hosts])[self._host]
        return np.where(by_size, bytes_of, each)

    def _mark_missing(self, found: Ints, sized: set[str]) -> None:
        """Record the hosts that are incomplete."""
        for number, host in enumerate(self.hosts):
            if host.datacenter in sized and host.alive and host.id not in self._inputs.measured:
                self.incomplete[number] = "it has not reported"
        for row in np.flatnonzero(found == UNKNOWN).tolist():
            number, unit = int(self._host[row]), int(self._unit[row])
            host, one = self.hosts[number], self._tables[self.group[unit]]
            if host.datacenter in sized and host.alive and self.number[unit] not in one.moving:
                detail = f"the size of tablet {self.number[unit]} of {one.table} is missing"
                self.incomplete.setdefault(number, detail)

    def _guessed(self, found: Ints, targets: Ints) -> Ints:
        """Return ``found``. Unknown amounts are replaced by the largest report of the tablet, else by the
        target size.
        """
        missing = found == UNKNOWN
        if not missing.any():
            return found
        most = np.maximum.reduceat(found, self._starts[:-1]) if len(found) else found
        for group, one in enumerate(self._tables):
            for number in one.moving:  # the leaving host has no row, but has reported
                unit = self.first[group] + number
                there = [node for node, _ in one.places(number)]
                least = self._inputs.limits.least_bytes
                most[unit] = max(int(most[unit]), reported(self._inputs.measured, one, number, there, least))
        guessed = np.where(missing, np.where(most[self._unit] != UNKNOWN, most[self._unit], targets), found)
        assert (guessed >= 0).all(), "each size is known or guessed"
        return guessed

    # ---------------------------------------------------------------------------------------------------- looks

    def places(self, unit: int) -> tuple[Place, ...]:
        """Return the places of the unit, after its transition if it has one."""
        first, last = int(self._starts[unit]), int(self._starts[unit + 1])
        rows = zip(self._host[first:last].tolist(), self._shard[first:last].tolist(), strict=True)
        return tuple([(self.hosts[host].id, shard) for host, shard in rows])

    def at_shard(self, index: int) -> dict[int, int]:
        """Return the units of a shard, in their order, and their loads."""
        rows = self._order[self._slots[index] : self._slots[index + 1]]
        return dict(zip(self._unit[rows].tolist(), self._size[rows].tolist(), strict=True))

    def kinds_by(self, where: Sequence[Hashable]) -> tuple[list[int], list[int]]:
        """Return units grouped by the ``where`` of their hosts: (one unit of each kind, the kind of each unit)."""
        assert len(where) == len(self.hosts), "each host has a location"
        names = {name: number for number, name in enumerate(dict.fromkeys(where))}
        # A sum ignores the order of replicas, and a sum of scattered numbers identifies the multiset.
        scattered = np.array([_scattered(names[name]) for name in where], np.uint64)
        signs = np.add.reduceat(scattered[self._host], self._starts[:-1]) if len(self._unit) else scattered[:0]
        _, firsts, kinds = np.unique(signs, return_index=True, return_inverse=True)
        assert len(kinds) == len(self.group), "each unit has a kind"
        return firsts.tolist(), kinds.tolist()


def _scattered(number: int) -> int:
    """Return 64 scattered bits, different for each number (the finalizer of SplitMix64), so that sums identify
    multisets.

    Multiples of a constant, or their squares, do not suffice: 3² + 4² = 5².
    """
    found = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
    found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    found = (found ^ found >> 27) * 0x94D049BB133111EB % 2**64
    return found ^ found >> 31
