"""Each invariant can fail: a planted state breaks it, and valid states break none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from immutables import Map

from ringlog.kernel import cardinality_limits as counts
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    parts_of,
)
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.commands.placement.zones import CreateZone
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.schema.user_types import CreateType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.generations.describe import generate_for, ranges_digest, to_prepare
from ringlog.kernel.invariants.check import INVARIANTS, violations
from ringlog.kernel.invariants.shape import BrokenInvariant
from ringlog.kernel.model.modes import Feature, LogBound, Pause, Recovery, ServiceGoal, ServiceMember
from ringlog.kernel.model.plans import StagedPlan
from ringlog.kernel.model.principals import Grant, Principal
from ringlog.kernel.model.state import ClusterState, GlobalRequest, PastTtl, Replica, Source
from ringlog.kernel.model.tablet_map import TabletReplica, with_settled
from ringlog.kernel.model.tablet_streams import DescribedTable
from ringlog.kernel.model.zones import ZoneStep
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.tablets.stages import nodes_of
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    DatacenterReplication,
    Replication,
    StreamReport,
    TabletOptions,
    TypeField,
    Witness,
    replace,
)
from tests.kernel.entries import NODES, SEED, TABLE, applied, founded, node, uuid

JOINING = NODES[3]
KEY = "simple:2"


def _advanced(state: ClusterState) -> ClusterState:
    """Advance the operation in flight by one step, with all acknowledgements."""
    (operation,) = in_flight(state)
    if operation.stage == "commit_cdc_generation":
        wanted = to_prepare(state)
        assert wanted is not None
        ranges = generate_for(state, wanted[1])
        state = applied(state, *parts_of(wanted[0], ranges, 4))
        state = applied(state, CommitCdcGeneration(wanted[0], 2**20 * state.epoch, ranges_digest(ranges)))
        state = applied(state, AdvanceOperation(operation.id, "publish_cdc_generation", (), ()))
        return applied(state, PublishCdcGeneration(wanted[0]))
    witnesses = tuple(Witness(name, state.epoch, state.epoch) for name in sorted(state.nodes))
    gaining = gaining_nodes(operation) if operation.stage in REPORTED_STAGES else ()
    reports = tuple(StreamReport(name, operation.id, 5, "ab") for name in gaining)
    return applied(state, AdvanceOperation(operation.id, next_stage(operation) or "", witnesses, reports))


@cache
def lives() -> dict[str, ClusterState]:
    """Return states by situation: three nodes, with a table, and during the join of a fourth node."""
    state = applied(founded(), TakeOver("coordinator", "x", 1), *(node(number) for number in range(1, 5)))
    for number in range(3):
        state = applied(state, Join(NODES[number], (1_000 * number,), SEED))
        while in_flight(state):
            state = _advanced(state)
    fields = (TypeField("street", "text"),)
    state = applied(
        state,
        CreateKeyspace("ks", Replication("simple", 2)),
        CreateType("ks", "address", fields),
        TABLE,
        CreateView("ks", "by_v", "t", (), ("v",), ("k", "c")),
        CreateIndex("ks", "i", "t", "v"),
        CreateFunction("ks", "f", ("int", "int"), ("s", "v"), "int", "lua", "return s"),
        CreateAggregate("ks", "a", ("int",), "f", "int"),
        CloseCdcGeneration(state.generations[0].id, closed_at=5, unwatched=True),
        RegisterCdcWriter("w", uuid(1, space=5)),
    )
    found = {"quiet": state}
    state = applied(state, Join(JOINING, (500,), SEED))
    while in_flight(state):
        found[in_flight(state)[0].stage] = state
        if in_flight(state)[0].stage == "commit_cdc_generation":
            wanted = to_prepare(state)
            assert wanted is not None
            found["preparing"] = state = applied(state, *parts_of(wanted[0], generate_for(state, wanted[1]), 4)[:1])
        state = _advanced(state)
    later = replace(TABLE, name="later", id=uuid(3, space=5))
    found["zoned"] = applied(found["quiet"], CreateZone("z", tuple(NODES[:3]), 2, 2))
    in_zone = replace(later, keyspace="placed", cdc=CdcOptions())
    found["placed"] = applied(found["zoned"], CreateKeyspace("placed", Replication("zone", 0, zone="z")), in_zone)
    found["settled"] = applied(found["quiet"], SettleVerdicts(2**50), later)
    altered = AlterKeyspace("ks", Replication("network", 1, (DatacenterReplication("dc1", 1),)))
    found["altering"] = state = applied(found["quiet"], altered)
    found["altered"] = _advanced(state)
    cut = replace(
        TABLE,
        keyspace="cut",
        id=uuid(2, space=5),
        tablets=TabletOptions(4),
        columns=(Column("k", "int"),),
        partition_key=("k",),
        clustering_key=(),
    )
    state = applied(found["quiet"], CreateKeyspace("cut", Replication("tablets", 2)), cut)
    replicas = state.tablets["cut.t"].replicas(1)
    to = Shard(min(set(NODES[:3]).difference(nodes_of(replicas))), 0)
    (one,) = (mine for mine in replicas if state.nodes[mine.node].rack == state.nodes[to.node].rack)
    moved = TabletMigration("cut.t", 1, "migration", Shard(one.node, one.shard), to)
    found["moving"] = applied(state, MigrateTablets((moved,)), DecideResize("cut.t", "split", 1))
    return found


def _group(state: ClusterState, **changes: Any) -> ClusterState:
    placement = state.placements[KEY]
    ranges = (replace(placement.ranges[0], **changes), *placement.ranges[1:])
    return replace(state, placements=state.placements.set(KEY, replace(placement, ranges=ranges)))


def _node(cluster: ClusterState, name: str, **changes: Any) -> ClusterState:
    return replace(cluster, nodes=cluster.nodes.set(name, replace(cluster.nodes[name], **changes)))


def _operation(state: ClusterState, **changes: Any) -> ClusterState:
    (operation,) = in_flight(state)
    return replace(state, operations=state.operations.set(operation.id, replace(operation, **changes)))


def _generation(state: ClusterState, index: int, **changes: Any) -> ClusterState:
    found = list(state.generations)
    found[index] = replace(found[index], **changes)
    return replace(state, generations=tuple(found))


def _writer(state: ClusterState, **changes: Any) -> ClusterState:
    return replace(state, writers=state.writers.set("w", replace(state.writers["w"], **changes)))


def _table(state: ClusterState, **changes: Any) -> ClusterState:
    return replace(state, tables=state.tables.set("ks.t", replace(state.tables["ks.t"], **changes)))


def _half_left(state: ClusterState) -> ClusterState:
    """Remove the joining node from the writers of a range that it is about to serve."""
    placement = state.placements[KEY]
    ranges = tuple(
        replace(group, write=tuple(one for one in group.write if one.node != JOINING)) for group in placement.ranges
    )
    return replace(state, placements=state.placements.set(KEY, replace(placement, ranges=ranges)))


def _swapped(state: ClusterState) -> ClusterState:
    """Replace a reader and writer of a range with another node."""
    group = state.placements[KEY].ranges[0]
    other = min(set(NODES[:3]) - {one.node for one in group.write})
    members = (replace(group.write[0], node=other), group.write[1])
    return _group(state, read=members, write=members)


def _without_table_keyspace(state: ClusterState) -> ClusterState:
    return replace(state, keyspaces=state.keyspaces.delete("ks"))


def _unlocked(state: ClusterState) -> ClusterState:
    (operation,) = in_flight(state)
    return _operation(state, locks=operation.locks[1:])


def _locked_twice(state: ClusterState) -> ClusterState:
    (operation,) = in_flight(state)
    return _operation(state, locks=(*operation.locks, operation.locks[0]))


def _tablets(state: ClusterState, **changes: Any) -> ClusterState:
    return replace(state, tablets=state.tablets.set("cut.t", replace(state.tablets["cut.t"], **changes)))


def _settled(state: ClusterState, *replicas: TabletReplica, changed: int = 99) -> ClusterState:
    found = with_settled(state.tablets["cut.t"], {0: (replicas, changed)})
    return replace(state, tablets=state.tablets.set("cut.t", found))


def _transition(state: ClusterState, **changes: Any) -> ClusterState:
    one = state.tablets["cut.t"].transitions[1]
    return _tablets(state, transitions=Map({1: replace(one, **changes)}))


def _dropped_too_early(state: ClusterState) -> ClusterState:
    """End the version of an existing table."""
    (lifetime,) = state.table_lives["ks.later"]
    return replace(
        state, table_lives=state.table_lives.set("ks.later", (replace(lifetime, until=state.settled.until),))
    )


def _two_about_one(state: ClusterState) -> ClusterState:
    (operation,) = in_flight(state)
    return replace(state, operations=state.operations.set("join-1", replace(operation, id="join-1", locks=())))


Planted = tuple[str, Callable[[ClusterState], ClusterState]]


def _zone_partition(state: ClusterState, **changes: Any) -> ClusterState:
    """Change one field of a zone's first partition."""
    changed = replace(state.zone_partitions["z/0"], **changes)
    return replace(state, zone_partitions=state.zone_partitions.set("z/0", changed))


