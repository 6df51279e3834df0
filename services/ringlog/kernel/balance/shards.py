"""Balance between the shards of one host, by the same rule of convergence. Shards have equal parts of its capacity.

The shards of a draining host are not balanced. Neither are those of a host in a datacenter that has reached its limits,
because a tablet moved to another shard might leave the host next.
"""

from __future__ import annotations

from collections import Counter

from ringlog.kernel.balance.ledger import Ledger, LedgerHost, LedgerShard, heaviest_first
from ringlog.kernel.balance.model import INTRANODE, SHARDS


def even_out(ledger: Ledger, node: LedgerHost, by_size: bool) -> None:
    """Plan moves between the shards of a host until none is possible now."""
    assert node.movable, "only hosts that stay and whose sizes are known are balanced"
    loads = [shard.load for shard in node.shards]
    least = min([shard.least for shard in node.shards])
    if len(loads) == node.host.shards and max(loads) - min(loads) < 2 * least:
        return  # every unit is larger than half of the gap
    done: set[int] = set()
    while not ledger.cluster_full():
        source = min(
            (one for one in node.shards if one.number not in done and one.load), key=heaviest_first, default=None
        )
        if source is None:
            return
        target = ledger.target_shard(node)
        if target is None:
            return
        if not ledger.may_read(source) or not _move_one(ledger, source, target, by_size):
            done.add(source.number)


def _move_one(ledger: Ledger, source: LedgerShard, target: LedgerShard, by_size: bool) -> bool:
    assert source.node is target.node, "both shards belong to the same host"
    if source is target:
        return False
    gone = source.number >= source.node.host.shards
    gap = source.load - target.load
    if not gone and (
        gap < 2 * source.least or (by_size and gap * 1000 < source.load * ledger.limits.threshold_permille)
    ):
        return False
    mine, theirs = (Counter([ledger.group[unit] for unit in shard.items]) for shard in (source, target))
    best: tuple[int, int, int] | None = None
    chosen: tuple[int, ...] = ()
    for unit in source.items:
        units = ledger.bundle(unit, source, must_go=gone)
        if units is None:
            continue
        size = sum(source.items[one] for one in units)
        group = ledger.group[unit]
        score = (mine[group] - theirs[group], size, -unit)
        if not ledger.may_move(source, target, len(units)):
            continue
        if (gone or 2 * size <= gap) and (best is None or score > best):
            best, chosen = score, units
    if best is None:
        return False
    ledger.move(chosen, source, target, INTRANODE, SHARDS)
    return True
