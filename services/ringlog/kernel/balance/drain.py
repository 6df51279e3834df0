"""Drains: leaving hosts give away all their tablets, before any other step.

Each replica goes to the least loaded host that placement and limits allow. No test of convergence applies, since the
host must be empty in the end. Missing sizes are guessed, so a node whose reports are ignored can leave, too. A host
whose own sizes are missing gets a replica only if the rules allow no other host.

Replicas of a dead host are rebuilt if the living know every row, by the rule of admission (``quorum_sources``), or if
no host that may come back knows more (``gone``).

``obstacles`` checks the rules only, without limits and loads. Each rack that the replication names (else each
datacenter) needs as many hosts without the tablet as it has replicas to give away. If the replication names no
datacenters, the hosts of all of them count; those of the same datacenter get the tablet first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ringlog.kernel.balance.ledger import Ledger, LedgerHost, LedgerShard, heaviest_first
from ringlog.kernel.balance.model import DRAIN, MIGRATION, REBUILD, REBUILDS, BalanceStop, Obstacle
from ringlog.kernel.balance.rules import TableLimits, forbidden
from ringlog.kernel.operations.sources import quorum_sources


def drain(ledger: Ledger, table_limits: TableLimits, datacenter: str) -> tuple[list[BalanceStop], list[Obstacle], bool]:
    """Plan the moves that the datacenter's draining hosts may start now. Return reasons, obstacles, and whether tablets
    are left.
    """
    stops: list[BalanceStop] = []
    found: list[Obstacle] = []
    open_ends = False
    targets = sorted([node for node in ledger.in_datacenter[datacenter] if node.host.serving], key=_target_order)
    for source in ledger.in_datacenter[datacenter]:
        if not source.host.draining:
            continue
        blocked = list(obstacles(ledger, source))
        found += blocked
        impossible = {(one.table, one.tablet) for one in blocked}
        had = sum(len(shard.items) for shard in source.shards)
        waiting = sum(_drain_shard(ledger, table_limits, shard, targets, impossible) for shard in source.shards)
        assert waiting <= had, "waiting tablets have a replica on the host"
        open_ends |= had > len(impossible)
        if waiting:
            stops.append(BalanceStop(source.host.id, "limits", f"{waiting} tablets wait"))
    return stops, found, open_ends


def _drain_shard(
    ledger: Ledger,
    table_limits: TableLimits,
    shard: LedgerShard,
    targets: list[LedgerHost],
    impossible: set[tuple[str, int]],
) -> int:
    """Plan for one shard. Return how many of its tablets wait."""
    source = shard.node.host
    assert source.draining, "only the tablets of a drained host move regardless of loads"
    waiting = 0
    for unit in sorted(shard.items):
        tablets, number = ledger.tables[ledger.group[unit]], ledger.number[unit]
        units = _bundle(ledger, unit, shard, targets, impossible) if unit in shard.items else None
        if units is None or (tablets.table, number) in impossible:
            waiting += ledger.busy.get(unit) == "in_transition" and unit in shard.items
            continue
        if ledger.cluster_full(len(units)) or not _may_read(ledger, units, shard):
            waiting += 1
            continue
        target = _target(ledger, table_limits, units, shard.node, targets)
        if target is None and tablets.anywhere:
            target = _target(ledger, table_limits, units, shard.node, _elsewhere(ledger, source.datacenter))
        if target is None:
            waiting += 1
            continue
        assert target.node.host.serving, "the target host is neither drained nor down"
        kind, why = (MIGRATION, DRAIN) if source.alive else (REBUILD, REBUILDS)
        ledger.move(units, shard, target, kind, why)
        targets.sort(key=_target_order)
    return waiting


def _bundle(
    ledger: Ledger, unit: int, shard: LedgerShard, targets: list[LedgerHost], impossible: set[tuple[str, int]]
) -> tuple[int, ...] | None:
    """Return the units that leave together, as ``Ledger.bundle`` does. Siblings leave separately if no host may have
    both.

    Their other replicas may be on different hosts, so that each host has one of the two. They meet again afterwards.
    """
    pair = ledger.pair(unit, shard)
    if len(pair) == 1 or any(one in ledger.busy for one in pair):
        return ledger.bundle(unit, shard, must_go=True)
    table = ledger.tables[ledger.group[unit]].table
    held = any((table, ledger.number[one]) in impossible for one in pair)
    both = (not any(forbidden(ledger, one, shard.node, node, drain=True) for one in pair) for node in targets)
    return ledger.bundle(unit, shard, must_go=True) if not held and any(both) else (unit,)


def _may_read(ledger: Ledger, units: tuple[int, ...], shard: LedgerShard) -> bool:
    """Return whether the units may stream. Siblings move together, but each is rebuilt from its own replicas."""
    if shard.node.host.alive:
        return ledger.may_read(shard, len(units))
    holders = (other for unit in units for other in ledger.shards_of(unit) if other is not shard)
    reads = Counter(other for other in holders if other.node.host.alive)
    return all(ledger.may_read(other, count) for other, count in reads.items())


def _target(
    ledger: Ledger, table_limits: TableLimits, units: tuple[int, ...], source: LedgerHost, targets: list[LedgerHost]
) -> LedgerShard | None:
    """Return the best target: first by the balancing rules for racks, then by the table's share, then by load.

    ``targets`` ends with the hosts whose sizes are missing. They count only if the rules allow no other host.
    """
    best: tuple[tuple[int, bool, int, int], LedgerShard] | None = None
    where = source.host
    counted = ledger.racks(units[0], where.datacenter)
    found_complete = False
    for node in targets:
        if found_complete and node.incomplete:
            break
        if any(forbidden(ledger, unit, source, node, drain=True) for unit in units):
            continue
        found_complete |= not node.incomplete
        worse = 0 if node.host.rack == where.rack else max(0, counted.get(node.host.rack, 0) + 1 - counted[where.rack])
        group = ledger.group[units[0]]
        order = (worse, node.counts[group] + len(units) > table_limits.limit(node, group), node.key, node.rank)
        if (best is None or order < best[0]) and (shard := ledger.target_shard(node, len(units))) is not None:
            best = order, shard
            if order[:2] == (0, False):
                break  # targets are sorted by load
    return best[1] if best is not None else None


def _target_order(node: LedgerHost) -> tuple[bool, int, int]:
    return bool(node.incomplete), node.key, node.rank


def obstacles(ledger: Ledger, source: LedgerHost) -> Iterator[Obstacle]:
    """Yield the replicas of a draining host that have no target, by table and tablet."""
    where, serving = source.host, _serving(ledger)
    for shard in sorted(source.shards, key=heaviest_first):
        for unit in sorted(shard.items):
            tablets, number = ledger.tables[ledger.group[unit]], ledger.number[unit]
            pinned = bool(tablets.racks.get(where.datacenter))
            holders = {other.node.host.id: other.node.host for other in ledger.shards_of(unit)}
            assert where.id in holders, "the tablets of a shard and the places of a tablet agree"
            row = (where.id, tablets.table, number, where.datacenter, where.rack)
            if (refused := ledger.inputs.refused.get((tablets.table, number))) is not None:
                yield Obstacle(*row, *refused)
                continue
            dead = [host.id for host in holders.values() if not host.alive]
            forfeited = all(holders[node].gone for node in dead)
            if not where.alive and not forfeited and not quorum_sources(holders, [*holders], dead, tablets.anywhere):
                detail = f"{len(holders) - len(dead)} of {len(holders)} replicas are alive"
                yield Obstacle(*row, "too_few_replicas", detail)
                continue
            area = where.datacenter, where.rack if pinned else ""
            area = ("", "") if tablets.anywhere else area
            here = [host for host in holders.values() if area[0] in ("", host.datacenter)]
            here = [host for host in here if area[1] in ("", host.rack)]
            free = serving[area] - sum(host.serving for host in here)
            asked = sum(host.draining for host in here)
            assert asked >= 1, "the drained host itself needs a target"
            if free < asked:
                place = f"rack {where.rack} of {where.datacenter}" if pinned else f"datacenter {where.datacenter}"
                place = "the cluster" if tablets.anywhere else place
                detail = f"{asked} replicas must move, {free} other hosts are in {place}"
                yield Obstacle(*row, "drain_impossible", detail)


def _serving(ledger: Ledger) -> Counter[tuple[str, str]]:
    """Return how many hosts may get tablets: per (datacenter, rack), per (datacenter, "") and in total under
    ("", "").
    """
    hosts = [node.host for node in ledger.nodes.values() if node.host.serving]
    areas = [[(host.datacenter, host.rack), (host.datacenter, ""), ("", "")] for host in hosts]
    return Counter([area for row in areas for area in row])


def _elsewhere(ledger: Ledger, datacenter: str) -> list[LedgerHost]:
    """Return the hosts of other datacenters that may get tablets, the least loaded first."""
    hosts = [node for node in ledger.nodes.values() if node.host.serving and node.host.datacenter != datacenter]
    return sorted(hosts, key=_target_order)