_ELSEWHERE = ZoneStep((NODES[2],))

PLANTED: dict[str, Planted] = {
    "identity": ("quiet", lambda s: replace(s, state_id=uuid(7, space=7))),
    "history": ("quiet", lambda s: replace(s, history=replace(s.history, tail=s.history.tail[:-1]))),
    "stamps": ("quiet", lambda s: replace(s, changed=s.changed.delete("nodes"))),
    "settings": ("quiet", lambda s: replace(s, settings=s.settings.set("gate_prepared", 7))),
    "terms": (
        "quiet",
        lambda s: replace(s, terms=s.terms.set("coordinator", replace(s.terms["coordinator"], since=999))),
    ),
    "principals": ("quiet", lambda s: replace(s, principals=Map({"a": Principal("a", (Grant("operator"),), 1, 1)}))),
    "plans": ("quiet", lambda s: replace(s, plans=Map({"p": StagedPlan("p", (), "ann", 1, 1, "ab")}))),
    "approvals": ("quiet", lambda s: replace(s, approvals=Map({"Join": 1}))),
    "counts": (
        "quiet",
        lambda s: replace(s, terms=s.terms.update({f"r{n}": s.terms["coordinator"] for n in range(64)})),
    ),
    "names": ("quiet", lambda s: replace(s, node_names=s.node_names.set("n1", NODES[1]))),
    "nodes": ("quiet", lambda s: _node(s, NODES[0], tokens=())),
    "tokens": ("quiet", lambda s: _node(s, NODES[0], tokens=(4,))),
    "addresses": ("quiet", lambda s: _node(s, NODES[0], address=s.nodes[NODES[1]].address)),
    "features": ("quiet", lambda s: replace(s, features=s.features.set("split", Feature("split", 1, s.epoch)))),
    "log_bounds": ("quiet", lambda s: replace(s, log_bounds=s.log_bounds.set("truncated", LogBound(s.epoch + 1, 5)))),
    "pauses": ("quiet", lambda s: replace(s, pauses=s.pauses.set("splits/", Pause("all", "", "", s.epoch)))),
    "keyspaces": (
        "quiet",
        lambda s: replace(s, keyspaces=s.keyspaces.set("ks", replace(s.keyspaces["ks"], name="other"))),
    ),
    "tables": ("quiet", lambda s: _table(s, partition_key=("nothing",))),
    "contents": ("quiet", _without_table_keyspace),
    "types": ("quiet", lambda s: replace(s, types=s.types.set("ks.other", s.types["ks.address"]))),
    "derived": ("quiet", lambda s: replace(s, indexes=s.indexes.set("ks.i", replace(s.indexes["ks.i"], column="x")))),
    "routines": ("quiet", lambda s: replace(s, functions=s.functions.delete("ks.f(int, int)"))),
    "placed": ("quiet", lambda s: replace(s, placements=s.placements.delete(KEY))),
    "tiling": ("quiet", lambda s: _group(s, start=s.placements[KEY].ranges[0].start - 1)),
    "cuts": ("quiet", lambda s: replace(s, token_owners=s.token_owners.set(77, NODES[0]))),
    "groups": ("quiet", lambda s: _group(s, read=(*s.placements[KEY].ranges[0].read, Replica(NODES[4], 3)))),
    "members": ("quiet", lambda s: _node(s, NODES[0], state="left", tokens=())),
    "order": (
        "quiet",
        lambda s: _group(s, read=s.placements[KEY].ranges[0].read[::-1], write=s.placements[KEY].ranges[0].write[::-1]),
    ),
    "views": ("write_both_read_old", _half_left),
    "canonical": ("quiet", _swapped),
    "rows": ("prepared", lambda s: _operation(s, tokens=())),
    "stages": ("prepared", lambda s: _operation(s, stage="write_both_read_old")),
    "named": ("prepared", _two_about_one),
    "standings": ("prepared", lambda s: _node(s, JOINING, state="none")),
    "apart": ("prepared", _two_about_one),
    "locks": ("prepared", _locked_twice),
    "held": ("requested", _unlocked),
    "ignored": ("prepared", lambda s: _operation(s, ignored=(NODES[0],))),
    "served": ("publish_cdc_generation", lambda s: _operation(s, generation="another")),
    "preparing": ("preparing", lambda s: _operation(s, generation="another")),
    "generations": ("quiet", lambda s: _generation(s, 1, timestamp=1)),
    "lifecycle": ("quiet", lambda s: _generation(s, -1, status="closed")),
    "streams": ("quiet", lambda s: _generation(s, -1, ranges=s.generations[-1].ranges[1:])),
    "tablet_streams": ("quiet", lambda s: _generation(s, -1, tables=(DescribedTable("t", (5,)),))),
    "requests": (
        "preparing",
        lambda s: replace(
            s, requests=Map({"repair-3": GlobalRequest("repair-3", "", "ops", 3, 0, "x", "in_progress")})
        ),
    ),
    "preparation": ("preparing", lambda s: _generation(s, -1, published=None)),
    "writers": ("quiet", lambda s: _writer(s, low_watermark=s.writers["w"].horizon + 1)),
    "closed": ("quiet", lambda s: _writer(s, low_watermark=1)),
    "past": ("quiet", lambda s: replace(s, past_ttls=(PastTtl(9, 3), PastTtl(5, 2)))),
    "cut": ("moving", lambda s: replace(s, tablets=s.tablets.delete("cut.t"))),
    "tablet_ends": ("moving", lambda s: _tablets(s, ends=(1, *s.tablets["cut.t"].ends[1:]))),
    "tablet_replicas": ("moving", lambda s: _settled(s, TabletReplica(NODES[0], 9, 1))),
    "tablets_held": ("moving", lambda s: _tablets(s, held=(9, *s.tablets["cut.t"].held[1:]))),
    "tablet_stages": ("moving", lambda s: _transition(s, stage="repair")),
    "tablet_groups": ("moving", lambda s: _settled(s, TabletReplica(NODES[0], 0, 9), changed=8)),
    "excluded": ("moving", lambda s: replace(s, operations=lives()["prepared"].operations)),
    "resizes": ("moving", lambda s: _tablets(s, sequence=7)),
    "settled": ("settled", lambda s: replace(s, settled=replace(s.settled, forgotten=s.settled.until + 1))),
    "table_lives": ("settled", _dropped_too_early),
    "past_versions": ("settled", lambda s: replace(s, settled=replace(s.settled, until=2**51), table_lives=Map())),
    "zone_parts": ("zoned", lambda s: replace(s, zone_partitions=s.zone_partitions.delete("z/0"))),
    "zone_values": ("zoned", lambda s: replace(s, zones=s.zones.set("z", replace(s.zones["z"], quorum=9)))),
    "zone_steps": ("zoned", lambda s: _zone_partition(s, stable=ZoneStep(()))),
    "zone_plans": ("zoned", lambda s: _zone_partition(s, pending=(), planned=s.zone_partitions["z/0"].stable)),
    "zone_roles": ("zoned", lambda s: _zone_partition(s, stable=ZoneStep((NODES[0],), forced=True))),
    "zone_revisions": ("zoned", lambda s: _zone_partition(s, change=s.epoch + 1)),
    "zone_keyspaces": ("placed", lambda s: replace(s, zones=s.zones.set("z", replace(s.zones["z"], partitions=9)))),
    "zone_tablets": ("placed", lambda s: _zone_partition(s, stable=_ELSEWHERE, reached=_ELSEWHERE)),
    "service": ("quiet", lambda s: replace(s, service=Map({JOINING: ServiceMember(JOINING, "member", 3)}))),
    "service_goal": ("quiet", lambda s: replace(s, service_goal=ServiceGoal(3, automatic=True))),
    "recoveries": ("quiet", lambda s: replace(s, recoveries=Map({"3": Recovery(3, 0, "", "", (), None, "")}))),
}
"""Invariant to the base state and the change that breaks it."""


