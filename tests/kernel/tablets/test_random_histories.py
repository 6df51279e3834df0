"""First allocations of tablets for any shape of cluster, and random histories against a naive model, with planted
bugs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.placement.tablets import RevertTablets, Shard, TabletMigration, TabletRevert
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join, Leave
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, in_order
from ringlog.kernel.movements import tablet_admission as admission
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets import gates, groups, resize, stages, steps
from ringlog.kernel.tablets import mutual_exclusion as track
from ringlog.kernel.tablets.stages import KINDS, STAGES, Side
from ringlog.kernel.values import Command, DatacenterReplication, Replication, TabletOptions, Witness, replace
from ringlog.protocol.coordinator.tablet_steps import tablet_reports, tablet_steps
from ringlog_sim.checks.placement.tablets import TabletModel
from ringlog_sim.devices.world import Chance
from ringlog_sim.families.tablets import FAMILY
from tests.kernel.entries import applied, entry
from tests.kernel.tablets import clusters
from tests.kernel.tablets.clusters import TABLE, factor, places, racks

DRAWS = [(weight, draw) for weight, draw in filter(None, FAMILY.commands.values())]


def start(model: TabletModel) -> ClusterState:
    state = clusters.with_table(applied(clusters.three_racks(), clusters.register(8)), clusters.factor(3), 4)
    model.take(clusters.create_table(tablets=TabletOptions(4)), EMPTY_STATE, state)
    second = clusters.create_table("u", TabletOptions(3), 2)
    after = applied(state, second)
    model.take(second, state, after)
    return after


def drawn(state: ClusterState, random: Random) -> list[Command]:
    """Draw the commands of an operator, of node failures, or most often of the coordinator."""
    dice = random.random()
    if dice < 0.25:
        weights = [weight for weight, _ in DRAWS]
        (_, draw) = random.choices(DRAWS, weights)[0]
        found = draw(state, Chance(random.getrandbits(32), "tablets"))
        return [found] if found is not None else []
    node = random.choice(sorted(state.nodes))
    if dice < 0.33:
        down = [one.id for one in state.nodes.values() if one.down]
        if down and random.random() < 0.7:
            return [DeclareUp(min(down), "")]
        comers = [one.node for _, moving in track.transitions(state) for one in moving.next]
        return [DeclareDown(random.choice([node, *sorted(comers)]), "")] if not down else []
    flying = in_flight(state)
    if dice < (0.5 if flying else 0.35):
        if flying and flying[0].stage == "requested" and random.random() < 0.3:
            return [AdvanceOperation(flying[0].id, "prepared", clusters.witnesses(state))]
        if flying:
            return [CancelOperation(flying[0].id, "")]
        return [
            Leave(node) if random.random() < 0.5 else Join(clusters.node_id(8), (random.getrandbits(40),), bytes(16))
        ]
    if 0.35 < dice < 0.38:
        return [AlterKeyspace("ks", clusters.factor(random.choice([2, 3, 4])))]
    if 0.38 < dice < 0.45:
        place = Shard(node, random.randrange(2))
        index = random.randrange(state.tablets[clusters.TABLE].count)
        ends = [(None, place), (place, None)]
        held = [Shard(*one) for one in clusters.places(clusters.tablet(state, index))]
        from_, to = random.choice([*ends, (random.choice(held), None)])
        one = TabletMigration(clusters.TABLE, index, random.choice(["rebuild", "rebuild_v2"]), from_, to)
        return [clusters.MigrateTablets((one,))]
    alive = [one.id for _, one in in_order(state.nodes) if not one.down and random.random() < 0.9]
    witnesses = [Witness(one, state.epoch - random.choice([0, 0, 1, 3]), state.epoch) for one in alive]
    said = [report for one in alive for report in tablet_reports(state, one)]
    return list(tablet_steps(state, witnesses, said))


def live(seed: int, length: int = 250) -> list[str]:
    """Return the first failure of a random history."""
    random, wrong = Random(seed), []
    model = TabletModel(wrong.append)
    state = start(model)
    for _ in range(length):
        for command in drawn(state, random):
            folded = fold(state, entry(state, command))
            if folded.outcome.kind is OutcomeKind.HALT:
                return [folded.outcome.detail]
            if folded.outcome.kind is OutcomeKind.APPLIED:
                before, state = state, folded.state
                model.take(command, before, state)
                wrong += [f"{one.invariant}: {one.detail}" for one in violations(state, before)]
        if wrong:
            return wrong
    return wrong


@pytest.mark.parametrize("seed", range(16))
def test_a_random_history_has_no_failure(seed: int) -> None:
    assert live(seed) == []


def test_random_histories_cover_all_stages() -> None:
    """Some history enters each stage of each kind, and some tables are split and merged."""
    seen: set[str] = set()
    for seed in range(60):
        random = Random(seed)
        state = start(TabletModel(seen.add))
        for _ in range(250):
            for command in drawn(state, random):
                folded = fold(state, entry(state, command))
                if folded.outcome.kind is OutcomeKind.APPLIED:
                    state = folded.state
                    seen.update(f"{t.kind}: {t.stage}" for _, t in track.transitions(state))
                    seen.update(["resized"] if state.tablets[clusters.TABLE].made > 20 else [])
    assert "resized" in seen
    wanted = {f"{kind}: {stage}" for kind in stages.ASKED for stage in stages.KINDS[kind].stages}
    wanted |= {f"migration: {stage}" for stage in ("cleanup_target", "revert_migration", stages.FALLBACK)}
    assert wanted <= seen, sorted(wanted - seen)


Plant = Callable[[pytest.MonkeyPatch], None]


def row(name: str, **changes: Any) -> Plant:
    """Plant a change of one row of the stage table."""
    return lambda patch: patch.setitem(STAGES, name, replace(STAGES[name], **changes))


def function(module: Any, name: str, made: Callable[[Any], Any]) -> Plant:
    """Plant a change of a function in its module and its importers."""
    from ringlog.kernel.commands.placement import resizes, tablets

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(module, name)
        for other in (module, resizes, tablets, admission, gates, groups, resize, steps, stages):
            if getattr(other, name, None) is right:
                patch.setattr(other, name, made(right))

    return plant


def _late_since(right: Any) -> Any:
    """Plant a bug: a new replica is a member from the first stage."""

    def entered(tablet: Any, stage: str, epoch: int, reason: str = "") -> Any:
        step = right(tablet, stage, epoch, reason)
        if isinstance(step, steps.SettledTablet):
            return replace(step, replicas=tuple(replace(one, since=1) for one in step.replicas))
        return step

    return entered


PLANTED: dict[str, Plant] = {
    "allow writes both": row("allow_write_both_read_old", writes=Side.BOTH),
    "write_both_read_old writes old": row("write_both_read_old", writes=Side.PREV),
    "streaming writes new": row("streaming", writes=Side.NEXT),
    "streaming is no work": row("streaming", work=stages.StageWork.NONE),
    "rebuild_repair reads new": row("rebuild_repair", reads=Side.NEXT),
    "write_both_read_new reads old": row("write_both_read_new", reads=Side.PREV),
    "write_both_read_new turns back to cleanup_target": row("write_both_read_new", back="cleanup_target"),
    "use_new writes both": row("use_new", writes=Side.BOTH),
    "use_new turns back": row("use_new", back="cleanup_target"),
    "cleanup is no work": row("cleanup", work=stages.StageWork.NONE),
    "end_migration settles as before": row("end_migration", settles=Side.PREV),
    "fallback writes old": row("write_both_read_old_fallback_cleanup", writes=Side.PREV),
    "cleanup_target is no work": row("cleanup_target", work=stages.StageWork.NONE),
    "revert_migration settles as next": row("revert_migration", settles=Side.NEXT),
    "repair is no work": row("repair", work=stages.StageWork.NONE),
    "gates are open": function(gates, "is_open", lambda _: lambda _unmet: True),
    "who comes need not know": function(gates, "_must", lambda _: lambda _tablet, _nodes: ()),
    "members since too early": function(steps, "entered", _late_since),
    "operations are no reason to wait": function(track, "may_begin", lambda _: lambda _state: None),
    "no limit to where replicas go": function(admission, "_bad_place", lambda _: lambda *_: None),
    "separated siblings merge": function(resize, "separated_pair", lambda _: lambda _tablets: None),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most sixty histories find the bug."""
    PLANTED[name](monkeypatch)
    assert any(live(seed) for seed in range(60))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 4))
