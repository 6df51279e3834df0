"""Tablets: tables in tablets are created, moved, repaired, reverted and resized. The coordinator advances them."""

from __future__ import annotations

from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import (
    AdvanceTablets,
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletAdvance,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import ASKED, next_stage
from ringlog.kernel.values import Witness
from ringlog_sim.checks.base import Family
from ringlog_sim.checks.placement.balancer import BalancerCheck
from ringlog_sim.checks.placement.tablets import TabletsCheck
from ringlog_sim.devices.world import Chance


def _picked(state: ClusterState, chance: Chance) -> tuple[TabletMap, Tablet] | None:
    """Return a tablet, mostly one of a table with several."""
    maps = [tablets for _, tablets in in_order(state.tablets)]
    if not maps:
        return None
    tablets = chance.pick(maps)
    return tablets, tablets.tablet(chance.below(tablets.count))


def _migrate(state: ClusterState, chance: Chance) -> MigrateTablets | None:
    """Return a move of a replica to a shard or within its node, a rebuild of a dead one, or sometimes an
    invalid one.
    """
    found = _picked(state, chance)
    if found is None:
        return None
    tablets, tablet = found
    source = chance.pick(list(tablet.replicas))
    target = state.nodes[chance.pick([node.id for _, node in in_order(state.nodes)])]
    rebuild = ("rebuild", "rebuild_v2")[tablet.index % 2]
    kind = rebuild if state.nodes[source.node].down else "migration"
    if chance.happens(0.2):
        kind, target = "intranode_migration", state.nodes[source.node]
    elif chance.happens(0.1):
        kind = chance.pick(list(ASKED))
    if kind == "repair":
        return MigrateTablets((TabletMigration(tablets.table, tablet.index, kind),))
    to = Shard(target.id, chance.below(target.shards + 1))
    from_ = None if chance.happens(0.05) else Shard(source.node, source.shard)
    return MigrateTablets((TabletMigration(tablets.table, tablet.index, kind, from_, to),))


def _advance(state: ClusterState, chance: Chance) -> AdvanceTablets | None:
    """Return a wrong coordinator's step: the next stage, with invented witnesses and no reports."""
    running = list(transitions(state))
    if not running:
        return None
    tablets, transition = chance.pick(running)
    witnesses = tuple(Witness(node, transition.stage_epoch - 1, state.epoch) for node, _ in in_order(state.nodes))
    step = TabletAdvance(tablets.table, transition.tablet, chance.pick([next_stage(transition), "use_new"]))
    return AdvanceTablets((step,), witnesses)


def _revert(state: ClusterState, chance: Chance) -> RevertTablets | None:
    running = list(transitions(state))
    if running and chance.happens(0.9):
        tablets, transition = chance.pick(running)
        return RevertTablets((TabletRevert(tablets.table, transition.tablet, "changed my mind"),))
    found = _picked(state, chance)
    return None if found is None else RevertTablets((TabletRevert(found[0].table, found[1].index, "why not"),))


def _decide(state: ClusterState, chance: Chance) -> DecideResize | None:
    found = _picked(state, chance)
    if found is None or found[0].count > 64:
        return None
    tablets = found[0]
    number = tablets.sequence + chance.pick([1, 1, 1, 2])
    return DecideResize(tablets.table, chance.pick(["split", "merge", "none"]), number)


FAMILY = Family(
    name="tablets",
    commands={
        "MigrateTablets": (6, _migrate),
        "AdvanceTablets": (1, _advance),
        "RevertTablets": (1, _revert),
        "DecideResize": (1, _decide),
        "FinishResize": None,
    },
    checks=(TabletsCheck, BalancerCheck),
)