OF_TWO_STATES = {"past_versions"}
"""Invariants about two states of a log, which a single state cannot break."""


def _broken(found: tuple[BrokenInvariant, ...]) -> set[str]:
    return {one.invariant for one in found}


def test_the_base_states_are_valid() -> None:
    for name, state in lives().items():
        assert violations(state) == (), name


def test_each_invariant_has_a_planted_state() -> None:
    assert [one.name for one in INVARIANTS] == list(PLANTED)
    assert all(one.sentence for one in INVARIANTS)


@pytest.mark.parametrize("name", PLANTED)
def test_an_invariant_is_found_broken(name: str) -> None:
    """The check finds it in the whole state, and in the difference to the valid state one epoch before."""
    where, plant = PLANTED[name]
    sound = lives()[where]
    planted = plant(sound)
    found = [one for one in violations(planted) if one.invariant == name]
    assert bool(found) == (name not in OF_TWO_STATES)
    assert not any("the check failed" in one.detail for one in found), found
    assert name in _broken(violations(planted, sound)) or name == "stamps"  # shared objects are not checked


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("derived", lambda s: replace(s, tables=s.tables.delete("ks.t"))),
        ("derived", lambda s: replace(s, views=s.views.set("ks.t", s.views["ks.by_v"]))),
        ("derived", lambda s: replace(s, views=s.views.set("ks.by_v", replace(s.views["ks.by_v"], clustering_key=())))),
        ("derived", lambda s: _table(s, clustering_key=("c", "v"), columns=s.tables["ks.t"].columns[:2])),
        ("routines", lambda s: replace(s, aggregates=s.aggregates.set("ks.b", s.aggregates["ks.a(int)"]))),
        ("routines", lambda s: replace(s, functions=s.functions.set("ks.g()", s.functions["ks.f(int, int)"]))),
        (
            "routines",
            lambda s: replace(
                s, functions=s.functions.set("ks.f(int, int)", replace(s.functions["ks.f(int, int)"], returns="gone"))
            ),
        ),
    ],
)
def test_dangling_references_are_found(name: str, plant: Callable[[ClusterState], ClusterState]) -> None:
    sound = lives()["quiet"]
    found = violations(plant(sound), sound)
    assert name in _broken(found)
    assert not any("the check failed" in one.detail for one in found), found


