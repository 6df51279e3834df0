"""Siblings of a merge come together: a replica of one of the two moves to the shard of a replica of the other.

Replicas move one after the other, and only when nothing else is planned and nothing is drained: first within a host,
then within a rack, then within a datacenter. If the replication names no datacenters, they also move to another one. If
the racks forbid one direction they allow the other one. If both are allowed, the replica on the more loaded host or
shard moves, so that the pair need not go back to balance the load. It waits while limits forbid the better direction.
Siblings that have met move together from then on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringlog.kernel.balance.ledger import Ledger, LedgerShard
from ringlog.kernel.balance.model import CO_LOCATE, INTRANODE, MIGRATION, BalanceStop, Place
from ringlog.kernel.balance.rules import forbidden


def bring_together(ledger: Ledger) -> list[BalanceStop]:
    """Plan at most one move of each pair of siblings of the tables that merge.

    Return the tables whose pairs cannot meet.
    """
    assert not ledger.planned, "siblings are colocated only if no other move is planned"
    stops = []
    for group, tablets in enumerate(ledger.tables):
        if not tablets.merging:
            continue
        apart = []
        for number in range(0, tablets.count - 1, 2):
            unit = ledger.first[group] + number
            if unit not in ledger.busy and unit + 1 not in ledger.busy:
                if cannot_meet(ledger, unit, unit + 1):
                    apart.append(number)
                else:
                    _meet(ledger, unit, unit + 1)
        if apart:
            detail = f"{len(apart)} pairs, the first is /{apart[0]} and /{apart[0] + 1}"
            stops.append(BalanceStop(tablets.table, "cannot_meet", detail))
    return stops


def _meet(ledger: Ledger, even: int, odd: int) -> None:
    better: set[tuple[Place, Place]] = set()
    for distance, unit, source, target in sorted(
        [*_moves(ledger, odd, even), *_moves(ledger, even, odd)], key=_preference
    ):
        if (target.place, source.place) in better:
            continue
        better.add((source.place, target.place))
        if not ledger.cluster_full() and ledger.may_read(source) and ledger.may_write(target):
            ledger.move((unit,), source, target, MIGRATION if distance else INTRANODE, CO_LOCATE)
            return


def _preference(move: _Move) -> tuple[int, int, int, Place, Place]:
    """Return a sort key: near before far, then from the more loaded host and shard to the less loaded one."""
    distance, _, source, target = move
    return distance, target.node.key - source.node.key, target.load - source.load, source.place, target.place


def cannot_meet(ledger: Ledger, even: int, odd: int) -> bool:
    """Return whether siblings are apart and no allowed move brings them closer."""
    theirs = [{shard.place for shard in ledger.shards_of(unit)} for unit in (even, odd)]
    return theirs[0] != theirs[1] and not any((*_moves(ledger, odd, even), *_moves(ledger, even, odd)))


_Move = tuple[int, int, LedgerShard, LedgerShard]
"""Distance, unit, source, target."""


def _moves(ledger: Ledger, unit: int, sibling: int) -> Iterator[_Move]:
    """Yield the moves of one unit that bring it to a place of its sibling."""
    assert ledger.number[unit] ^ 1 == ledger.number[sibling], "siblings are a pair of tablets that merge"
    here, there = list(ledger.shards_of(unit)), list(ledger.shards_of(sibling))
    for source in here:
        if source in there or not source.node.movable:
            continue
        for target in there:
            if target in here or not target.node.movable:
                continue
            if source.node is target.node or not _forbidden(ledger, unit, source, target):
                yield _distance(source, target), unit, source, target


def _forbidden(ledger: Ledger, unit: int, source: LedgerShard, target: LedgerShard) -> bool:
    """Return whether the rules of placement forbid the move. As in admission, other datacenters count as other
    racks.
    """
    here, there = source.node.host, target.node.host
    if here.datacenter == there.datacenter or not ledger.tables[ledger.group[unit]].anywhere:
        return bool(forbidden(ledger, unit, source.node, target.node))
    if any(node == there.id for node, _ in ledger.places(unit)):
        return True
    counts = [ledger.racks(unit, host.datacenter).get(host.rack, 0) for host in (here, there)]
    return counts[1] >= counts[0]


def _distance(source: LedgerShard, target: LedgerShard) -> int:
    """Return 0 for the same host, 1 for the same rack, 2 for the same datacenter, 3 otherwise."""
    here, there = source.node.host, target.node.host
    if here.id == there.id:
        return 0
    if here.datacenter != there.datacenter:
        return 3
    return 1 if here.rack == there.rack else 2