def test_equal_racks_share_equally(rack_count: int, per_rack: int, shards: int, count: int, replicas: int) -> None:
    nodes = [
        clusters.register(1 + rack * per_rack + number, f"r{rack}", shards=shards)
        for rack in range(rack_count)
        for number in range(per_rack)
    ]
    replicas = min(replicas, len(nodes))
    state = clusters.with_table(clusters.cluster(*nodes), factor(replicas), count)
    by_node: Counter[str] = Counter()
    by_shard: Counter[tuple[str, int]] = Counter()
    for tablet in state.tablets[TABLE]:
        assert len({node for node, _ in places(tablet)}) == replicas
        in_rack = Counter(state.nodes[node].rack for node, _ in places(tablet))
        assert max(in_rack.values()) - min((*in_rack.values(), replicas // rack_count)) <= 1
        by_node.update(node for node, _ in places(tablet))
        by_shard.update(places(tablet))
    loads = [by_node[one.id] for one in nodes]
    assert max(loads) - min(loads) <= 2
    for one in nodes:
        on_shards = [by_shard[one.id, shard] for shard in range(shards)]
        assert max(on_shards) - min(on_shards) <= 1
    assert violations(state) == ()


def test_a_list_of_racks_has_one_replica_in_each() -> None:
    state = clusters.with_table(clusters.three_racks(), racks("r1", "r3"), 16)
    for tablet in state.tablets[TABLE]:
        assert sorted(state.nodes[node].rack for node, _ in places(tablet)) == ["r1", "r3"]


def test_each_datacenter_has_its_own_replicas() -> None:
    nodes = [clusters.register(number, f"r{number % 2}", f"dc{number % 3 // 2 + 1}") for number in range(1, 9)]
    wanted = Replication("tablets", 3, (DatacenterReplication("dc1", 2), DatacenterReplication("dc2", 1)))
    state = clusters.with_table(clusters.cluster(*nodes), wanted, 16)
    for tablet in state.tablets[TABLE]:
        found = Counter(state.nodes[node].datacenter for node, _ in places(tablet))
        assert found == {"dc1": 2, "dc2": 1}


def test_a_second_table_uses_other_nodes() -> None:
    """Three tablets of one replica are on three of six nodes, and the next three on the other nodes."""
    state = clusters.with_table(clusters.three_racks(), factor(1), 3)
    state = applied(state, clusters.create_table("u", TabletOptions(3), 2))
    held = Counter(node for table in (TABLE, "ks.u") for one in state.tablets[table] for node, _ in places(one))
    assert set(held.values()) == {1}
    assert len(held) == 6


def with_another(state: ClusterState) -> Counter[str]:
    """Create a second table during a move, and return the tablets of each node afterwards."""
    state = clusters.settled(applied(state, clusters.create_table("u", TabletOptions(6), 2)))
    return Counter(node for table in (TABLE, "ks.u") for one in state.tablets[table] for node, _ in places(one))


@pytest.mark.parametrize("stage", KINDS["migration"].stages)
def test_migrating_tablets_count_at_their_target(stage: str) -> None:
    """Each of six nodes has a tablet and gets a second one. During this, one tablet moves to a neighbour."""
    state = clusters.with_table(clusters.three_racks(), factor(1), 6)
    held = with_another(clusters.started(state, clusters.migration(state), stage))
    assert [held[node] for node in state.nodes] == [2] * 6


@pytest.mark.parametrize("stage", ["allow_write_both_read_old", "write_both_read_old", "streaming"])
def test_a_reverted_tablet_counts_at_its_source(stage: str) -> None:
    state = clusters.with_table(clusters.three_racks(), factor(1), 6)
    state = clusters.started(state, clusters.migration(state), stage)
    held = with_another(applied(state, RevertTablets((TabletRevert(TABLE, 0, "lost its disk"),))))
    assert [held[node] for node in state.nodes] == [2] * 6


def test_leaving_and_dead_nodes_get_no_tablets() -> None:
    state = clusters.three_racks()
    down = clusters.node_id(1)
    state = clusters.with_table(applied(state, DeclareDown(down, "burnt"), Leave(clusters.node_id(2))), factor(2), 8)
    holders = {node for one in state.tablets[TABLE] for node, _ in places(one)}
    assert holders.isdisjoint({down, clusters.node_id(2)})


def test_the_number_of_tablets_follows_the_shards() -> None:
    """Six nodes of two shards, three replicas, ten on each shard: 40, rounded up to a power of two."""
    state = applied(clusters.three_racks(), CreateKeyspace("ks", factor(3)), clusters.create_table())
    assert state.tablets[TABLE].count == 64