def _placed_by(state: ClusterState, keyspace: str, **replication: Any) -> ClusterState:
    found = state.keyspaces[keyspace]
    other = replace(found, replication=replace(found.replication, **replication))
    return replace(state, keyspaces=state.keyspaces.set(keyspace, other))


def test_a_changed_keyspace_is_checked_with_its_placement() -> None:
    in_tablets = lives()["moving"]
    assert "cut" in _broken(violations(_placed_by(in_tablets, "cut", strategy="simple"), in_tablets))
    zones = applied(lives()["placed"], CreateZone("y", NODES[2:3], 2, 1))
    assert "zone_tablets" in _broken(violations(_placed_by(zones, "placed", zone="y"), zones))


def test_a_node_name_is_unique() -> None:
    sound = lives()["quiet"]
    (known,) = (one for one in sound.nodes.values() if one.id == JOINING)
    nodes = sound.nodes.delete(JOINING).set(NODES[4], replace(known, id=NODES[4]))
    other = replace(sound, nodes=nodes, node_names=sound.node_names.set(known.name, NODES[4]))
    assert "names" in _broken(violations(other, sound))
    assert "names" not in _broken(violations(other))


@pytest.mark.parametrize("part", ["placements", "operations", "nodes", "history", "generations"])
def test_the_check_never_raises(part: str) -> None:
    garbage: Any = 7
    found = violations(replace(lives()["write_both_read_old"], **{part: garbage}))
    assert any("the check failed" in one.detail for one in found)


