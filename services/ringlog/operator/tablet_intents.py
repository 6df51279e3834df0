"""What operators ask of tablets, as commands: names become ids, kinds and numbers follow from the state."""

from __future__ import annotations

from ringlog.kernel.commands.resizes import DecideResize
from ringlog.kernel.commands.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.state import ClusterState
from ringlog.kernel.tablets.groups import is_dead
from ringlog.kernel.tablets.stages import INTRANODE, MIGRATION, REBUILD, REPAIR
from ringlog.kernel.values import Command
from ringlog.operator.intents import Intent, node_id
from ringlog.protocol.draw import Draw

Place = tuple[str, int]
"""Name or id of a node, and a shard."""


def move_tablet(table: str, number: int, source: Place, target: Place) -> Intent:
    """A replica moves; within a node, between nodes, or made anew where its node is dead."""

    def intent(state: ClusterState, _: Draw) -> Command:
        here, there = (Shard(node_id(state, node), shard) for node, shard in (source, target))
        node = state.nodes.get(here.node)
        kind = INTRANODE if here.node == there.node else MIGRATION
        if node is not None and is_dead(node):
            kind = REBUILD
        return MigrateTablets((TabletMigration(table, number, kind.name, here, there),))

    return intent


def repair_tablets(table: str, numbers: tuple[int, ...]) -> Intent:
    """Tablets are repaired; none are named: all."""

    def intent(state: ClusterState, _: Draw) -> Command:
        known = state.tablets.get(table)
        chosen = numbers or tuple(range(known.count if known is not None else 1))
        return MigrateTablets(tuple(TabletMigration(table, number, REPAIR.name) for number in chosen))

    return intent


def resize_table(table: str, decision: str) -> Intent:
    """A decision, under the number that follows."""

    def intent(state: ClusterState, _: Draw) -> Command:
        known = state.tablets.get(table)
        return DecideResize(table, decision, 1 if known is None else known.sequence + 1)

    return intent
