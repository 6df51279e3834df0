"""The rules of placement for replicas, and each table's share of a host.

**Placement.** A replica stays in its datacenter. The exception is a drained node, if no other host there is free and
the replication names no datacenters. A replica goes to no host that has a replica of the same tablet. It stays in its
rack if the replication names racks. Otherwise it may move only to a rack with *fewer* of the tablet's replicas than its
present rack. So the sum of the squares of these numbers never grows, and replicas in different racks never end in the
same one. (The original compares with the fullest rack. So four replicas in racks 2 + 1 + 1 may become 2 + 2.) A drain
from a rack without free places uses the rack with the fewest replicas.

**Tables.** A host whose share of its rack's capacity is w gets at most ``ceil(w · R · (100 + slack) / 100) + 1``
tablets of a table that has R replicas in the rack. This bounds the number of tablets of one table on a host. Among
tablets that may move, the table that is most uneven between the two hosts goes first. R does not depend on the hosts of
the replicas. If the replication names racks, it is the number of replicas in the rack. Otherwise it is the number in
the datacenter, shared among racks by capacity. For each tablet it is then at least the floor and at most the ceiling of
factor / racks. So limits stay constant while tablets move, and two hosts in one rack can always be brought within them.
A host has at most one replica of each tablet. So a host whose share exceeds the number of tablets has that
number, and the other hosts share the rest. Racks are capped in the same way.

Source: ScyllaDB's balancer has the first as hard constraints and the second only as "badness" (issue 31384: one table
11 and 17 times on two shards).
"""

from __future__ import annotations

from collections import Counter

from ringlog.kernel.balance.ledger import Ledger, LedgerHost
from ringlog.kernel.balance.model import BalancedHost


def forbidden(ledger: Ledger, unit: int, source: LedgerHost, target: LedgerHost, drain: bool = False) -> str:
    """Return why the unit's replica may not go from one host to the other: a code of ``STOPS``; empty if it may.

    ``drain``: allow any rack if no rule names racks, and any datacenter if the replication names none.
    """
    here, there = source.host, target.host
    if here.datacenter != there.datacenter and not (drain and ledger.tables[ledger.group[unit]].anywhere):
        return "other_datacenter"
    places = ledger.places(unit)
    if any(place[0] == there.id for place in places):
        return "holds_replica"
    if (here.datacenter, here.rack) == (there.datacenter, there.rack):
        return ""
    if ledger.tables[ledger.group[unit]].racks.get(here.datacenter):
        return "rack_pinned"
    if drain:
        return ""
    counted = ledger.racks(unit, here.datacenter)
    return "" if counted.get(there.rack, 0) < counted.get(here.rack, 0) else "rack_full"


class OpenRacks:
    """The racks that may receive some tablet of a host, given the racks of its replicas when the plan begins.

    Units that move are busy afterwards, so the set never grows. ``are_open``: true if any host has such a rack.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._of_host: dict[str, frozenset[str]] = {}
        hosts = [node.host for node in ledger.nodes.values()]
        self._racks: dict[str, set[str]] = {}
        for host in hosts:
            self._racks.setdefault(host.datacenter, set()).add(host.rack)
        where = [(host.datacenter, host.rack) for host in ledger.rows.hosts]
        units, self._kind_of = ledger.rows.kinds_by(where)
        kinds = [tuple([(found.datacenter, found.rack) for found in self._hosts(unit)]) for unit in units]
        self._open = [self._open_to(held) for held in kinds]
        self.are_open = any(self._open)

    def _hosts(self, unit: int) -> list[BalancedHost]:
        return [self._ledger.nodes[node].host for node, _ in self._ledger.rows.places(unit)]

    def of(self, source: LedgerHost) -> frozenset[str]:
        """Return the racks, including the host's own."""
        found = self._of_host.get(source.host.id)
        if found is None:
            found = self._of_host[source.host.id] = frozenset({source.host.rack, *self._racks_open_to(source)})
        return found

    def _open_to(self, held: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], frozenset[str]]:
        """Return, for each rack with replicas, the racks of its datacenter with fewer. Racks without such racks are
        left out.
        """
        found = {
            (datacenter, rack): frozenset(
                other
                for other in self._racks[datacenter]
                if held.count((datacenter, other)) < held.count((datacenter, rack))
            )
            for datacenter, rack in set(held)
            if datacenter in self._racks
        }
        return {where: racks for where, racks in found.items() if racks}

    def _racks_open_to(self, source: LedgerHost) -> set[str]:
        ledger, where = self._ledger, (source.host.datacenter, source.host.rack)
        found: set[str] = set()
        for shard in source.shards if self.are_open else ():
            for unit in shard.items:
                if unit not in ledger.busy and not ledger.tables[ledger.group[unit]].racks.get(where[0]):
                    found |= self._open[self._kind_of[unit]].get(where, frozenset())
        return found


