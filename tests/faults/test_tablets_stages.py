"""Registers of a table in tablets on real nodes under load, with kills in each stage of each tablet transition.

In each stage each participant is killed and restarted. A permanently dead node is in no final set of replicas. The
balancer dies with a plan that has no entry yet. No acknowledged write is lost, and one order explains all answers.

``WAYS`` is derived from the kernel's table of stages. A stage without a transition here fails this module on import.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.placement.tablets import MigrateTablets, RevertTablets, TabletMigration, TabletRevert
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.model.modes import SPLITS
from ringlog.kernel.tablets.stages import (
    KINDS,
    MIGRATION,
    REBUILD,
    REBUILD_V2,
    REPAIR,
    SALVAGE,
    STAGES,
    STREAMING,
    STREAMING_STAGES,
    WRITE_BOTH_READ_NEW,
    TransitionKind,
)
from ringlog.kernel.values import Value
from ringlog.log.kafka.topics import REQUESTS
from ringlog.protocol.balancer.balancer import ROLE as BALANCER
from ringlog.protocol.validator.core import ROLE as VALIDATOR
from ringlog.wire.requests import decode_requests
from tests.system.agents_world import until
from tests.system.nodes_world import opened
from tests.system.registers_cluster import DEADLINE_S, OPERATIONS_BETWEEN, Harm
from tests.system.registers_load import Load
from tests.system.tablets_cluster import TABLE, TABLETS, TabletsCluster, TabletWatch

from .broker import Broker
from .cost_tables import Figures
from .stages import killed_in_each

pytestmark = [pytest.mark.slow]

OPERATIONS = 60
FILLING = 1_000
SOURCE, TARGET, OTHER, COORDINATOR = "source", "target", "other", "coordinator"
"""The victims: the replica that leaves, the one that joins, one that stays; the coordinator."""


class Way(Value):
    """A transition of a kind.

    Each of ``roles`` is killed in each of its ``stages``. ``turns``: the last stage before it reverts to these; empty
    if it continues. ``between``: operations of the load during the outage.
    """

    kind: TransitionKind
    stages: tuple[str, ...]
    roles: tuple[str, ...]
    turns: str = ""
    between: int = OPERATIONS_BETWEEN


def _back_from(stage: str) -> tuple[str, ...]:
    """Return the stages of the revert."""
    back = tuple(name for name in STAGES if not any(name in kind.stages for kind in KINDS.values()))
    return back[back.index(STAGES[stage].back) :]


_TURNED, _FALLEN = _back_from(STREAMING), _back_from(WRITE_BOTH_READ_NEW)

WAYS = {
    "moved": Way(MIGRATION, MIGRATION.stages, (SOURCE, TARGET, COORDINATOR)),
    "turned back": Way(MIGRATION, _TURNED, (SOURCE, TARGET, COORDINATOR), STREAMING),
    # The target is dead already, which causes the revert; later stages belong to the transition above.
    "fallen back": Way(MIGRATION, _FALLEN[: -len(_TURNED)], (SOURCE, COORDINATOR), WRITE_BOTH_READ_NEW, 1),
    "repaired": Way(REPAIR, REPAIR.stages, (OTHER, COORDINATOR)),
    # Afterwards the tablet moves in the usual way. Without the dead node and another one there is no quorum meanwhile.
    "rebuilt": Way(
        REBUILD_V2, tuple(name for name in REBUILD_V2.stages if name in STREAMING_STAGES), (OTHER, TARGET, COORDINATOR),
        between=1,
    ),
}  # fmt: skip
SALVAGED = set(SALVAGE.stages)
"""Stages of a partition recovery only: `tests/system/test_zone_outage.py`."""

assert {stage for way in WAYS.values() for stage in way.stages} == set(STAGES) - SALVAGED, "a stage has no transition"


class Cluster(TabletsCluster):
    """The nodes, and the transitions with kills. ``figures``: a line for each transition and role."""

    figures: Figures

    def killed(self, load: Load, name: str, role: str, source: str = "") -> None:
        """Run a transition until a node of that role was killed in each stage. ``source``: the dead node."""
        way = WAYS[name]

        def hit(left: list[str], tries: int) -> set[str]:
            return self._go_way(load, way, role, left, self.on(source)[0] if source else tries % TABLETS, source)

        killed_in_each(self.figures, load, (name, role), way.stages, hit, 2 * len(way.stages), "tablets")

    def _go_way(self, load: Load, way: Way, role: str, stages: list[str], index: int, dead: str = "") -> set[str]:
        """Run one transition; return the stages with a kill."""
        source, target = self.ends_of(index, dead)
        other = next(name for name in self.nodes_of(self.tablets.tablet(index)) if name != source)
        victim = {SOURCE: source, TARGET: target, OTHER: other}.get(role, role)
        one = TabletMigration(TABLE, index, way.kind.name)
        if way.kind is not REPAIR:
            one = self.migration(index, source, target, way.kind.name)
        first = {STREAMING: [Harm(STREAMING, target)], WRITE_BOTH_READ_NEW: [Harm(way.turns, COORDINATOR)]}
        harms = [*first.get(way.turns, []), *(Harm(stage, victim) for stage in stages)]

        def turn_back(harm: Harm) -> None:
            if harm is not harms[0] or not way.turns:
                return
            if way.turns == STREAMING:
                self.submit(RevertTablets((TabletRevert(TABLE, index, "it takes too long"),)))
            else:  # only the death of the new replicas is a reason to revert while they are read
                self.nodes[target].kill()
                self.submit(DeclareDown(self.id_of(target), "killed"))

        hit = self.go(load, one, *harms, between=way.between, meanwhile=turn_back)
        there = self.nodes_of(self.tablets.tablet(index))
        if way.turns == WRITE_BOTH_READ_NEW:
            self.start_again(target)
            self.submit(DeclareUp(self.id_of(target), "it runs"))
        if way.kind is not REPAIR:
            assert (target in there) is not bool(way.turns), f"{there}: unexpected for {target}"
            assert (source in there) is bool(way.turns), f"{there}: unexpected for {source}"
        return {harm.stage for harm in hit if harm in harms and harm.victim == victim}


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path, figures: Figures) -> Iterator[Cluster]:
    with opened(Cluster, broker.info, tmp_path) as made:
        made.figures = figures
        yield made


@pytest.mark.parametrize("way", [name for name in WAYS if name != "rebuilt"])
def test_each_participant_is_killed_in_each_stage(cluster: Cluster, way: str) -> None:
    cluster.found("n1", "n2", "n3", "n4", filling=FILLING)
    with cluster.load() as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        for role in WAYS[way].roles:
            cluster.killed(load, way, role)
        cluster.conclude(load, FILLING, OPERATIONS)


def test_a_permanently_dead_node_is_in_no_final_set(cluster: Cluster) -> None:
    cluster.found("n1", "n2", "n3", "n4", "n5", "n6", filling=FILLING)
    with cluster.load() as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        ways = (("target", STREAMING), ("source", STREAMING), ("target", WRITE_BOTH_READ_NEW))
        for (role, stage), rebuilder in zip(ways, WAYS["rebuilt"].roles, strict=True):
            victim = killed_for_good(cluster, load, role, stage)
            print(f"{role} {victim} never comes back from {stage}; {load.total()} operations", flush=True)
            cluster.killed(load, "rebuilt", rebuilder, victim)
            for index in cluster.on(victim):
                to = cluster.ends_of(index, victim)[1]
                cluster.go(load, cluster.migration(index, victim, to, REBUILD.name))
            assert not cluster.on(victim)
        cluster.conclude(load, FILLING, OPERATIONS)


def killed_for_good(cluster: Cluster, load: Load, role: str, stage: str) -> str:
    """Move tablet 0 and kill a node permanently in that stage; return its name after the others have finished."""
    source, target = cluster.ends_of(0)
    victim = source if role == "source" else target
    watch = TabletWatch(cluster, 0, (Harm(stage, victim),))
    cluster.submit(MigrateTablets((cluster.migration(0, source, target),)))
    until(lambda: watch.away, f"{victim} to be killed", DEADLINE_S)
    dead = cluster.id_of(victim)
    cluster.nodes.pop(victim).kill()
    cluster.submit(DeclareDown(dead, "killed for good"))
    cluster.go_on(load, OPERATIONS, f"without {victim}")
    until(watch.ended, "the tablet to settle", DEADLINE_S)
    watch.close()
    if (role, stage) == ("target", STREAMING):
        assert target not in cluster.nodes_of(cluster.tablets.tablet(0)), "the migration was reverted"
    return victim


def applied_ids(cluster: Cluster) -> set[str]:
    return {entry.request_id for entry in cluster.agents.applied()}


def test_the_balancer_dies_with_a_plan_without_an_entry(cluster: Cluster) -> None:
    """The balancer dies after it requested migrations that no validator has read.

    The plan is rejected if the next balancer is active before the validator. Otherwise it is applied although its
    balancer is dead. In both cases no tablet moves twice.
    """
    cluster.found("n1", "n2", "n3", filling=FILLING)
    cluster.submit(PauseChanges((SPLITS,), "", "four tablets are few"))
    with cluster.load() as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        for newcomer, moved, returning in (("n4", 3, (BALANCER, VALIDATOR)), ("n5", 5, (VALIDATOR, BALANCER))):
            cluster.begin(newcomer)
            cluster.await_normal(newcomer)
            orphan = killed_with_a_plan(cluster)
            cluster.go_on(load, OPERATIONS, "without a validator")
            assert not cluster.tablets.transitions
            for role in returning:
                cluster.agents.start(role)
                if returning[0] == role == VALIDATOR:  # it reads the plan before a new balancer is active
                    until(lambda plan=orphan: plan in applied_ids(cluster), "the plan to be applied", DEADLINE_S)
            until(lambda name=newcomer: is_spread(cluster, name), "the tablets to spread", DEADLINE_S)
            cluster.go_on(load, OPERATIONS, "when they have spread")
            applied = cluster.agents.applied()
            plans = {one.request_id: one.command for one in applied if isinstance(one.command, MigrateTablets)}
            codes = {one.code for one in cluster.agents.results() if one.request_id == orphan}
            expected = (True, set()) if returning[0] == VALIDATOR else (False, {"plan_outdated"})
            assert (orphan in plans, codes) == expected, "only a repeated request is possible"
            moves = [one for plan in plans.values() for one in plan.migrations]
            between = [one for one in moves if one.from_ and one.to and one.from_.node != one.to.node]
            assert len(between) == moved, "no tablet moves more than necessary"
            cluster.agents.running(BALANCER).stop()
        cluster.conclude(load, FILLING, OPERATIONS)


def killed_with_a_plan(cluster: Cluster) -> str:
    """Kill a balancer after it requested migrations without a validator; return the id of its request."""
    known = plan_requests(cluster)
    cluster.agents.running(VALIDATOR).kill()
    balancer = cluster.agents.start(BALANCER)
    (request,) = until(lambda: plan_requests(cluster) - known, "a plan", DEADLINE_S)
    balancer.kill()
    return request


def plan_requests(cluster: Cluster) -> set[str]:
    """Return the balancers' requests for migrations."""
    found = [one for record in cluster.agents.records(REQUESTS) for one in decode_requests(record) if one is not None]
    return {one.request_id for one in found if one.kind == MigrateTablets.__name__ and BALANCER in one.submitter}


def is_spread(cluster: Cluster, newcomer: str) -> bool:
    held = [len(cluster.on(name)) for name in cluster.nodes]
    return not cluster.tablets.transitions and max(held) - min(held) <= 1 and bool(cluster.on(newcomer))
