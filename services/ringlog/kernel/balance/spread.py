"""Balance between the hosts of a datacenter: the most loaded host gives tablets to the least loaded one that may take
them.

**Convergence.** A tablet of size s moves from X to Y only if X is more loaded than Y, and not less afterwards: ``(x -
s) / cx >= (y + s) / cy``. Then the sum of ``load² / capacity`` over all hosts falls strictly: by s times the sum of
both differences. So it ends, and no tablet moves back and forth. By size, loads that differ by less than the threshold
are left alone.

**A table's share** (``rules.TableLimits``) comes before the loads. No step raises the excess above the shares, and
``relieve`` lowers it, even against the loads. A node that gave too much gets other tablets back. The pair (excess above
shares, sum of load² / capacity) falls in lexicographic order with every step, so both together end, too.

Drains come first, then siblings meet (``siblings``). Siblings that have met move together, so the number of pairs that
have met never falls. So the four (replicas to drain, siblings apart, excess, sum) end.

**Few moves.** While limits block the best target or source, another one takes its part only up to the mean load.
Tablets beyond the mean would move twice.

**Completeness.** A plan is empty only if no step of these kinds is possible, or a source has tried ``SKIPS_MAX``
targets.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Final

from ringlog.kernel.balance.ledger import SCALE, Ledger, LedgerHost, LedgerShard, by_key, heavier_after, heaviest_first
from ringlog.kernel.balance.model import BALANCE, MIGRATION, TABLE_LIMIT, BalanceStop
from ringlog.kernel.balance.rules import OpenRacks, TableLimits, forbidden, imbalance

SKIPS_MAX: Final = 64
"""The number of targets without a possible tablet after which a source stops in this plan."""
_BY_RESTRICTION: Final = ("limits", "skip_limit", "no_candidates", "load_inversion", "balanced")
"""Reasons of hosts, the most restrictive one first."""


class Spread:
    """The step between hosts, for one datacenter and plan."""

    def __init__(self, ledger: Ledger, table_limits: TableLimits, racks: OpenRacks, datacenter: str) -> None:
        self._ledger = ledger
        self._table_limits = table_limits
        self._racks = racks
        self._by_size = datacenter in ledger.by_size
        self._threshold = ledger.limits.threshold_permille
        self._members = [node for node in ledger.in_datacenter[datacenter] if node.movable]
        self._targets = sorted(self._members, key=by_key)
        self._full: list[LedgerHost] = []
        self._waits: set[str] = set()
        self._mean = {name: _mean(self._members, name) for name in {"", *(one.host.rack for one in self._members)}}
        self.stops: dict[str, str] = {}

    def run(self) -> None:
        """Plan until no host can give a tablet; ``stops`` has the reason of each host."""
        sources = [(-node.key, node.rank, node) for node in self._members if node.load]
        givers = len(sources)
        heapq.heapify(sources)
        while sources:
            key, _, source = heapq.heappop(sources)
            if -key != source.key:
                heapq.heappush(sources, (-source.key, source.rank, source))
                continue
            if code := self._give(source):
                self.stops[source.host.id] = code
            else:
                heapq.heappush(sources, (-source.key, source.rank, source))
        assert len(self.stops) == givers, "each source stops with a reason"

    def _give(self, source: LedgerHost) -> str:
        """Plan one tablet of the source. Return the reason why not, or empty."""
        ledger = self._ledger
        if ledger.cluster_full():
            return "limits"
        shards = [shard for shard in source.shards if shard.load]
        least = min([shard.least for shard in shards], default=0)
        readable = sorted([shard for shard in shards if ledger.may_read(shard)], key=heaviest_first)
        code, skips, full = "balanced", 0, []
        if any(self._wants(source, one, least) for one in self._full):
            code = "limits"
        for target in self._targets:
            if not self._differ(source, target):
                break
            if not heavier_after(source, target, least):
                code = code if code in ("limits", "no_candidates") else "load_inversion"
                continue
            if not readable:
                self._waits.add(source.host.rack)
            held_up = self._racks.are_open or source.host.rack in self._waits
            if self._waits and held_up and not (readable and self._stays_above_mean(source, least)):
                return "limits"
            if target.host.rack != source.host.rack and target.host.rack not in self._racks.of(source):
                code = "no_candidates" if code != "limits" else code
                continue
            if code == "limits" and not self._stays_below_mean(target, least):
                break  # earlier targets are better once limits let them get more
            place = ledger.target_shard(target)
            if place is None:
                full.append(target)
                code = "limits"
                continue
            if self._move_one(readable, place):
                self._drop(full)
                self._targets.sort(key=by_key)
                return ""
            code = "no_candidates" if code != "limits" else code
            skips += 1
            if skips == SKIPS_MAX:
                return "skip_limit"
        self._drop(full)
        return code

    def _wants(self, source: LedgerHost, target: LedgerHost, least: int) -> bool:
        """Return whether the source could give to the target if limits allowed it."""
        if not self._differ(source, target) or not heavier_after(source, target, least):
            return False
        return target.host.rack == source.host.rack or target.host.rack in self._racks.of(source)

    def _stays_above_mean(self, node: LedgerHost, size: int) -> bool:
        return (node.load - size) * SCALE // node.capacity >= max(self._means(node))

    def _stays_below_mean(self, node: LedgerHost, size: int) -> bool:
        return (node.load + size) * SCALE // node.capacity <= min(self._means(node))

    def _means(self, node: LedgerHost) -> tuple[int, ...]:
        """Return the mean loads that the host may approach."""
        own = self._mean[node.host.rack]
        return (self._mean[""], own) if self._racks.are_open else (own,)

    def _drop(self, full: list[LedgerHost]) -> None:
        """Remove targets that get no more in this plan."""
        if full:
            self._full += full
            self._targets = [node for node in self._targets if node not in full]

    def _differ(self, source: LedgerHost, target: LedgerHost) -> bool:
        more, less = source.load * target.capacity, target.load * source.capacity
        return more > less and (not self._by_size or (more - less) * 1000 >= more * self._threshold)

    def _move_one(self, shards: list[LedgerShard], place: LedgerShard) -> bool:
        ledger = self._ledger
        for shard in shards:
            units = self._candidate(shard, place)
            if units is not None:
                place = ledger.best_shard(place, ledger.group[units[0]], len(units))
                ledger.move(units, shard, place, MIGRATION, BALANCE, with_loads=True)
                return True
        return False

    def _candidate(self, shard: LedgerShard, place: LedgerShard) -> tuple[int, ...] | None:
        """Return the units to move from the shard: of the most uneven table, the largest tablet that fits."""
        ledger, source, target, group_of = self._ledger, shard.node, place.node, self._ledger.group
        scores: dict[int, tuple[int, int] | None] = {}
        held = Counter([group_of[unit] for unit in shard.items])
        best: tuple[tuple[int, int], int, int] | None = None
        chosen: tuple[int, ...] | None = None
        for unit, size in shard.items.items():
            group = group_of[unit]
            if group not in scores:
                within = target.counts[group] < self._table_limits.limit(target, group)
                scores[group] = (imbalance(source, target, group), held[group]) if within else None
            score = scores[group]
            if score is None or (best is not None and (score, size, -unit) <= best):
                continue
            units = ledger.bundle(unit, shard)
            if units is None or not self._fits(units, shard, place):
                continue
            best, chosen = (score, size, -unit), units
        return chosen

    def _fits(self, units: tuple[int, ...], shard: LedgerShard, place: LedgerShard) -> bool:
        ledger, group, target = self._ledger, self._ledger.group[units[0]], place.node
        if len(units) > 1 and not ledger.may_move(shard, place, len(units)):
            return False
        if target.counts[group] + len(units) > self._table_limits.limit(target, group):
            return False
        if not heavier_after(shard.node, target, sum([shard.items[unit] for unit in units])):
            return False
        return not any(forbidden(ledger, unit, shard.node, target) for unit in units)

    # ---------------------------------------------------------------------------------------- a table's share

    def relieve(self) -> None:
        """Plan moves away from hosts with more of a table than their share, to the least loaded host with room."""
        for source in sorted(self._members, key=by_key, reverse=True):
            for group, count in enumerate(source.counts):
                for _ in range(count - self._table_limits.limit(source, group)):
                    if not self._relieve_one(source, group):
                        break

    def _relieve_one(self, source: LedgerHost, group: int) -> bool:
        ledger, table_limits = self._ledger, self._table_limits
        shards = [shard for shard in sorted(source.shards, key=heaviest_first) if ledger.may_read(shard)]
        for target in sorted(self._targets, key=by_key):
            if target.counts[group] >= table_limits.limit(target, group) or ledger.cluster_full():
                continue
            place = ledger.target_shard(target)
            for shard in shards if place is not None else ():
                for unit in sorted(shard.items):
                    units = ledger.bundle(unit, shard) if ledger.group[unit] == group else None
                    if units is None or target.counts[group] + len(units) > table_limits.limit(target, group):
                        continue
                    if place is None or not ledger.may_move(shard, place, len(units)):
                        continue
                    if not any(forbidden(ledger, one, source, target) for one in units):
                        ledger.move(units, shard, place, MIGRATION, TABLE_LIMIT)
                        return True
        return False


def _mean(members: list[LedgerHost], rack: str) -> int:
    """Return the mean load key of the hosts in a rack; of all hosts, if ``rack`` is empty."""
    those = [node for node in members if rack in ("", node.host.rack)]
    return sum([node.load for node in those]) * SCALE // max(1, sum([node.capacity for node in those]))


def stop_of(datacenter: str, stops: dict[str, str]) -> BalanceStop:
    """Return the reason why the datacenter does not change; the most restrictive one comes first."""
    assert {*stops.values()} <= {*_BY_RESTRICTION}, "each reason has a rank"
    for code in _BY_RESTRICTION:
        hosts = sorted(host for host, found in stops.items() if found == code)
        if hosts:
            more = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
            return BalanceStop(datacenter, code, "" if code == "balanced" else f"{hosts[0]}{more}")
    return BalanceStop(datacenter, "nothing_to_do")
