"""The tablets of zones: the next migration of each tablet that is not where its partition needs it.

A pure function of the state. A move adds, removes or replaces one replica of a tablet. Tablets of many tables and
partitions move at the same time, within the limits on streaming.

A new replica replaces one that must go, dead ones first. If none must go, the tablet gets one replica more. If none is
missing, it gets one fewer. The new replica goes to the shard of its node with the fewest tablets. The migration of a
tablet that reverted is requested again, as the balancer does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import Final

from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration, admissible
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap, TabletReplica
from ringlog.kernel.model.zones import partition_key
from ringlog.kernel.tablets.allocation import held_by_shard
from ringlog.kernel.tablets.stages import MIGRATION, REBUILD
from ringlog.kernel.values import NodeId
from ringlog.kernel.zones.data import (
    ZoneGoal,
    goal_of,
    holders,
    in_zone,
    may_shrink,
    takers,
    zone_of,
)
from ringlog.kernel.zones.distribution import is_alive

SUBJECT: Final = "tablets"
"""The subject of a request that moves many tablets."""


Ends = tuple[TabletReplica | None, NodeId | None]
"""The replica to remove, and the node to get a replica. Either may be None."""


def migrations(state: ClusterState, idle: Container[str] = ()) -> MigrateTablets | None:
    """Return the migrations that may start now, except for idle zones (``idle``); None if there are none."""
    begun, _ = admissible(state, next_moves(state, idle))
    return MigrateTablets(begun) if begun else None


def next_moves(state: ClusterState, idle: Container[str] = ()) -> Iterator[TabletMigration]:
    """Yield the next move of each settled tablet that is not where its partition needs it, even if it must wait."""
    maps = [tablets for name, tablets in in_order(state.tablets) if in_zone(state, name)]
    maps = [tablets for tablets in maps if zone_of(state, tablets.table) not in idle]
    ready, shards = takers(state) if maps else frozenset[NodeId](), _Shards(state)
    for tablets in maps:
        zone = zone_of(state, tablets.table)
        for number in range(tablets.count):
            goal = goal_of(state.zone_partitions[partition_key(zone, number)])
            move = None if number in tablets.transitions else _move(state, tablets, number, goal, ready, shards)
            if move is not None:
                yield move


def next_ends(state: ClusterState, tablet: Tablet, goal: ZoneGoal, ready: frozenset[NodeId]) -> Ends | None:
    """Return the ends of the next move of a misplaced tablet; None: no node can get a replica, and none may be removed.

    Args:
        goal: the nodes that its partition needs.
        ready: the nodes that may receive a tablet.
    """
    lacking = sorted((goal.must - holders(tablet)) & ready)
    extra = [one for one in tablet.replicas if one.node not in goal.may]
    source = min(extra, key=lambda one: is_alive(state, one.node), default=None)
    target = lacking[0] if lacking else None
    if target is None and (source is None or not may_shrink(state, goal, tablet)):
        return None
    return source, target


def is_migration(state: ClusterState, ends: Ends) -> bool:
    """Return whether the removed replica sends the rows. Otherwise they come from replicas that know every row."""
    return ends[0] is not None and ends[1] is not None and is_alive(state, ends[0].node)


def _move(
    state: ClusterState, tablets: TabletMap, number: int, goal: ZoneGoal, ready: frozenset[NodeId], shards: _Shards
) -> TabletMigration | None:
    there = frozenset(one.node for one in tablets.replicas(number))
    if goal.must <= there <= goal.may:
        return None
    ends = next_ends(state, tablets.tablet(number), goal, ready)
    if ends is None:
        return None
    source = None if ends[0] is None else Shard(ends[0].node, ends[0].shard)
    target = None if ends[1] is None else shards.take(ends[1])
    kind = MIGRATION if is_migration(state, ends) else REBUILD
    return TabletMigration(tablets.table, number, kind.name, source, target)


class _Shards:
    """The number of tablets of each shard, including tablets in transition and those planned in this round."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._held: Counter[tuple[NodeId, int]] | None = None

    def take(self, node: NodeId) -> Shard:
        """Return the shard of a node with the fewest tablets, and count one more for it."""
        if self._held is None:
            self._held = held_by_shard(self._state.tablets.values())
        held = self._held
        shard = min(range(self._state.nodes[node].shards), key=lambda one: (held[node, one], one))
        held[node, shard] += 1
        return Shard(node, shard)
