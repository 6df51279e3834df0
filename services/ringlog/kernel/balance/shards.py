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
    sources = [shard for shard in node.shards if shard.load]
    while sources and not ledger.cluster_full():
        target = ledger.target_shard(node)
        if target is None:
            return
        sources.sort(key=heaviest_first)
        while sources and not (ledger.may_read(sources[0]) and _move_one(ledger, sources[0], target, by_size)):
            del sources[0]  # limits and gaps only get tighter, so it gives nothing later


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
    items, group_of = source.items, ledger.group
    more = Counter([group_of[unit] for unit in items])
    more.subtract([group_of[unit] for unit in target.items])
    best: tuple[int, int, int] | None = None
    chosen: tuple[int, ...] = ()
    for unit, least in items.items():
        group = group_of[unit]
        is_alone = not ledger.tables[group].merging
        if (not gone and 2 * least > gap) or (best and is_alone and (more[group], least, -unit) < best):
            continue  # too large, or less fitting than the best
        units = ledger.bundle(unit, source, must_go=gone)
        if units is None or (len(units) > 1 and not ledger.may_move(source, target, len(units))):
            continue
        size = sum([items[one] for one in units])
        score = (more[group], size, -unit)
        if (gone or 2 * size <= gap) and (best is None or score > best):
            best, chosen = score, units
    if best is None:
        return False
    ledger.move(chosen, source, target, INTRANODE, SHARDS)
    return True
