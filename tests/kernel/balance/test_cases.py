"""Black-box cases from the balancer tests of ScyllaDB: cluster shape, action, bound.

``hN`` is node N, ``sN`` a shard. By default a host has room for one tablet of 5 GiB on each shard. Tablets have 5 GiB
and all sizes are known. Plans are applied until one is empty, at most 1 + 10 for each replica.
"""

from __future__ import annotations

import pytest

from ringlog.kernel.balance.model import GIB, INTRANODE, Limits, Place
from tests.kernel.balance.world import Running, Table, World, host, kinds_of, world_of

TABLET = 5 * GIB


def filled(world: World, places: list[tuple[Place, ...]], name: str = "ks.t", **more: object) -> World:
    world.by_size = True
    world.tables[name] = Table(places, [TABLET] * len(places), **more)  # type: ignore[arg-type]
    return world


def without(world: World, name: str) -> None:
    """Remove a host that has left."""
    del world.hosts[name]


def test_an_empty_host_gets_its_part() -> None:
    """Case 1."""
    world = filled(
        world_of(host("h1", 2), host("h2", 2), host("h3", 2)),
        [(("h1", 0), ("h2", 1)), (("h1", 1), ("h2", 1)), (("h1", 0), ("h2", 0)), (("h1", 1), ("h2", 0))],
    )
    world.balance()
    for node in world.hosts:
        assert 2 <= world.on(node) <= 3
        assert 1 <= world.average(node) <= 2


def test_moves_keep_racks_and_datacenters() -> None:
    """Case 2."""
    hosts = [
        *(host(f"h{n}", rack="r1" if n < 3 else "r2") for n in (1, 2, 3, 4)),
        *(host(f"h{n}", rack="r3", datacenter="dc2") for n in (5, 6)),
    ]
    world = filled(world_of(*hosts), [(("h1", 0), ("h3", 0), ("h5", 0))] * 2)
    plan = world.plan()
    assert plan.migrations
    assert len({row.tablet for row in plan.migrations}) == len(plan.migrations)
    world.balance()
    assert [world.on(node) for node in sorted(world.hosts)] == [1] * 6


def test_a_leaving_host_is_drained_and_the_others_stay_balanced() -> None:
    """Case 4."""
    places: list[tuple[Place, ...]] = [
        (("h1", 0), ("h2", 0)),
        (("h1", 0), ("h2", 1)),
        (("h1", 0), ("h3", 0)),
        (("h2", 1), ("h3", 1)),
    ]
    world = filled(world_of(host("h1", 2), host("h2", 2), host("h3", 2, draining=True)), places)
    world.balance()
    assert [world.average(node) for node in ("h1", "h2", "h3")] == [2, 2, 0]
    assert world.on("h3") == 0
    without(world, "h3")
    world.balance()
    assert [world.average(node) for node in ("h1", "h2")] == [2, 2]


def test_a_pinned_rack_that_loses_its_only_host_cannot_be_drained() -> None:
    """Case 6a."""
    hosts = [*(host(f"h{n}", 2) for n in (1, 2, 3)), host("h4", 2, rack="r2", draining=True)]
    pinned = {"dc1": frozenset({"r2"})}
    world = filled(world_of(*hosts), [(("h4", 0),), (("h4", 1),)], racks=pinned)
    plan = world.plan()
    assert not plan.migrations
    assert [(row.table, row.tablet, row.rack, row.code) for row in plan.obstacles] == [
        ("ks.t", 0, "r2", "drain_impossible"),
        ("ks.t", 1, "r2", "drain_impossible"),
    ]


def test_a_host_cannot_be_drained_if_all_others_have_the_tablet() -> None:
    """Case 6b."""
    world = filled(
        world_of(host("h1", 2), host("h2", 2), host("h3", 2, draining=True)), [(("h1", 0), ("h2", 0), ("h3", 0))]
    )
    plan = world.plan()
    assert not plan.migrations
    assert [row.code for row in plan.obstacles] == ["drain_impossible"]


def test_a_single_dead_host_cannot_be_removed() -> None:
    """Case 6c."""
    world = filled(world_of(host("h1", 1, draining=True, alive=False)), [(("h1", 0),)])
    assert [row.code for row in world.plan().obstacles] == ["too_few_replicas"]
    assert not world.plan().migrations


def test_moving_tablets_count_as_moved() -> None:
    """Case 8."""
    world = filled(
        world_of(host("h1", 2, rack="rA"), host("h2", 1, rack="rB"), host("h3", 1, rack="rB")),
        [(("h1", shard % 2), ("h2", 0)) for shard in range(4)],
    )
    world.running["ks.t", 0] = Running(("h2", 0), ("h3", 0), "migration")
    world.start(world.plan().migrations)
    world.finish_all()
    world.balance()
    assert [world.average(node) for node in ("h1", "h2", "h3")] == [2, 2, 2]