class TableLimits:
    """The most tablets of each group that a host may have."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._capacity: Counter[tuple[str, str]] = Counter()
        for node in ledger.nodes.values():
            if node.host.serving:
                self._capacity[node.host.datacenter, node.host.rack] += node.capacity
        self._held = self._held_by_rack()
        self._replicas = [self._by_rack(group) for group in range(len(ledger.tables))]
        self._limits: dict[str, list[int]] = {}
        self._uncapped: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def limit(self, node: LedgerHost, group: int) -> int:
        """Return the most tablets of the group that the host may have."""
        limits = self._limits.get(node.host.id)
        if limits is None:
            limits = self._limits[node.host.id] = self._limits_of(node)
        return limits[group]

    def _limits_of(self, node: LedgerHost) -> list[int]:
        where = node.host.datacenter, node.host.rack
        if not self._capacity[where]:
            return [0] * len(self._replicas)
        if where not in self._uncapped:
            self._uncapped[where] = self._uncapped_of(where)
        weight = node.capacity * (100 + self._ledger.limits.table_slack_percent)
        return [-(-replicas * weight // (capacity * 100)) + 1 for replicas, capacity in self._uncapped[where]]

    def _uncapped_of(self, where: tuple[str, str]) -> list[tuple[int, int]]:
        """Return for each group the replicas and the capacity of the hosts that cannot have every tablet."""
        members = self._ledger.in_datacenter[where[0]]
        shares = sorted([one.capacity for one in members if one.host.rack == where[1] and one.host.serving])[::-1]
        counts = [tablets.count for tablets in self._ledger.tables]
        rows = zip(self._replicas, counts, strict=True)
        return [_below_cap(shares, replicas.get(where, 0), count) for replicas, count in rows]

    def _held_by_rack(self) -> dict[tuple[str, str], list[int]]:
        """Return the number of replicas of each group in each rack."""
        counts: dict[tuple[str, str], list[list[int]]] = {}
        for node in self._ledger.nodes.values():
            counts.setdefault((node.host.datacenter, node.host.rack), []).append(node.counts)
        return {where: [sum(column) for column in zip(*rows, strict=True)] for where, rows in counts.items()}

    def _by_rack(self, group: int) -> dict[tuple[str, str], int]:
        """Return the number of replicas of the group that each rack should have."""
        tablets = self._ledger.tables[group]
        held: Counter[str] = Counter()
        racks_held = {where: counts[group] for where, counts in self._held.items()}
        for (datacenter, _), replicas in racks_held.items():
            held[datacenter] += replicas
        found: dict[tuple[str, str], int] = {}
        count = tablets.count
        for datacenter, replicas in held.items():
            if tablets.racks.get(datacenter):
                found.update({where: n for where, n in racks_held.items() if where[0] == datacenter})
                continue
            racks = {where: n for where, n in self._capacity.items() if where[0] == datacenter}
            if not racks:
                continue  # no host of the datacenter may get a tablet
            least, most = replicas // (count * len(racks)) * count, -(-replicas // (count * len(racks))) * count
            uncapped, total = _below_cap(sorted(racks.values())[::-1], replicas, most)
            for where, capacity in racks.items():
                found[where] = max(least, min(most, -(-uncapped * capacity // total)))
            assert sum([found[where] for where in racks]) >= replicas, "the racks have room for all replicas"
        return found


def _below_cap(capacities: list[int], replicas: int, most: int) -> tuple[int, int]:
    """Give each capacity with a greater share exactly ``most`` replicas. Return the replicas and the sum of the others.

    Args:
        capacities: in descending order. The last one is never capped.
    """
    total = sum(capacities)
    assert 0 < capacities[-1] <= capacities[0], "capacities are positive and sorted in descending order"
    for capacity in capacities[:-1]:
        if replicas * capacity <= most * total:
            break
        replicas, total = max(0, replicas - most), total - capacity
    assert total >= capacities[-1], "the last capacity is never capped"
    return replicas, total


def imbalance(source: LedgerHost, target: LedgerHost, group: int) -> int:
    """Return how many more of the group the source has than the target would have, each by its weight.

    The group with the greatest value moves first.
    """
    return source.counts[group] * target.weight - (target.counts[group] + 1) * source.weight