@pytest.mark.parametrize("noted", ["made", "joined"])
@pytest.mark.parametrize("offset", [-1, 1_000])
def test_an_epoch_of_a_keyspace_is_in_the_past(noted: str, offset: int) -> None:
    sound = lives()["quiet"]
    epoch = offset if offset < 0 else sound.epoch + offset
    broken = replace(sound, keyspaces=sound.keyspaces.set("ks", replace(sound.keyspaces["ks"], **{noted: epoch})))
    assert "keyspaces" in _broken(violations(broken, sound))


def test_shared_objects_are_not_checked_again() -> None:
    sound = lives()["quiet"]
    broken = _group(sound, start=5)
    later = applied(broken, Noop())
    assert "tiling" in _broken(violations(broken, sound))
    assert violations(later, broken) == ()
    assert "tiling" in _broken(violations(later))


def test_an_exceeded_bound_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counts.COUNTS_MAX, "nodes", (3, "nodes"))
    assert [one.detail for one in violations(lives()["quiet"])] == ["there are 4 nodes, but at most 3 are allowed"]


def test_sources_outside_of_the_locks_are_found() -> None:
    (operation,) = in_flight(lives()["requested"])
    stray = Source("simple:3", 0, 1_000, NODES[0], NODES[1])
    plan = replace(operation.plan, sources=(*operation.plan.sources, stray))
    assert "held" in _broken(violations(_operation(lives()["requested"], plan=plan)))


def test_no_step_revives_a_principal_or_returns_to_a_key() -> None:
    gone, active = Principal("a", (), 2, 1, revoked=2), Principal("r", (Grant("admin"),), 1, 1)
    before = replace(lives()["quiet"], principals=Map({"a": gone, "r": active}))
    assert _broken(violations(before)) == {"stamps"}
    for planted in (
        replace(gone, revoked=None),
        replace(gone, revoked=3),
        replace(gone, key=1),
        replace(gone, created=2),
        replace(gone, roles=(Grant("operator"),)),
        replace(gone, name="b"),
        None,
    ):
        principals = before.principals.delete("a") if planted is None else before.principals.set("a", planted)
        assert "principals" in _broken(violations(replace(before, principals=principals), before)), planted