@pytest.mark.parametrize("why", ["paused", "node_request"])
def test_a_blocked_table_gets_no_plan(why: str) -> None:
    """Case 11."""
    world = filled(world_of(host("h1"), host("h2"), busy=why), [(("h1", 0),), (("h1", 0),)])
    plan = world.plan()
    assert not plan.migrations
    assert [stop.code for stop in plan.stops] == [why]


def test_shards_of_a_draining_host_are_not_balanced() -> None:
    """Case 12."""
    world = filled(world_of(host("h1", 2, draining=True), host("h2", 2)), [(("h1", 0),)] * 16)
    plan = world.plan()
    assert plan.migrations
    assert all(row.kind != INTRANODE for row in plan.migrations)
    assert "drain_first" in [stop.code for stop in plan.stops]


@pytest.mark.parametrize(("more", "moves"), [(257, 0), (258, 0), (259, 1)])
def test_shards_that_differ_by_less_than_the_threshold_are_left(more: int, moves: int) -> None:
    """Case 13: 257 and 255 tablets of 100 MB differ by 0.78 %, 259 and 253 by 2.3 %."""
    world = world_of(host("h1", 2, capacity=100 * 10**9), by_size=True)
    world.tables["ks.t"] = Table([(("h1", int(n >= more)),) for n in range(512)], [10**8] * 512)
    world.limits = Limits(threshold_permille=16 if more == 258 else 10)
    assert bool(world.plan().migrations) == bool(moves)


def test_a_host_with_an_unknown_size_neither_gives_nor_gets() -> None:
    """Case 20."""
    world = filled(world_of(host("h1", 2), host("h2", 2), host("h3", 2)), [(("h2", 0),)] * 16)
    world.unreported = {("h2", "ks.t", 7)}
    plan = world.plan()
    assert not plan.migrations
    assert [(stop.what, stop.code) for stop in plan.stops if stop.what == "h2"] == [("h2", "statistics_missing")]
    world.unreported = set()
    moved = world.plan().migrations
    assert moved
    assert {row.source[0] for row in moved} == {"h2"}


@pytest.mark.parametrize("silent", [{"h2"}, {"h1", "h3"}, {"h1"}])
def test_missing_sizes_do_not_block_a_drain(silent: set[str]) -> None:
    """Neither missing sizes of the host nor of all others block the drain. A host with known sizes gets more
    tablets.
    """
    world = filled(world_of(host("h1", 2), host("h2", 2, draining=True), host("h3", 2)), [(("h2", 0),)] * 16)
    world.silent = silent
    world.balance()
    assert (world.on("h2"), world.on("h1") + world.on("h3")) == (0, 16)
    if silent == {"h1"}:
        assert world.on("h1") < world.on("h3")


def test_a_dead_host_with_unknown_sizes_is_drained() -> None:
    world = filled(
        world_of(host("h1", 2, draining=True, alive=False), host("h2", 2), host("h3", 2)), [(("h1", 0), ("h2", 0))] * 4
    )
    world.silent = {"h1"}
    moved = world.balance()
    assert kinds_of(moved) == {"rebuild_lost": 4, "balance_shards": 2}
    assert world.on("h3") == 4


def test_large_and_small_instances_fill_to_the_same_part() -> None:
    """Hosts of two shards with 468 GB and of seven shards with 1,875 GB."""
    hosts = [host(f"l{n}", 2, capacity=468 * 10**9) for n in range(3)]
    hosts += [host(f"x{n}", 7, capacity=1875 * 10**9) for n in range(3)]
    world = filled(world_of(*hosts), [((f"l{n % 3}", n % 2),) for n in range(600)])
    world.balance()
    parts = [1000 * world.on(one.id) * TABLET // one.capacity for one in hosts]
    assert max(parts) - min(parts) <= max(parts) // 90 + 1, parts
    for one in hosts:
        counts = world.shard_counts(one.id)
        assert max(counts) - min(counts) <= 1, "shards of a host are even"


def test_siblings_meet_on_the_less_loaded_shard_and_stay_there() -> None:
    places: list[tuple[Place, ...]] = [(("h1", 0),), (("h1", 1),), (("h1", 0),), (("h1", 1),)]
    world = filled(world_of(host("h1", 2)), places, merging=True)
    assert kinds_of(world.balance()) == {"co_locate": 2}
    assert world.shard_counts("h1") == [2, 2]


def test_siblings_meet_on_the_less_loaded_host_and_stay_there() -> None:
    places: list[tuple[Place, ...]] = [(("h1", 0),), (("h2", 0),), (("h1", 0),), (("h2", 0),)]
    world = filled(world_of(host("h1"), host("h2")), places, merging=True)
    assert kinds_of(world.balance()) == {"co_locate": 2}
    assert [world.on("h1"), world.on("h2")] == [2, 2]
