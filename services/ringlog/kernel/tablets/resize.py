"""Splits and merges: a table gets twice as many tablets, or half as many.

A split cuts tablet x in its middle into 2x and 2x + 1; a tablet of a single token stays whole. A merge joins tablets 2x
and 2x + 1 to x, if both are on the same shards; the last of an odd number stays alone. Neither changes any group: each
part keeps ``since`` and ``changed`` of the whole, and a merged tablet has the later ones, as with ranges.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica, new_map
from ringlog.kernel.values import TOKEN_MIN, Epoch, Token

SPLIT: Final = "split"
MERGE: Final = "merge"
NONE: Final = "none"
"""Decisions about the number of a table's tablets. ``NONE`` revokes a decision in progress."""

_BEFORE_ALL: Token = TOKEN_MIN - 2
"""The start of the first tablet, as a number, so that halves of equal tablets are equal."""

Part = tuple[Token, tuple[TabletReplica, ...], Epoch]
"""Last token, replicas, changed."""


def split(tablets: TabletMap, epoch: Epoch) -> TabletMap:
    """Return the map with twice as many tablets. No tablet is in transition."""
    parts: list[Part] = []
    for tablet in tablets:
        start = tablet.start if tablet.index else _BEFORE_ALL
        middle = (start + tablet.end) // 2
        if max(start, TOKEN_MIN - 1) < middle < tablet.end:
            parts.append((middle, tablet.replicas, tablet.changed))
        parts.append((tablet.end, tablet.replicas, tablet.changed))
    return _made(tablets, parts, epoch)


def merge(tablets: TabletMap, epoch: Epoch) -> TabletMap:
    """Return the map with half as many tablets. Siblings are on the same shards, and no tablet is in transition."""
    parts: list[Part] = []
    for even in range(0, tablets.count, 2):
        one = tablets.tablet(even)
        if even + 1 == tablets.count:
            parts.append((one.end, one.replicas, one.changed))
            continue
        other = tablets.tablet(even + 1)
        since = {(replica.node, replica.shard): replica.since for replica in other.replicas}
        replicas = tuple(
            TabletReplica(mine.node, mine.shard, max(mine.since, since[mine.node, mine.shard])) for mine in one.replicas
        )
        parts.append((other.end, replicas, max(one.changed, other.changed)))
    return _made(tablets, parts, epoch)


def separated_pair(tablets: TabletMap) -> Tablet | None:
    """Return the first tablet whose sibling is on other shards; None if all siblings can be merged."""
    for even in range(0, tablets.count - 1, 2):
        one, other = tablets.replicas(even), tablets.replicas(even + 1)
        if {(mine.node, mine.shard) for mine in one} != {(mine.node, mine.shard) for mine in other}:
            return tablets.tablet(even)
    return None


def _made(tablets: TabletMap, parts: list[Part], epoch: Epoch) -> TabletMap:
    assert not tablets.transitions, "a migrating tablet is not split or merged"
    ends, replicas, changed = zip(*parts, strict=True)
    return new_map(tablets.table, ends, replicas, epoch, changed, tablets.sequence)
