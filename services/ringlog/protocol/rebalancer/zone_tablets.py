"""How the data of zones follow their partitions: the next migration of each tablet that is not where it belongs.

A pure function of the state. One replica of a tablet comes or goes at a time; tablets of many tables and partitions
move together, as far as the limits on streaming allow. What comes takes the place of what goes, the dead first; where
nobody must go it is one replica more; where nobody comes, one fewer. On its node it goes to the shard with the fewest
tablets. A tablet that was turned back is asked for again, as the balancer does.
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
"""What a request that moves many tablets is about."""


Ends = tuple[TabletReplica | None, NodeId | None]
"""The replica that goes, and the node to which one comes."""


def migrations(state: ClusterState, rest: Container[str] = ()) -> MigrateTablets | None:
    """What may begin now for the data of zones, but of those that ``rest``; None if nothing."""
    begun, _ = admissible(state, wanted(state, rest))
    return MigrateTablets(begun) if begun else None


def wanted(state: ClusterState, rest: Container[str] = ()) -> Iterator[TabletMigration]:
    """The next move of each settled tablet that is not where its partition has it, whether or not it may begin."""
    maps = [tablets for name, tablets in in_order(state.tablets) if in_zone(state, name)]
    maps = [tablets for tablets in maps if zone_of(state, tablets.table) not in rest]
    ready, shards = takers(state) if maps else frozenset[NodeId](), _Shards(state)
    for tablets in maps:
        zone = zone_of(state, tablets.table)
        for number in range(tablets.count):
            goal = goal_of(state.zone_partitions[partition_key(zone, number)])
            move = None if number in tablets.transitions else _move(state, tablets, number, goal, ready, shards)
            if move is not None:
                yield move


def next_ends(state: ClusterState, tablet: Tablet, goal: ZoneGoal, ready: frozenset[NodeId]) -> Ends | None:
    """Of the next move of a tablet, which is not where ``goal`` has it; None: nobody can come, and nobody may go."""
    lacking = sorted((goal.must - holders(tablet)) & ready)
    extra = [one for one in tablet.replicas if one.node not in goal.may]
    source = min(extra, key=lambda one: is_alive(state, one.node), default=None)
    target = lacking[0] if lacking else None
    if target is None and (source is None or not may_shrink(state, goal, tablet)):
        return None
    return source, target


def is_migration(state: ClusterState, ends: Ends) -> bool:
    """True if rows come from the one that goes; else from those who know every row."""
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
    """How many tablets each shard has, those that are on their way or planned here among them."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._held: Counter[tuple[NodeId, int]] | None = None

    def take(self, node: NodeId) -> Shard:
        """The shard of a node with the fewest, which has one more now."""
        if self._held is None:
            self._held = held_by_shard(self._state.tablets.values())
        held = self._held
        shard = min(range(self._state.nodes[node].shards), key=lambda one: (held[node, one], one))
        held[node, shard] += 1
        return Shard(node, shard)
