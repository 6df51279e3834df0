"""Hosts that leave give away everything, first of all.

Each replica goes to the least loaded host that placement allows and limits let in; there is no test of convergence,
since the host must be empty in the end. What a dead host has is rebuilt, if enough replicas are alive to know every
acknowledged write: all but a minority of the tablet's replicas; or if nobody who may come back knows more (``gone``).

``obstacles`` looks at the rules alone, limits and loads left aside: each rack that the replication names (else each
datacenter) needs as many hosts without the tablet as it has replicas to give away. It answers for a request too, before
it is accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ringlog.kernel.balance.ledger import Ledger, LedgerHost, LedgerShard, by_key, heaviest_first
from ringlog.kernel.balance.model import DRAIN, MIGRATION, REBUILD, REBUILDS, BalanceStop, Obstacle
from ringlog.kernel.balance.rules import Shares, forbidden


def drain(ledger: Ledger, shares: Shares, datacenter: str) -> tuple[list[BalanceStop], list[Obstacle], bool]:
    """Plan what the datacenter's draining hosts may send now: (reasons, obstacles, whether some of it is left)."""
    stops: list[BalanceStop] = []
    found: list[Obstacle] = []
    open_ends = False
    targets = sorted([node for node in ledger.in_datacenter[datacenter] if node.movable], key=by_key)
    for source in ledger.in_datacenter[datacenter]:
        if not source.host.draining:
            continue
        blocked = list(obstacles(ledger, source))
        found += blocked
        if source.host.alive and source.incomplete:
            stops.append(BalanceStop(source.host.id, "statistics_missing", source.incomplete))
            open_ends = True
            continue
        impossible = {(one.table, one.tablet) for one in blocked}
        had = sum(len(shard.items) for shard in source.shards)
        waiting = sum(_drain_shard(ledger, shares, shard, targets, impossible) for shard in source.shards)
        open_ends |= had > len(impossible)
        if waiting:
            stops.append(BalanceStop(source.host.id, "limits", f"{waiting} tablets wait"))
    return stops, found, open_ends


def _drain_shard(
    ledger: Ledger, shares: Shares, shard: LedgerShard, targets: list[LedgerHost], impossible: set[tuple[str, int]]
) -> int:
    """Plan for one shard; how many of its tablets wait."""
    source = shard.node.host
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
        target = _target(ledger, shares, units, shard.node, targets)
        if target is None:
            waiting += 1
            continue
        kind, why = (MIGRATION, DRAIN) if source.alive else (REBUILD, REBUILDS)
        ledger.move(units, shard, target, kind, why)
        targets.sort(key=by_key)
    return waiting


def _bundle(
    ledger: Ledger, unit: int, shard: LedgerShard, targets: list[LedgerHost], impossible: set[tuple[str, int]]
) -> tuple[int, ...] | None:
    """What leaves with the unit, as ``Ledger.bundle`` has it; siblings that no host may have both leave one by one.

    Their other replicas may lie on different hosts, and all hosts have one of the two. They meet again afterwards.
    """
    pair = ledger.pair(unit, shard)
    if len(pair) == 1 or any(one in ledger.busy for one in pair):
        return ledger.bundle(unit, shard)
    table = ledger.tables[ledger.group[unit]].table
    held = any((table, ledger.number[one]) in impossible for one in pair)
    both = (not any(forbidden(ledger, one, shard.node, node, drain=True) for one in pair) for node in targets)
    return ledger.bundle(unit, shard) if not held and any(both) else (unit,)


def _may_read(ledger: Ledger, units: tuple[int, ...], shard: LedgerShard) -> bool:
    """Siblings move together, and each is rebuilt from replicas of its own."""
    if shard.node.host.alive:
        return ledger.may_read(shard, len(units))
    holders = (other for unit in units for other in ledger.shards_of(unit) if other is not shard)
    reads = Counter(other for other in holders if other.node.host.alive)
    return all(ledger.may_read(other, weight) for other, weight in reads.items())


def _target(
    ledger: Ledger, shares: Shares, units: tuple[int, ...], source: LedgerHost, targets: list[LedgerHost]
) -> LedgerShard | None:
    """The best place: one that the rules of balancing allow before one in any rack, then within the share, then by
    load.
    """
    best: tuple[tuple[int, bool, int, int], LedgerShard] | None = None
    where = source.host
    counted = ledger.racks(units[0], where.datacenter)
    for node in targets:
        if any(forbidden(ledger, unit, source, node, drain=True) for unit in units):
            continue
        worse = 0 if node.host.rack == where.rack else max(0, counted.get(node.host.rack, 0) + 1 - counted[where.rack])
        group = ledger.group[units[0]]
        order = (worse, node.counts[group] + len(units) > shares.limit(node, group), node.key, node.rank)
        if (best is None or order < best[0]) and (shard := ledger.target_shard(node, len(units))) is not None:
            best = order, shard
            if order[:2] == (0, False):
                break  # they are in the order of their loads
    return best[1] if best is not None else None


def obstacles(ledger: Ledger, source: LedgerHost) -> Iterator[Obstacle]:
    """The replicas of a draining host that have nowhere to go, by table and tablet."""
    where = source.host
    for shard in sorted(source.shards, key=heaviest_first):
        for unit in sorted(shard.items):
            tablets, number = ledger.tables[ledger.group[unit]], ledger.number[unit]
            pinned = bool(tablets.racks.get(where.datacenter))
            holders = {other.node.host.id: other.node.host for other in ledger.shards_of(unit)}
            alive = sum(host.alive for host in holders.values())
            row = (where.id, tablets.table, number, where.datacenter, where.rack)
            forfeited = all(host.alive or host.gone for host in holders.values())
            if not where.alive and not forfeited and alive < len(holders) - len(holders) // 2:
                detail = f"{alive} of {len(holders)} replicas are alive"
                yield Obstacle(*row, "too_few_replicas", detail)
                continue
            here = [
                node.host
                for node in ledger.in_datacenter[where.datacenter]
                if not pinned or node.host.rack == where.rack
            ]
            free = sum(host.serving and host.id not in holders for host in here)
            asked = sum(host.draining and host.id in holders for host in here)
            if free < asked:
                area = f"rack {where.rack} of {where.datacenter}" if pinned else f"datacenter {where.datacenter}"
                detail = f"{asked} replicas must move, {free} other hosts are in {area}"
                yield Obstacle(*row, "drain_impossible", detail)
