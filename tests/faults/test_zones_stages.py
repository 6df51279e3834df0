"""Registers of a table that a zone places, on real nodes under load, while its partitions move and are turned back. At
each kind of entry that leads a rebalance on, each of those who take part is killed, and comes back: the node that
leaves, the one that comes, one that stays, the rebalancer. Nothing that was acknowledged is lost, and one order
explains all answers.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringlog.client.data.coordinator import Coordinator
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.placement.rebalances import CancelRebalance
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.values import CdcOptions, Column
from ringlog.kernel.zones.change import partitions_of
from ringlog.operator.intents.replication import in_zone
from ringlog.protocol.rebalancer.core import ROLE as REBALANCER
from tests.system.agents_world import AgentsWorld, until
from tests.system.registers_cluster import DEADLINE_S, Harm, RegistersCluster, Watch
from tests.system.registers_load import Load

from .broker import Broker
from .figures import Figures

pytestmark = [pytest.mark.slow]

ZONE, TABLE, PARTITIONS = "stock", "stock.parts", 4
OPERATIONS, FILLING, ROUNDS_MAX = 60, 400, 8
ALL, FIRST, LAST = ("n1", "n2", "n3", "n4"), "n1", "n4"
"""All partitions are on the nodes but the first, or on those but the last."""
SOURCE, TARGET, OTHER = "source", "target", "other"
ROLES = (SOURCE, TARGET, OTHER, REBALANCER)


@dataclass(frozen=True, slots=True)
class Way:
    """What becomes of a move, and the kinds of entries at which somebody is killed."""

    kinds: tuple[str, ...]
    is_cancelled: bool


WAYS = {
    "moved": Way(("TriggerRebalance", "MigrateTablets", "AdvanceTablets", "SwitchStable"), is_cancelled=False),
    "turned back": Way(("CancelRebalance", "FinishCancel"), is_cancelled=True),
}


class ZoneWatch(Watch):
    """Follows the zone until it is at rest. The stage of a harm is the kind of an entry."""

    def stage(self, state: ClusterState) -> str:
        """In none."""
        return ""

    def _follow(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, _: int
    ) -> None:
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry) and before.zones is not None:
            if after.zone_partitions is not before.zone_partitions:
                self.operation = ZONE
            self._harm(item.kind)

    def ended(self) -> bool:
        """True once all partitions have acted on what was asked for, and rest with their data."""
        state = self._world.agents.state
        zone = state.zones[ZONE]
        acted = all(one.change >= zone.changed and not one.pending for one in partitions_of(state, zone))
        return bool(self.operation) and acted and not state.tablets[TABLE].transitions


class Cluster(RegistersCluster):
    """Four nodes, a zone on three of them, and a table that it places."""

    space = TABLE

    def __init__(self, agents: AgentsWorld, folder: Path, figures: Figures) -> None:
        self.figures = figures
        super().__init__(agents, folder)

    def found(self) -> None:
        self.agents.start(REBALANCER)
        for name in ALL:
            self.begin(name)
        self.await_normal(*ALL)
        self.submit(ChangeSettings((("zone_moves_max", 1),)))
        self.submit(CreateZone(ZONE, self.ids_without(LAST), PARTITIONS, 3, filter=without(LAST)))
        keyspace, _, table = TABLE.partition(".")
        self.submit(CreateKeyspace(keyspace, in_zone(ZONE)))
        columns = (Column("part", "text"),)
        self.submit(CreateTable(keyspace, table, str(uuid.uuid4()), columns, ("part",), (), CdcOptions()))
        self.fill(FILLING)

    def ids_without(self, name: str) -> tuple[str, ...]:
        return tuple(sorted(self.id_of(one) for one in ALL if one != name))

    def is_on(self, name: str) -> set[bool]:
        """Whether a node has the tablets of the table."""
        tablets = self.agents.state.tablets[TABLE]
        return {self.id_of(name) in {one.node for one in tablet.replicas} for tablet in tablets}

    def ask_without(self, name: str) -> None:
        """The zone is to have all nodes but this one."""
        self.submit(AlterZone(ZONE, filter=without(name), nodes=self.ids_without(name)))

    def killed(self, load: Load, name: str, role: str) -> None:
        """The zone goes a way until somebody of that role was killed at each kind of entry."""
        way, begin, before = WAYS[name], time.monotonic(), (load.total(), load.timed_out())
        left, rounds = list(way.kinds), 0
        while left:
            assert rounds < ROUNDS_MAX, f"{name}: {role} was not hit at {left}"
            hit = self._go_way(load, way, role, left)
            left = [kind for kind in left if kind not in hit]
            rounds += 1
        counts = (load.total() - before[0], load.timed_out() - before[1])
        passed = time.monotonic() - begin
        self.figures.add_way(
            name, role, stages=len(way.kinds), tries=rounds, time_s=passed, counts=counts, table="zones"
        )

    def _go_way(self, load: Load, way: Way, role: str, kinds: list[str]) -> set[str]:
        """One move of all partitions; the kinds of entries at which somebody was hit."""
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
            until(rest.ended, "the zone to rest", DEADLINE_S)
            rest.close()
        else:
            assert (self.is_on(source), self.is_on(target)) == ({False}, {True})
        return {harm.stage for harm in hit}

    def _are_where_they_were_left(self, source: str) -> None:
        """Who was turned back is on ``source``; where the operator came too late it is not."""
        state = self.agents.state
        for one in partitions_of(state, state.zones[ZONE]):
            tablet = state.tablets[TABLE].tablet(one.number)
            assert (self.id_of(source) in {replica.node for replica in tablet.replicas}) is bool(one.reason), one

    def _cancel_all(self, watch: ZoneWatch) -> None:
        """An operator turns back whatever is pending, once its data are on the way."""
        while not watch.ended():
            until(lambda: watch.ended() or self._on_the_way(), "data to be on the way", DEADLINE_S)
            for one in self._on_the_way():
                self.agents.client.submit(CancelRebalance(ZONE, one.number, one.revisions.pending, "too early"))

    def _on_the_way(self) -> list[ZonePartition]:
        """The partitions whose data move, and that nobody has turned back."""
        state = self.agents.state
        pending = [one for one in partitions_of(state, state.zones[ZONE]) if one.pending and one.cancel is None]
        return [one for one in pending if one.number in state.tablets[TABLE].transitions]

    def conclude(self, load: Load) -> None:
        """What was acknowledged is there."""
        self.go_on(load, OPERATIONS, "at the end")
        load.stop()
        with Coordinator(self.agents.client.replica, "dc1") as coordinator:
            load.check(coordinator)
            self.check_filling(coordinator, FILLING)
        print(dict(load.told), flush=True)


def without(name: str) -> str:
    return f'$[?(@.name != "{name}")]'


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path, figures: Figures) -> Iterator[Cluster]:
    with closing(Cluster(AgentsWorld(broker.info, f"z{uuid.uuid4().hex[:10]}", tmp_path), tmp_path, figures)) as made:
        yield made


def test_everybody_is_killed_at_each_step_of_a_rebalance(cluster: Cluster) -> None:
    cluster.found()
    with Load(cluster.agents.stack, cluster.agents.cluster, cluster.folder, space=TABLE) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        for way in WAYS:
            for role in ROLES:
                cluster.killed(load, way, role)
        cluster.conclude(load)
