"""Registers of a table in a zone on real nodes under load, while partitions move and are reverted.

At each kind of entry of a rebalance each participant is killed and restarted: the node that leaves, the one that joins,
one that stays, the rebalancer. No acknowledged write is lost, and one order explains all answers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.rebalances import CancelRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.values import Value
from ringlog.kernel.zones.change import partitions_of
from ringlog.protocol.rebalancer.core import ROLE as REBALANCER
from tests.system.agents_world import until
from tests.system.nodes_world import opened
from tests.system.registers_cluster import DEADLINE_S, Harm, RegistersCluster, Watch
from tests.system.registers_load import Load

from .broker import Broker
from .cost_tables import Figures
from .stages import killed_in_each

pytestmark = [pytest.mark.slow]

ZONE, TABLE, PARTITIONS = "stock", "stock.parts", 4
OPERATIONS, FILLING, ROUNDS_MAX = 60, 400, 8
ALL, FIRST, LAST = ("n1", "n2", "n3", "n4"), "n1", "n4"
"""Placements: on all nodes, without the first node, or without the last node."""
SOURCE, TARGET, OTHER = "source", "target", "other"
ROLES = (SOURCE, TARGET, OTHER, REBALANCER)


class Way(Value):
    """The outcome of a move, and the kinds of entries with a kill."""

    kinds: tuple[str, ...]
    is_cancelled: bool


WAYS = {
    "moved": Way(("TriggerRebalance", "MigrateTablets", "AdvanceTablets", "SwitchStable"), is_cancelled=False),
    "turned back": Way(("CancelRebalance", "FinishCancel"), is_cancelled=True),
}


class ZoneWatch(Watch):
    """Follows the zone until it has settled. The stage of a kill is the kind of an entry."""

    def stage(self, state: ClusterState) -> str:
        """No stage."""
        return ""

    def _follow(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, _: int
    ) -> None:
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry) and before.zones is not None:
            if after.zone_partitions is not before.zone_partitions:
                self.operation = ZONE
            self._harm(item.kind)

    def ended(self) -> bool:
        """True once all partitions have applied the requested change and have all their data."""
        state = self._world.agents.state
        zone = state.zones[ZONE]
        acted = all(one.change >= zone.changed and not one.pending for one in partitions_of(state, zone))
        return bool(self.operation) and acted and not state.tablets[TABLE].transitions


class Cluster(RegistersCluster):
    """Four nodes, a zone on three of them, and a table in the zone."""

    figures: Figures

    def found(self) -> None:
        self.agents.start(REBALANCER)
        self.begin_all(*ALL)
        self.submit(ChangeSettings((("zone_moves_max", 1),)))
        self.submit(CreateZone(ZONE, self.ids_without(LAST), PARTITIONS, 3, filter=without(LAST)))
        self.place_table(TABLE, ZONE)
        self.fill(FILLING)

    def ids_without(self, name: str) -> tuple[str, ...]:
        return tuple(sorted(self.id_of(one) for one in ALL if one != name))

    def is_on(self, name: str) -> set[bool]:
        """Return True if a node has the tablets of the table."""
        tablets = self.agents.state.tablets[TABLE]
        return {self.id_of(name) in {one.node for one in tablet.replicas} for tablet in tablets}

    def ask_without(self, name: str) -> None:
        """Request a zone on all nodes but this one."""
        self.submit(AlterZone(ZONE, filter=without(name), nodes=self.ids_without(name)))

    def killed(self, load: Load, name: str, role: str) -> None:
        """Repeat a move until a node of that role was killed at each kind of entry."""
        way = WAYS[name]

        def hit(left: list[str], _: int) -> set[str]:
            return self._go_way(load, way, role, left)

        killed_in_each(self.figures, load, (name, role), way.kinds, hit, ROUNDS_MAX, "zones")

    def _go_way(self, load: Load, way: Way, role: str, kinds: list[str]) -> set[str]:
        """Run one move of all partitions; return the kinds of entries with a kill."""
        source, target = (FIRST, LAST) if self.is_on(FIRST) == {True} else (LAST, FIRST)
        victim = {SOURCE: source, TARGET: target, OTHER: "n2"}.get(role, role)
        harms = [Harm(kind, victim) for kind in kinds]
        watch = ZoneWatch(self, tuple(harms))
        operator = threading.Thread(target=self._cancel_all, args=(watch,), daemon=True)

        def begin() -> None:
            self.ask_without(source)
            if way.is_cancelled:
                operator.start()

        hit = self.movement(load, begin, *harms, watch=watch)
        if way.is_cancelled:
            operator.join(60)
            self._are_where_they_were_left(source)
            self.ask_without(target)
            rest = ZoneWatch(self, ())
            rest.operation = ZONE
            until(rest.ended, "the zone to have no pending step", DEADLINE_S)
            rest.close()
        else:
            assert (self.is_on(source), self.is_on(target)) == ({False}, {True})
        return {harm.stage for harm in hit}

    def _are_where_they_were_left(self, source: str) -> None:
        """A reverted partition is on ``source``; a partition with a late cancel is not."""
        state = self.agents.state
        for one in partitions_of(state, state.zones[ZONE]):
            tablet = state.tablets[TABLE].tablet(one.number)
            assert (self.id_of(source) in {replica.node for replica in tablet.replicas}) is bool(one.reason), one

    def _cancel_all(self, watch: ZoneWatch) -> None:
        """Cancel all pending partitions after their data started to move."""
        while not watch.ended():
            until(lambda: watch.ended() or self._on_the_way(), "a tablet to migrate", DEADLINE_S)
            for one in self._on_the_way():
                self.agents.client.submit(CancelRebalance(ZONE, one.number, one.revisions.pending, "too early"))

    def _on_the_way(self) -> list[ZonePartition]:
        """Return the partitions whose data move and that no operator has cancelled."""
        state = self.agents.state
        pending = [one for one in partitions_of(state, state.zones[ZONE]) if one.pending and one.cancel is None]
        return [one for one in pending if one.number in state.tablets[TABLE].transitions]


def without(name: str) -> str:
    return f'$[?(@.name != "{name}")]'


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path, figures: Figures) -> Iterator[Cluster]:
    with opened(Cluster, broker.info, tmp_path) as made:
        made.figures = figures
        yield made


def test_each_participant_is_killed_at_each_step(cluster: Cluster) -> None:
    cluster.found()
    with Load(cluster.agents.stack, cluster.agents.cluster, cluster.folder, space=TABLE) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        for way in WAYS:
            for role in ROLES:
                cluster.killed(load, way, role)
        cluster.conclude(load, FILLING, OPERATIONS)
