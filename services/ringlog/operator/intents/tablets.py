"""Intents for tablets. Names become ids, and kinds and sequence numbers follow from the state."""

from __future__ import annotations

from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.groups import is_dead
from ringlog.kernel.tablets.resize import NONE, SPLIT
from ringlog.kernel.tablets.stages import INTRANODE, MIGRATION, REBUILD, REPAIR
from ringlog.kernel.values import Command
from ringlog.operator.intents.intents import Intent, node_id
from ringlog.protocol.effects import Draw

Place = tuple[str, int]
"""A node's name or id, and a shard."""


def move_tablet(table: str, number: int, source: Place, target: Place) -> Intent:
    """Return the intent that moves a replica within or between nodes, or rebuilds it if the source node is dead."""

    def intent(state: ClusterState, _: Draw) -> Command:
        here, there = (Shard(node_id(state, node), shard) for node, shard in (source, target))
        node = state.nodes.get(here.node)
        kind = INTRANODE if here.node == there.node else MIGRATION
        if node is not None and is_dead(node):
            kind = REBUILD
        return MigrateTablets((TabletMigration(table, number, kind.name, here, there),))

    return intent


def repair_tablets(table: str, numbers: tuple[int, ...]) -> Intent:
    """Return the intent that repairs tablets. Without numbers, all tablets of the table are repaired."""

    def intent(state: ClusterState, _: Draw) -> Command:
        tablet_map = state.tablets.get(table)
        chosen = numbers or tuple(range(tablet_map.count if tablet_map is not None else 1))
        return MigrateTablets(tuple(TabletMigration(table, number, REPAIR.name) for number in chosen))

    return intent


def explain_undone(state: ClusterState, table: str, decision: str, how: str) -> str:
    """Return why the balancer would revert a manual resize, and the table option to set instead.

    ``how``: the decision that the balancer would make.
    """
    count = state.tablets[table].count
    more, less = 2 * count, -(-count // 2)
    then = "revoke it" if how == NONE else f"{how} them again"
    if decision == SPLIT:
        why = f"{table} is too small for {more} tablets: the balancer would {then}"
        return f"{why}. Set a minimum instead, and the balancer splits: {_hint(table, 'min_tablet_count', more)}"
    why = f"{table} is too large for {less} tablets, or its minimum is higher: the balancer would {then}"
    return f"{why}. Set a maximum instead, and the balancer merges: {_hint(table, 'max_tablet_count', less)}"


def _hint(table: str, name: str, count: int) -> str:
    return f"ALTER TABLE {table} WITH tablets = {{'{name}': {count}}} (ringlog ddl FILE)"


def next_step_text(state: ClusterState, table: str, decision: str) -> str:
    """Return the condition that completes an applied decision."""
    count = state.tablets[table].count
    if decision == NONE:
        return f"{table} keeps its {count} tablets unless the balancer makes another decision"
    then = 2 * count if decision == SPLIT else -(-count // 2)
    waits = "every replica is ready" if decision == SPLIT else "the balancer has moved siblings to the same shards"
    return f"{table} has {then} tablets instead of {count} as soon as {waits}: ringlog tablet list {table}"


def resize_table(table: str, decision: str) -> Intent:
    """Return the intent of a resize decision, with the next sequence number."""

    def intent(state: ClusterState, _: Draw) -> Command:
        tablet_map = state.tablets.get(table)
        return DecideResize(table, decision, 1 if tablet_map is None else tablet_map.sequence + 1)

    return intent
