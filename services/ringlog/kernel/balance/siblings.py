"""Siblings of a merge come together: the odd one moves to where the even one is.

One replica after the other, and only when nothing else is planned and nothing is drained: first one on the same host,
then one in the same rack, then any of the datacenter. What has met moves together from then on.
"""

from __future__ import annotations

from ringlog.kernel.balance.ledger import Ledger, LedgerShard
from ringlog.kernel.balance.model import CO_LOCATE, INTRANODE, MIGRATION


def bring_together(ledger: Ledger) -> None:
    """Plan at most one move of each odd tablet of the tables that merge."""
    for group, tablets in enumerate(ledger.tables):
        if not tablets.merging:
            continue
        for number in range(0, tablets.count - 1, 2):
            unit = ledger.first[group] + number
            if unit not in ledger.busy and unit + 1 not in ledger.busy:
                _meet(ledger, unit, unit + 1)


def _meet(ledger: Ledger, even: int, odd: int) -> None:
    theirs = list(ledger.shards_of(odd))
    wanted = [shard for shard in ledger.shards_of(even) if shard not in theirs and shard.node.movable]
    spare = [shard for shard in theirs if odd in shard.items and even not in shard.items and shard.node.movable]
    pairs = [
        (_distance(source, target), source.place, target.place, source, target)
        for source in spare
        for target in wanted
        if _distance(source, target) < 3 and _free(theirs, source, target)
    ]
    for distance, _, _, source, target in sorted(pairs, key=lambda row: row[:3]):
        if not ledger.cluster_full() and ledger.may_read(source) and ledger.may_write(target):
            ledger.move((odd,), source, target, MIGRATION if distance else INTRANODE, CO_LOCATE)
            return


def _distance(source: LedgerShard, target: LedgerShard) -> int:
    """0: the same host; 1: the same rack; 2: the same datacenter."""
    here, there = source.node.host, target.node.host
    if here.id == there.id:
        return 0
    if here.datacenter != there.datacenter:
        return 3
    return 1 if here.rack == there.rack else 2


def _free(theirs: list[LedgerShard], source: LedgerShard, target: LedgerShard) -> bool:
    """Whether no other replica of the odd tablet is on the target's host."""
    return all(shard is source or shard.node is not target.node for shard in theirs)
